"""Who may do what on a server, and how much of a request is read."""

import asyncio

import pytest
from raw_http import post_of

from penstock.core.errors import DataError, SpecError
from penstock.serve.guard import Access
from penstock.web.guard import is_loopback, read_secret
from serving import TOKEN

KEY = "a key that may only generate".replace(" ", "-")
ASKED = {"prompt": "3 + 4", "max_tokens": 3}
CHANGES = [
    ("POST", "/pause"), ("POST", "/resume"), ("POST", "/abort"), ("POST", "/weights"), ("PUT", "/weights"),
    ("POST", "/weights/group"), ("GET", "/weights/sums"),
]  # fmt: skip


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


async def statuses(serve, access, headers, wanted):
    async with serve(access, {}) as (client, _):
        return [(await client.request(method, path, json={}, headers=headers)).status_code for method, path in wanted]


WRONG = [{}, bearer("wrong-wrong-wrong-wrong"), {"Authorization": "Bearer"}, {"Authorization": TOKEN}, bearer(KEY)]


@pytest.mark.parametrize("headers", WRONG)
async def test_nothing_is_changed_without_the_token(serve, headers):
    assert await statuses(serve, Access(token=TOKEN, key=KEY), headers, CHANGES) == [401] * len(CHANGES)


async def test_without_a_token_nothing_can_be_changed_at_all(serve):
    assert await statuses(serve, Access(), {}, CHANGES) == [403] * len(CHANGES)


@pytest.mark.parametrize(("secret", "status"), [(TOKEN, 200), (KEY, 200), ("neither-of-the-two", 401), (TOKEN[:-1], 401)])
async def test_generating_takes_the_token_or_the_key(serve, secret, status):
    async with serve(Access(token=TOKEN, key=KEY), {}) as (client, _):
        assert (await client.post("/v1/completions", json=ASKED, headers=bearer(secret))).status_code == status


async def test_health_is_open_and_generating_is_where_there_is_no_secret(serve):
    async with serve(Access(), {}) as (client, _):
        assert (await client.get("/health")).json()["status"] == "ok"
        assert (await client.post("/v1/completions", json=ASKED)).status_code == 200


REFUSED = ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "")
TAKEN = ("localhost", "localhost:99", "127.0.0.1:1", "[::1]:5")


async def test_names_of_this_machine_are_taken_and_others_are_refused(serve):
    async with serve() as (client, _):
        found = {host: (await client.get("/health", headers={"Host": host})).status_code for host in (*REFUSED, *TAKEN)}
    assert found == dict.fromkeys(REFUSED, 421) | dict.fromkeys(TAKEN, 200)


async def test_pages_of_other_sites_are_refused(serve):
    async with serve() as (client, _):
        origins = ("https://evil.example", "null", str(client.base_url).rstrip("/"))
        answers = [await client.post("/v1/completions", json=ASKED, headers={"Origin": origin}) for origin in origins]
        assert [answer.status_code for answer in answers] == [403, 403, 200]
        plain = {"Content-Type": "text/plain"}
        assert (await client.post("/v1/completions", content=b'{"prompt": "x"}', headers=plain)).status_code == 415


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "node-3", ""])
def test_other_machines_are_let_in_with_a_token_only(host):
    with pytest.raises(SpecError, match="--token-file"):
        Access(host)
    assert not Access(host, token=TOKEN).local


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("LOCALHOST", True),
                                           ("localhost.evil", False), ("0.0.0.0", False)])  # fmt: skip
def test_loopback_is_told_by_address_or_name(host, own):
    assert is_loopback(host) == own


def secret_file(tmp_path, content, mode=0o600):
    (tmp_path / "token").touch(mode)
    (tmp_path / "token").write_bytes(content)
    (tmp_path / "token").chmod(mode)
    return str(tmp_path / "token")


def test_a_secret_is_the_one_line_of_its_file(tmp_path):
    assert read_secret(secret_file(tmp_path, f"{TOKEN}\n".encode())) == TOKEN


@pytest.mark.parametrize(
    "content", [b"", b"short\n", b"two lines of some\nlength each\n", b"with spaces in it, long\n", b"\xff" * 40]
)
def test_a_file_that_holds_no_secret_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="openssl rand"):
        read_secret(secret_file(tmp_path, content))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_refused(tmp_path, mode):
    with pytest.raises(DataError, match="chmod 600"):
        read_secret(secret_file(tmp_path, f"{TOKEN}\n".encode(), mode))


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


async def test_what_is_no_http_or_a_head_without_end_is_answered_and_closed(serve):
    endless = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000
    async with serve() as (client, _):
        for garbage in (b"\x00\xff" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01hello\r\n\r\n", endless):
            assert (await raw(client, garbage)).startswith(b"HTTP/1.1 400"), garbage[:20]
            assert (await client.get("/health")).status_code == 200


async def test_a_body_that_is_no_object_is_refused(serve):
    async with serve() as (client, _):
        for body in (b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"temperature": NaN}', b'{"a":' * 5000, b"null"):
            answer = await client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), body[:20]


async def test_a_large_body_is_refused_by_its_length_and_by_its_bytes(serve):
    chunk = f"{25_000:x}\r\n".encode() + b" " * 25_000 + b"\r\n"
    chunked = post_of(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    async with serve(body_bytes=20_000) as (client, _):
        assert (await raw(client, post_of(10**12))).startswith(b"HTTP/1.1 413")
        assert (await raw(client, chunked, chunk)).startswith(b"HTTP/1.1 413")


async def test_a_client_that_sends_no_body_or_no_request_is_let_go(serve):
    async with serve(body_seconds=0.1, head_seconds=0.1) as (client, _):
        assert (await raw(client, post_of(100), b'{"prom')).startswith(b"HTTP/1.1 408")
        for unsent in ((), (b"POST /v1/comple",), (post_of(10)[:-2],)):
            assert await raw(client, *unsent) == b""


async def test_paths_and_methods_that_are_not_there_are_refused_in_the_same_shape(serve):
    async with serve() as (client, _):
        answers = [await client.get("/nothing"), await client.get("/pause"), await client.delete("/v1/models")]
    assert [answer.status_code for answer in answers] == [404, 405, 405]
    assert all(answer.json()["error"]["message"] for answer in answers)
