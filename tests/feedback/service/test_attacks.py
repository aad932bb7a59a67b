"""What a hostile page, client or annotator may try, over real HTTP."""

import json
import socket
import threading

import pytest
from feedback_examples import pair
from served import PASSWORD, Person, csrf_of, refusal

from penstock.feedback.errors import StoreUnavailable
from penstock.feedback.records import Annotator
from penstock.feedback.service import admin as admin_module
from penstock.feedback.service.calls import SESSION
from penstock.feedback.service.throttle import Throttle
from penstock.feedback.store import Store


def head(person, path, *more):
    cookie = person.http.cookies.get(SESSION)
    lines = [f"POST {path} HTTP/1.1", f"Host: localhost:{person.http.base_url.port}", f"Cookie: {SESSION}={cookie}"]
    lines += [f"X-CSRF-Token: {person.http.headers['X-CSRF-Token']}", "Content-Type: application/json", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost.evil.example", "null", "http://127.0.0.1:1"])
def test_a_page_of_another_site_is_refused(service, origin, person):
    assert refusal(person.http.post("/api/next", json={}, headers={"Origin": origin})) == (403, "foreign_origin")


def test_a_page_of_another_site_cannot_sign_anybody_in_or_out(service, person, client):
    service.enrol("mallory")
    foreign = {"Origin": "https://evil.example"}
    csrf = person.http.headers["X-CSRF-Token"]
    assert person.http.post("/sign-out", data={"csrf": csrf}, headers=foreign).status_code == 403
    form = {"name": "mallory", "password": PASSWORD, "csrf": csrf_of(client.get("/sign-in"))}
    assert client.post("/sign-in", data=form, headers=foreign).status_code == 403
    assert person.get("/api/me").status_code == 200


def test_our_own_origin_is_let_through(service, person):
    assert person.http.post("/api/next", json={}, headers={"Origin": service.desk.url}).status_code == 200


@pytest.mark.parametrize("token", [None, "", "0" * 64, "ü", "another's"])
def test_an_act_without_the_token_of_the_session_is_refused(service, token, person):
    if token == "another's":
        token = service.person("bob").http.headers["X-CSRF-Token"]
    del person.http.headers["X-CSRF-Token"]
    headers = {} if token is None else {"X-CSRF-Token": token.encode()}
    assert refusal(person.http.post("/api/next", json={}, headers=headers)) == (403, "csrf")
    form = {} if token is None else {"csrf": token}
    assert person.http.post("/sign-out", data=form).status_code in (403, 415)  # without a field it is no form at all
    assert person.get("/api/me").status_code == 200


def test_the_sign_in_form_needs_the_cookie_that_it_was_made_for(service):
    service.enrol("ann")
    with service.client() as client, service.client() as other:
        csrf = csrf_of(other.get("/sign-in"))
        form = {"name": "ann", "password": PASSWORD, "csrf": csrf}
        assert client.post("/sign-in", data=form).status_code == 403
        assert SESSION not in client.cookies
        assert other.post("/sign-in", data=form).status_code == 303


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""])
def test_a_form_is_not_read_as_json(service, kind, person):
    """Browsers send these across sites without asking first."""
    assert person.http.post("/api/next", content=b"{}", headers={"Content-Type": kind}).status_code == 415


def test_json_is_not_read_as_a_form(client):
    assert client.post("/sign-in", json={"name": "ann", "password": PASSWORD}).status_code == 415


def test_behind_a_proxy_other_names_are_served(serve):
    service = serve(local=False, https=True)
    with service.client() as client:
        assert client.get("/health", headers={"Host": "annotate.example"}).status_code == 200


def test_a_gigabyte_that_is_announced_is_not_waited_for(service, person):
    answer = service.says(head(person, "/api/submit", "Content-Length: 1073741824"), b"{")
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


def test_a_large_form_is_refused(client):
    assert client.post("/sign-in", data={"name": "x" * (17 << 10)}).status_code == 413


def test_a_slow_body_is_given_up(service, person):
    answer = service.says(head(person, "/api/submit", "Content-Length: 100"), b'{"key": ')
    assert answer.startswith(b"HTTP/1.1 408 ")


def asked(http, path, method, route):
    if method == "GET":
        return http.get(path)
    if route.body == "form":
        return http.post(path, data={"csrf": http.headers.get("X-CSRF-Token", "x")})
    return http.post(path, json={})


def test_every_route_but_a_few_needs_a_sign_in(service, client):
    found = service.routes("signed in", "adjudicator", "admin")
    assert len(found) > 15
    for path, method, route in found:
        answer = asked(client, path, method, route)
        assert answer.status_code == (303 if route.page else 401), path
    anyone = service.routes("anyone")
    for path, method, route in anyone:
        if path.startswith("/v1/") or path == "/metrics":  # for products and Prometheus, which send a token
            assert asked(client, path, method, route).status_code == 401, path
    own = {path for path, _, _ in anyone if not path.startswith("/v1/")}
    assert own == {"/sign-in", "/invite/{secret}", "/static/{file}", "/health", "/metrics"}


def test_every_act_needs_the_token_of_its_session(service, admin):
    admin.http.headers["X-CSRF-Token"] = "0" * 64
    for path, method, route in service.routes("signed in", "adjudicator", "admin"):
        if method == "POST" and route.body != "form":
            assert refusal(asked(admin.http, path, method, route)) == (403, "csrf"), path


