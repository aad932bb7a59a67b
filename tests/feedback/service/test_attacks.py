"""What a hostile page, client or annotator may try, over real HTTP."""

import contextlib
import json
import socket
import threading

import httpx
import pytest
from feedback_examples import pair
from served import PASSWORD, Person, code, csrf_of, sign_in

from penstock.feedback.errors import StoreUnavailable
from penstock.feedback.records import Annotator
from penstock.feedback.service import admin as admin_module
from penstock.feedback.service.calls import SESSION
from penstock.feedback.service.throttle import Throttle
from penstock.feedback.store import Store
from penstock.web.crowd import block_of


def talk(service, *sent, seconds=20.0):
    """Bytes over a socket as they are; what came back until the server closed the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", service.desk.port), timeout=seconds) as connection:
        for part in sent:
            connection.sendall(part)
        with contextlib.suppress(ConnectionResetError):  # a server that closes with something unread resets
            while part := connection.recv(1 << 16):
                received += part
    return received


def head(person, path, *more):
    cookie = person.http.cookies.get(SESSION)
    lines = [f"POST {path} HTTP/1.1", f"Host: localhost:{person.http.base_url.port}", f"Cookie: {SESSION}={cookie}"]
    lines += [f"X-CSRF-Token: {person.http.headers['X-CSRF-Token']}", "Content-Type: application/json", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost.evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_another_site_is_refused(service, origin):
    person = service.person("ann")
    answer = person.http.post("/api/next", json={}, headers={"Origin": origin})
    assert (answer.status_code, code(answer)) == (403, "foreign_origin")


def test_a_page_of_another_site_cannot_sign_anybody_in_or_out(service):
    person = service.person("ann")
    service.enrol("mallory")
    foreign = {"Origin": "https://evil.example"}
    csrf = person.http.headers["X-CSRF-Token"]
    assert person.http.post("/sign-out", data={"csrf": csrf}, headers=foreign).status_code == 403
    with service.client() as client:
        form = {"name": "mallory", "password": PASSWORD, "csrf": csrf_of(client.get("/sign-in"))}
        assert client.post("/sign-in", data=form, headers=foreign).status_code == 403
    assert person.get("/api/me").status_code == 200


def test_our_own_origin_is_let_through(service):
    person = service.person("ann")
    assert person.http.post("/api/next", json={}, headers={"Origin": service.desk.url}).status_code == 200


@pytest.mark.parametrize("token", [None, "", "0" * 64, "ü"])
def test_an_act_without_the_token_of_the_session_is_refused(service, token):
    person = service.person("ann")
    del person.http.headers["X-CSRF-Token"]
    headers = {} if token is None else {"X-CSRF-Token": token.encode()}
    answer = person.http.post("/api/next", json={}, headers=headers)
    assert (answer.status_code, code(answer)) == (403, "csrf")
    form = {} if token is None else {"csrf": token}
    assert person.http.post("/sign-out", data=form).status_code in (403, 415)  # without a field it is no form at all
    assert person.get("/api/me").status_code == 200


def test_the_token_of_another_session_is_refused(service):
    ann, bob = service.person("ann"), service.person("bob")
    answer = ann.http.post("/api/next", json={}, headers={"X-CSRF-Token": bob.http.headers["X-CSRF-Token"]})
    assert (answer.status_code, code(answer)) == (403, "csrf")


def test_the_sign_in_form_needs_the_cookie_that_it_was_made_for(service):
    service.enrol("ann")
    with service.client() as client, service.client() as other:
        csrf = csrf_of(other.get("/sign-in"))
        form = {"name": "ann", "password": PASSWORD, "csrf": csrf}
        assert client.post("/sign-in", data=form).status_code == 403
        assert SESSION not in client.cookies
        assert other.post("/sign-in", data=form).status_code == 303


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""])
def test_a_form_is_not_read_as_json(service, kind):
    """Browsers send these across sites without asking first."""
    person = service.person("ann")
    assert person.http.post("/api/next", content=b"{}", headers={"Content-Type": kind}).status_code == 415


def test_json_is_not_read_as_a_form(service):
    with service.client() as client:
        assert client.post("/sign-in", json={"name": "ann", "password": PASSWORD}).status_code == 415


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.1:8900", ""])
def test_another_name_for_this_machine_is_refused(service, host):
    with service.client() as client:
        assert client.get("/health", headers={"Host": host}).status_code == 421


def test_behind_a_proxy_other_names_are_served(serve):
    service = serve(local=False, https=True)
    with service.client() as client:
        assert client.get("/health", headers={"Host": "annotate.example"}).status_code == 200


def test_a_gigabyte_that_is_announced_is_not_waited_for(service):
    person = service.person("ann")
    answer = talk(service, head(person, "/api/submit", "Content-Length: 1073741824"), b"{")
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_gigabyte_in_chunks_ends_at_the_limit(service):
    person, sent = service.person("ann"), 0
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", service.desk.port), timeout=20) as connection:
        connection.sendall(head(person, "/api/submit", "Transfer-Encoding: chunked"))
        try:
            while sent < 1 << 30:
                connection.sendall(chunk)
                sent += 0x10000
        except OSError:
            pass
    assert sent < 64 << 20  # two megabytes and what the sockets hold
    assert person.get("/api/me").status_code == 200


def test_a_large_form_is_refused(service):
    with service.client() as client:
        assert client.post("/sign-in", data={"name": "x" * (17 << 10)}).status_code == 413


def test_a_slow_head_is_hung_up_on(service):
    assert talk(service, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") == b""


def test_a_slow_body_is_given_up(service):
    person = service.person("ann")
    answer = talk(service, head(person, "/api/submit", "Content-Length: 100"), b'{"key": ')
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_who_is_signed_out_is_refused_before_a_body_is_read(service):
    answer = talk(service, b"POST /api/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Connection: close\r\nContent-Length: 1000000\r\n\r\n")  # fmt: skip
    assert answer.startswith(b"HTTP/1.1 401 ")


def routes_with(service, *rights):
    return [
        (path, method, route)
        for path, methods in service.app.routes.items()
        for method, route in methods.items()
        if route.right in rights
    ]


def asked(http, path, method, route):
    if method == "GET":
        return http.get(path)
    if route.body == "form":
        return http.post(path, data={"csrf": http.headers.get("X-CSRF-Token", "x")})
    return http.post(path, json={})


def test_every_route_but_a_few_needs_a_sign_in(service):
    found = routes_with(service, "signed in", "adjudicator", "admin")
    assert len(found) > 15
    with service.client() as client:
        for path, method, route in found:
            answer = asked(client, path, method, route)
            assert answer.status_code == (303 if route.page else 401), path
        anyone = routes_with(service, "anyone")
        for path, method, route in anyone:
            if path.startswith("/v1/") or path == "/metrics":  # for products and Prometheus, which send a token
                assert asked(client, path, method, route).status_code == 401, path
    own = {path for path, _, _ in anyone if not path.startswith("/v1/")}
    assert own == {"/sign-in", "/invite/{secret}", "/static/{file}", "/health", "/metrics"}


@pytest.mark.parametrize(("role", "closed"), [("annotator", ("adjudicator", "admin")), ("adjudicator", ("admin",))])
def test_an_annotator_has_no_rights_of_administrators(service, role, closed):
    person = service.person("ann", role)
    found = routes_with(service, *closed)
    assert found
    for path, method, route in found:
        assert asked(person.http, path, method, route).status_code == 403, path


def test_a_role_that_is_taken_away_ends_at_once(service):
    person = service.person("ann", "admin")
    assert person.get("/api/admin/annotators").status_code == 200
    service.store.enrol(Annotator("ann", "annotator"))
    assert person.get("/api/admin/annotators").status_code == 403


def test_who_is_switched_off_is_signed_out(service):
    admin, person = service.person("root", "admin"), service.person("ann")
    assert admin.post("/api/admin/annotators", name="ann", enabled=False).status_code == 200
    assert person.get("/api/me").status_code == 401
    assert admin.post("/api/admin/annotators", name="ann", enabled=True).status_code == 200
    assert person.get("/api/me").status_code == 401  # their sessions have ended, not paused


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"x"', b"{", b"{}{}", b'{"a": NaN}', b"\xff\xfe{}", b"[" * 10_000, b'{"purpose": 1}', b'{"x": 1}',
     b'{"purpose": "\\ud800"}', b'{"\\ud800": 1}'],
)  # fmt: skip
def test_json_that_is_none_or_unknown_is_refused_in_words(service, body):
    person = service.person("ann")
    answer = person.http.post("/api/next", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("key", ["", "short", "x" * 81, "with a space", "tab\tkey-key", "\u0000" * 10, "\ud800" * 10, 5, None])
def test_a_key_that_is_none_is_refused(service, key):
    service.store.ask([pair()])
    person = service.person("ann")
    assert person.submit(person.next(), key=key).status_code == 400


def test_a_null_character_in_a_text_is_kept_as_it_is(service):
    service.store.ask([pair()])
    person = service.person("ann")
    assert person.submit(person.next(), {"response": 0, "text": "a\u0000b"}, "critique").status_code == 200
    assert service.store.events()[0].body["text"] == "a\u0000b"


@pytest.mark.parametrize("name", ["", "x" * 61, "a b", "a\u0000", "\ud800", "<b>", "=1+1", "a\n"])
def test_a_name_that_cannot_be_shown_safely_is_refused(service, name):
    admin = service.person("root", "admin")
    answer = admin.post("/api/admin/annotators", name=name)
    assert answer.status_code == 400
    assert [annotator.name for annotator in service.store.annotators()] == ["root"]


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/", "/api/next/", "/static/", "/static/../service/app.py",
                                  "/static/%2e%2e%2fstore.py", "/static/base.html.jinja", "/static/x/y.css", "/invite/", "//",
                                  "/%00", "/api/me%00", "/Sign-In"])  # fmt: skip
def test_unknown_paths_and_files_are_not_found(service, path):
    answer = talk(service, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"Traceback" not in answer


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/api/next", "POST"), ("DELETE", "/api/me", "GET"), ("PUT", "/sign-in", "GET, POST"), ("TRACE", "/health", "GET")],
)
def test_another_method_is_refused_with_those_that_are_allowed(service, method, path, allowed):
    answer = service.person("ann").http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_everything_carries_the_content_policy(service):
    person = service.person("root", "admin")
    paths = ("/", "/sign-in", "/api/me", "/static/base.css", "/nothing", "/health", "/invite/x", "/api/admin/annotators")
    for path in paths:
        headers = person.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if path.startswith("/static") else "no-store")


def test_files_of_the_page_are_sent_again_only_when_they_changed(service):
    with service.client() as client:
        first = client.get("/static/base.css")
        assert first.headers["content-type"] == "text/css; charset=utf-8"
        assert client.get("/static/base.css", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_pages_show_names_as_text(service):
    with service.client() as client:
        answer = sign_in(client, '"><script>alert(1)</script>')
        assert answer.status_code == 401
        assert "<script>alert" not in answer.text


def test_people_read_refusals_as_pages_and_programs_as_json(service):
    person = service.person("ann")
    assert "text/html" in person.get("/admin").headers["content-type"]
    assert "text/html" in person.http.get("/nothing", headers={"Accept": "text/html"}).headers["content-type"]
    assert person.get("/nothing").json()["error"]["code"] == "not_found"


def test_csv_cells_cannot_be_formulas(service):
    service.store.ask([pair("=HYPERLINK(1)", overlap=1), pair("b", overlap=1)])
    admin = service.person("root", "admin")
    for _ in range(2):
        task = admin.next()
        admin.submit(task, {"response": 0, "text": "=cmd|' /C calc'!A0"}, "edit")
        admin.submit(task)
    answer = admin.get("/api/admin/export?form=corrections&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert "\"'=cmd|' /C calc'!A0\"" in answer.text
    assert '"=' not in answer.text


def test_a_store_that_does_not_answer_is_no_fault_of_the_client(service, monkeypatch):
    def broken(*_, **__):
        raise StoreUnavailable("feedback store /secret/place/feedback.db: disk I/O error")

    person = service.person("ann")
    monkeypatch.setattr(Store, "next_task", broken)
    answer = person.post("/api/next")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "/secret/place" not in answer.text


def test_behind_a_proxy_the_address_is_the_one_that_it_wrote_last(serve, monkeypatch):
    service = serve(local=False, https=True, forwarded=True)
    service.enrol("ann")
    tried = []
    monkeypatch.setattr(Throttle, "begin", lambda self, name, address, browser: tried.append(address))
    with service.client(headers={"X-Forwarded-For": "10.9.9.9, 203.0.113.7"}) as client:
        form = client.get("/sign-in")
        cookie = form.headers["set-cookie"].partition(";")[0]
        client.post("/sign-in", headers={"Cookie": cookie}, data={"name": "ann", "password": "no", "csrf": csrf_of(form)})
    assert tried == ["203.0.113.7"]


def test_a_person_is_answered_while_a_report_is_computed(service, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(store, project):
        begun.set()
        assert go_on.wait(20)
        raise ZeroDivisionError

    monkeypatch.setattr(admin_module, "overview", slow)
    admin, person = service.person("root", "admin"), Person(service, "root")
    asking = threading.Thread(target=admin.get, args=("/api/admin/overview",))
    asking.start()
    assert begun.wait(20)
    assert person.post("/api/next").status_code == 200
    go_on.set()
    asking.join()
    assert json.loads(person.get("/health").text) == {}


def test_cookies_of_other_services_of_the_same_host_do_no_harm(service):
    person = service.person("ann")
    session = person.http.cookies.get(SESSION)
    for others in ("a/b=c", "=", "expires=1; ;;", 'x="unfinished', "\xff=\xfe", f"{SESSION}x=y"):
        with service.client(headers={"Cookie": f"{others}; {SESSION}={session}".encode("latin-1")}) as client:
            assert client.get("/api/me").status_code == 200


def test_tries_are_counted_for_what_one_customer_has():
    assert block_of("203.0.113.7") == "203.0.113.7"
    assert block_of("2001:db8:1:2:3:4:5:6") == block_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert block_of("2001:db8:1:3::9") != block_of("2001:db8:1:2::9")
    assert block_of("unknown") == "unknown"
    assert block_of("::ffff:203.0.113.7") == "203.0.113.7"  # or one of them could lock out all who come by IPv4


@pytest.mark.parametrize(
    ("role", "seen"), [("annotator", [200, 403, 403]), ("adjudicator", [200, 200, 403]), ("admin", [200, 200, 200])]
)
def test_every_page_opens_for_those_it_is_for(service, role, seen):
    person = service.person("zoe", role)
    pages = [person.get(path) for path in ("/", "/adjudicate", "/admin")]
    assert [page.status_code for page in pages] == seen
    for page in pages:
        assert "<script>" not in page.text
        assert " style=" not in page.text
        assert ("zoe" in page.text) == (page.status_code == 200)
    assert f'<meta name="csrf" content="{person.http.headers["X-CSRF-Token"]}">' in pages[0].text


def test_a_stranger_is_refused_before_a_byte_of_the_body_is_read(service):
    """A session that was never given, and a body that never comes: 401 at once, and not 408 after the body's deadline."""
    with socket.create_connection(("127.0.0.1", service.desk.port), timeout=20) as connection:
        head = f"POST /api/submit HTTP/1.1\r\nHost: 127.0.0.1:{service.desk.port}\r\nContent-Type: application/json\r\n"
        cookie = f"Cookie: penstock_session={'x' * 43}\r\nContent-Length: 100000\r\n\r\n"
        connection.sendall((head + cookie).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


def test_head_is_answered_like_get_without_a_body(service):
    answer = httpx.head(f"{service.desk.url}/sign-in")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/corrections"])
@pytest.mark.parametrize("token", ["", "Authorization: Bearer penstock_product_" + "0" * 48])
def test_a_product_without_its_token_is_refused_before_a_byte_of_the_body_is_read(service, path, token):
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 100000"]
    with socket.create_connection(("127.0.0.1", service.desk.port), timeout=20) as connection:
        connection.sendall(("\r\n".join([*lines, *filter(None, [token])]) + "\r\n\r\n").encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


def test_only_routes_that_take_texts_read_more_than_16_kilobytes(service):
    large = {path for path, methods in service.app.routes.items() for route in methods.values() if route.most > 16 << 10}
    assert large == {"/api/submit", "/api/admin/ask", "/api/admin/project", "/v1/feedback", "/v1/corrections"}
    person = service.person("ann")
    assert person.post("/api/next", purpose="x" * (16 << 10)).status_code == 413
