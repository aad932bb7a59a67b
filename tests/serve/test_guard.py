"""Who may do what on a server, and how much of a request is read."""

import asyncio

import pytest

from penstock.core.errors import DataError, SpecError
from penstock.serve.guard import Access
from penstock.web.guard import is_loopback, read_secret
from serving import BEARER, TOKEN

KEY = "a key that may only generate".replace(" ", "-")
ASKED = {"prompt": "3 + 4", "max_tokens": 3}
CHANGES = [
    ("POST", "/pause"), ("POST", "/resume"), ("POST", "/abort"), ("POST", "/weights"), ("PUT", "/weights"),
    ("POST", "/weights/group"), ("GET", "/weights/sums"),
]  # fmt: skip


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def statuses(ask, access, headers, wanted):
    async def scenario(client, service):
        return [(await client.request(method, path, json={}, headers=headers)).status_code for method, path in wanted]

    return ask(scenario, access, {})


WRONG = [{}, bearer("wrong-wrong-wrong-wrong"), {"Authorization": "Bearer"}, {"Authorization": TOKEN}, bearer(KEY)]


@pytest.mark.parametrize("headers", WRONG)
def test_nothing_is_changed_without_the_token(ask, headers):
    assert statuses(ask, Access(token=TOKEN, key=KEY), headers, CHANGES) == [401] * len(CHANGES)


def test_without_a_token_nothing_can_be_changed_at_all(ask):
    assert statuses(ask, Access(), {}, CHANGES) == [403] * len(CHANGES)


@pytest.mark.parametrize(("secret", "status"), [(TOKEN, 200), (KEY, 200), ("neither-of-the-two", 401), (TOKEN[:-1], 401)])
def test_generating_takes_the_token_or_the_key(ask, secret, status):
    async def scenario(client, service):
        return (await client.post("/v1/completions", json=ASKED, headers=bearer(secret))).status_code

    assert ask(scenario, Access(token=TOKEN, key=KEY), {}) == status


def test_health_is_open_and_generating_is_where_there_is_no_secret(ask):
    async def scenario(client, service):
        return [(await client.get("/health")).json()["status"], (await client.post("/v1/completions", json=ASKED)).status_code]

    assert ask(scenario, Access(), {}) == ["ok", 200]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_name_that_is_not_this_machines_is_refused(ask, host):
    async def scenario(client, service):
        return (await client.get("/health", headers={"Host": host})).status_code

    assert ask(scenario) == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:99", "127.0.0.1:1", "[::1]:5"])
def test_names_of_this_machine_are_taken(ask, host):
    async def scenario(client, service):
        return (await client.get("/health", headers={"Host": host})).status_code

    assert ask(scenario) == 200


def test_pages_of_other_sites_are_refused(ask):
    async def scenario(client, service):
        own = str(client.base_url).rstrip("/")
        plain = {"Content-Type": "text/plain"}
        return [
            (await client.post("/v1/completions", json=ASKED, headers={"Origin": "https://evil.example"})).status_code,
            (await client.post("/v1/completions", json=ASKED, headers={"Origin": "null"})).status_code,
            (await client.post("/v1/completions", content=b'{"prompt": "x"}', headers=plain)).status_code,
            (await client.post("/v1/completions", json=ASKED, headers={"Origin": own})).status_code,
        ]

    assert ask(scenario) == [403, 403, 415, 200]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "node-3", ""])
def test_other_machines_are_let_in_with_a_token_only(host):
    with pytest.raises(SpecError, match="--token-file"):
        Access(host)
    assert not Access(host, token=TOKEN).local


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("LOCALHOST", True),
                                           ("localhost.evil", False), ("0.0.0.0", False)])  # fmt: skip
def test_loopback_is_told_by_address_or_name(host, own):
    assert is_loopback(host) == own


def test_a_secret_is_the_one_line_of_its_file(tmp_path):
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_secret(str(tmp_path / "token")) == TOKEN


@pytest.mark.parametrize(
    "content", [b"", b"short\n", b"two lines of some\nlength each\n", b"with spaces in it, long\n", b"\xff" * 40]
)
def test_a_file_that_holds_no_secret_is_refused(tmp_path, content):
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(DataError, match="openssl rand"):
        read_secret(str(tmp_path / "token"))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(tmp_path, mode):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(DataError, match="chmod 600"):
        read_secret(str(tmp_path / "token"))


def test_a_missing_secret_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing-here: No such file"):
        read_secret(str(tmp_path / "nothing-here"))


async def raw(client, *parts, wait=5.0):
    """What a server says to bytes; parts are sent one after the other."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), wait)
    finally:
        writer.close()


def head(length):
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}",
             "Content-Type: application/json", f"Content-Length: {length}"]  # fmt: skip
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


@pytest.mark.parametrize("garbage", [b"\x00\xff" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01hello\r\n\r\n"])
def test_what_is_no_http_is_answered_and_closed(ask, garbage):
    async def scenario(client, service):
        said = await raw(client, garbage)
        return said, (await client.get("/health")).status_code

    said, status = ask(scenario)
    assert said.startswith(b"HTTP/1.1 400")
    assert status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"temperature": NaN}', b'{"a":' * 5000, b"null"])
def test_a_body_that_is_no_object_is_refused(ask, body):
    async def scenario(client, service):
        answer = await client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        return answer.status_code, answer.json()["error"]["type"]

    assert ask(scenario) == (400, "invalid_request_error")


def test_a_large_body_is_refused_by_its_length_and_by_its_bytes(ask):
    async def scenario(client, service):
        declared = await raw(client, head(10**12))
        chunk = f"{25_000:x}\r\n".encode() + b" " * 25_000 + b"\r\n"
        chunked = await raw(client, head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"), chunk)
        return declared, chunked

    declared, chunked = ask(scenario, body_bytes=20_000)
    assert declared.startswith(b"HTTP/1.1 413")
    assert chunked.startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_no_body_is_let_go(ask):
    async def scenario(client, service):
        return await raw(client, head(100), b'{"prom')

    assert ask(scenario, body_seconds=0.1).startswith(b"HTTP/1.1 408")


def test_a_client_that_sends_no_request_is_let_go(ask):
    async def scenario(client, service):
        return await raw(client), await raw(client, b"POST /v1/comple"), await raw(client, head(10)[:-2])

    assert ask(scenario, head_seconds=0.1) == (b"", b"", b"")


def test_a_head_without_end_is_refused(ask):
    async def scenario(client, service):
        return await raw(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000)

    assert ask(scenario).startswith(b"HTTP/1.1 400")


def test_paths_and_methods_that_are_not_there_are_refused_in_the_same_shape(ask):
    async def scenario(client, service):
        return await client.get("/nothing"), await client.get("/pause"), await client.delete("/v1/models")

    answers = ask(scenario)
    assert [answer.status_code for answer in answers] == [404, 405, 405]
    assert all(answer.json()["error"]["message"] for answer in answers)
    assert BEARER["Authorization"].endswith(TOKEN)