@pytest.mark.parametrize(("role", "closed"), [("annotator", ("adjudicator", "admin")), ("adjudicator", ("admin",))])
def test_an_annotator_has_no_rights_of_administrators(service, role, closed):
    person = service.person("ann", role)
    found = service.routes(*closed)
    assert found
    for path, method, route in found:
        assert asked(person.http, path, method, route).status_code == 403, path


def test_a_role_that_is_taken_away_ends_at_once(service):
    person = service.person("ann", "admin")
    assert person.get("/api/admin/annotators").status_code == 200
    service.store.enrol(Annotator("ann", "annotator"))
    assert person.get("/api/admin/annotators").status_code == 403


def test_who_is_switched_off_is_signed_out(admin, person):
    assert admin.post("/api/admin/annotators", name="ann", enabled=False).status_code == 200
    assert person.get("/api/me").status_code == 401
    assert admin.post("/api/admin/annotators", name="ann", enabled=True).status_code == 200
    assert person.get("/api/me").status_code == 401  # their sessions have ended, not paused


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"x"', b"{", b"{}{}", b'{"a": NaN}', b"\xff\xfe{}", b"[" * 10_000, b'{"purpose": 1}', b'{"x": 1}',
     b'{"purpose": "\\ud800"}', b'{"\\ud800": 1}'],
)  # fmt: skip
def test_json_that_is_none_or_unknown_is_refused_in_words(service, body, person):
    answer = person.http.post("/api/next", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("key", ["", "short", "x" * 81, "with a space", "tab\tkey-key", "\u0000" * 10, "\ud800" * 10, 5, None])
def test_a_key_that_is_none_is_refused(ann, shown, key):
    assert ann.submit(shown, key=key).status_code == 400


def test_a_null_character_in_a_text_is_kept_as_it_is(service, ann, shown):
    assert ann.submit(shown, {"response": 0, "text": "a\u0000b"}, "critique").status_code == 200
    assert service.store.events()[0].body["text"] == "a\u0000b"


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/", "/api/next/", "/static/", "/static/../service/app.py",
                                  "/static/%2e%2e%2fstore.py", "/static/base.html.jinja", "/static/x/y.css", "/invite/", "//",
                                  "/%00", "/api/me%00", "/Sign-In"])  # fmt: skip
def test_unknown_paths_and_files_are_not_found(service, path):
    answer = service.says(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"Traceback" not in answer


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/api/next", "POST"), ("DELETE", "/api/me", "GET"), ("PUT", "/sign-in", "GET, POST"), ("TRACE", "/health", "GET")],
)
def test_another_method_is_refused_with_those_that_are_allowed(service, method, path, allowed):
    answer = service.person("ann").http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_everything_carries_the_content_policy(admin):
    paths = ("/", "/sign-in", "/api/me", "/static/base.css", "/nothing", "/health", "/invite/x", "/api/admin/annotators")
    for path in paths:
        headers = admin.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if path.startswith("/static") else "no-store")


def test_files_of_the_page_are_sent_again_only_when_they_changed(client):
    first = client.get("/static/base.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    assert client.get("/static/base.css", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_people_read_refusals_as_pages_and_programs_as_json(service, person):
    assert "text/html" in person.get("/admin").headers["content-type"]
    assert "text/html" in person.http.get("/nothing", headers={"Accept": "text/html"}).headers["content-type"]
    assert person.get("/nothing").json()["error"]["code"] == "not_found"


def test_csv_cells_cannot_be_formulas(service, admin):
    service.store.ask([pair("=HYPERLINK(1)", overlap=1), pair("b", overlap=1)])
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


def test_cookies_of_other_services_of_the_same_host_do_no_harm(service, person):
    session = person.http.cookies.get(SESSION)
    for others in ("a/b=c", "=", "expires=1; ;;", 'x="unfinished', "\xff=\xfe", f"{SESSION}x=y"):
        with service.client(headers={"Cookie": f"{others}; {SESSION}={session}".encode("latin-1")}) as client:
            assert client.get("/api/me").status_code == 200


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


def answer_to_a_head(service, path, *more):
    """What a stranger is told who has announced a body and sends nothing of it: 401 at once, and not 408 after a deadline."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 100000", *more]
    with socket.create_connection(("127.0.0.1", service.desk.port), timeout=20) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return connection.recv(100)


@pytest.mark.parametrize("session", [[], [f"Cookie: {SESSION}={'x' * 43}"]], ids=["none", "never given"])
def test_a_stranger_is_refused_before_a_byte_of_the_body_is_read(service, session):
    assert answer_to_a_head(service, "/api/submit", *session).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/corrections"])
@pytest.mark.parametrize("token", [[], ["Authorization: Bearer penstock_product_" + "0" * 48]], ids=["none", "unknown"])
def test_a_product_without_its_token_is_refused_before_a_byte_of_the_body_is_read(service, path, token):
    assert answer_to_a_head(service, path, *token).startswith(b"HTTP/1.1 401")


def test_only_routes_that_take_texts_read_more_than_16_kilobytes(service):
    large = {path for path, methods in service.app.routes.items() for route in methods.values() if route.most > 16 << 10}
    assert large == {"/api/submit", "/api/admin/ask", "/api/admin/project", "/v1/feedback", "/v1/corrections"}
    person = service.person("ann")
    assert person.post("/api/next", purpose="x" * (16 << 10)).status_code == 413
