"""``penstock feedback``: what it prints, what it refuses, and the real server in a process of its own."""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys

import httpx
import pytest
from feedback_examples import answers, asked, enrol, gold, pair

from penstock.feedback.store import Store

GIVEN = '{"prompt": "p", "chosen": "a", "rejected": "b"}\n{"prompt": "q", "chosen": "c", "rejected": "d"}\n'


@pytest.fixture
def place(empty_store, tmp_path):
    path = shutil.copy(empty_store, tmp_path / "votes.db")
    with Store.open(path) as store:
        enrol(store, "ann", "bob")
        enrol(store, "root", role="admin")
    return path


@pytest.fixture
def given(tmp_path):
    """A file with two preferences."""
    path = tmp_path / "given.jsonl"
    path.write_text(GIVEN)
    return path


def test_the_first_administrator_makes_the_store(run, tmp_path):
    place = tmp_path / "new.db"
    exit_code, out, _ = run("enrol", place, "root", "--role", "admin")
    assert exit_code == 0
    assert re.fullmatch(r"/invite/[0-9a-f]+-[\w-]{32}\n", out)
    with Store.open(place) as store:
        (root,) = store.annotators()
    assert (root.name, root.role, root.password) == ("root", "admin", "")
    assert root.invite not in out


@pytest.mark.parametrize(("name", "role"), [("root", "king"), ("", "admin"), ("a" * 61, "admin")])
def test_a_wrong_name_or_role_makes_no_store(run, tmp_path, name, role):
    assert run("enrol", tmp_path / "new.db", name, "--role", role)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_enrolling_again_makes_a_new_link(run, place):
    first, second = (run("enrol", place, "eve")[1] for _ in range(2))
    assert first != second
    assert run("enrol", place, "eve", "--role", "admin")[0] == 2


def test_imported_items_are_put_to_people_once(run, place, given):
    said = [run("import", place, "trl", given, "--annotator", "old", "--ask", "3")[1] for _ in range(2)]
    assert [line.rsplit("; ", 1)[1] for line in said] == ["2 questions for people\n", "0 questions for people\n"]
    with Store.open(place) as store:
        opened = [task for task in asked(store) if task.overlap == 3]
    assert [(task.item.prompt, task.guideline, task.round) for task in opened] == [("p", "1", "people"), ("q", "1", "people")]


def test_a_person_is_excluded_and_counts_again(run, place):
    with Store.open(place) as store:
        answers(store, store.ask([pair("a"), pair("b")]), "ann")
    at = ("--by", "root", "--reason", "answers at random")
    assert run("exclude", place, "ann", *at, "--until", "2020-01-01")[1] == "event 3: 2 of 2 judgements of ann count\n"
    assert run("exclude", place, "ann", *at)[1] == "event 4: 0 of 2 judgements of ann count\n"
    assert run("include", place, "4", *at)[1] == "event 5: ann counts again\n"
    assert run("verify", place)[1].startswith("5 events, 2 judgements in force")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("exclude", "ann", "--by", "ann", "--reason", "x"), "administrator"),
        (("exclude", "nobody", "--by", "root", "--reason", "x"), "no annotator"),
        (("exclude", "ann", "--by", "root", "--reason", " "), "say why"),
        (("exclude", "ann", "--by", "root", "--reason", "x", "--since", "yesterday"), "give a time"),
        (("exclude", "ann", "--by", "root", "--reason", "x", "--since", "2026-11-23", "--until", "2026-11-01"), "ends before"),
        (("include", "7", "--by", "root", "--reason", "x"), "no exclusion"),
        (("include", "7", "--by", "root", "--reason", " "), "say why"),
        (("demote", "a-task", "--by", "root", "--reason", " "), "say why"),
    ],
)
def test_a_wrong_exclusion_is_one_line_and_changes_nothing(run, place, words, why):
    exit_code, _, said = run(words[0], place, *words[1:])
    assert (exit_code, said.count("\n")) == (2, 1)
    assert why in said
    with Store.open(place) as store:
        assert store.length() == 0


def test_votes_are_imported_counted_verified_and_exported(run, place, given, tmp_path):
    out = tmp_path / "rows.csv"
    assert run("import", place, "trl", given, "--annotator", "old") == (0, "2 new judgements of 2 tasks, by old\n", "")
    assert run("import", place, "trl", given, "--annotator", "old")[1].startswith("0 new")
    exit_code, said, _ = run("export", place, "--out", out)
    assert (exit_code, said.startswith("wrote 2 rows after 2 events to ")) == (0, True)
    assert out.read_text().count("\n") == 3
    assert run("verify", place)[1] == "2 events, 2 judgements in force; the tables agree with the log\n"
    assert run("migrate", place)[0] == 0
    status = run("status", place)[1]
    assert "2 events" in status
    assert "imported" in status


def test_the_status_shows_gold_and_agreement(run, place):
    with Store.open(place) as store:
        first, *others = store.ask([*(pair(str(number)) for number in range(3)), gold()])
        answers(store, [first], "ann", "bob", preference=-1)
        answers(store, others, "ann", "bob")
    status = run("status", place)[1]
    assert "agreement on overall: 1.00" in status
    assert "100% of 1" in status


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("srve",), 'unknown command "feedback srve"; did you mean "serve"'),
        (("serve",), "STORE"),
        (("serve", "no.db"), "there is no store no.db; the first administrator makes one: penstock feedback enrol"),
        (("status", "no.db"), "there is no store no.db"),
        (("verify", "PLACE", "more"), 'penstock feedback verify takes no "more"'),
        (("serve", "PLACE", "--prot", "1"), "--port"),
        (("serve", "PLACE", "--host", "0.0.0.0"), "passwords would travel in the clear"),
        (("serve", "PLACE", "--certificate", "c.pem"), "--certificate and --key go together"),
        (("serve", "PLACE", "--port", "0", "--certificate", "c.pem", "--key", "k.pem"), "certificate"),
        (("serve", "PLACE", "--port", "99999"), "choose another"),
        (("serve", "PLACE", "--lease-seconds", "0"), "lease_seconds must be positive"),
        (("serve", "PLACE", "--gold-share", "0.9"), "at most one half"),
        (("serve", "PLACE", "--guideline", "none.md"), "--guideline none.md: No such file"),
        (("enrol", "PLACE", "ann", "--role", "king"), "invalid choice 'king'"),
        (("enrol", "PLACE", "a b"), "use 1 to 120 letters"),
        (("enrol", "/nowhere/at/all.db", "ann"), "there is no folder"),
        (("import", "PLACE", "csv", "f"), "invalid choice 'csv'"),
        (("import", "PLACE", "trl", "none.jsonl"), "none.jsonl"),
        (("import", "PLACE", "trl", "none.parquet"), "none.parquet: there is no such file"),
        (("import", "PLACE", "trl", "f.jsonl", "--most", "-5"), "--most -5"),
        (("import", "PLACE", "trl", "f.jsonl", "--ask", "99999999999999999999"), "--ask 99999999999999999999"),
        (("effect", "PLACE", "shp"), "there is no tenant 'shp'"),
        (("export", "PLACE"), "--out FILE"),
        (("export", "PLACE", "--out", "x.jsonl"), "no rows"),
        (("export", "PLACE", "--out", "x.exe", "--form", "pairs"), ".exe"),
    ],
)
def test_wrong_input_is_one_clear_line(run, place, words, said):
    exit_code, out, error = run(*(place if word == "PLACE" else word for word in words))
    assert (exit_code, out, error.count("\n")) == (2, "", 1)
    assert said in error


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": 5, "chosen": "a", "rejected": "b"}, "not of TRL's preference format"),
        ({"prompt": None, "chosen": "a", "rejected": "b"}, "not of TRL's preference format"),
        ({"prompt": "p", "chosen": "a", "rejected": 3}, "not of TRL's preference format"),
        ({"prompt": [], "chosen": [{"content": None}], "rejected": [{"content": "b"}]}, "not of TRL's"),
        ({"prompt": "p", "chosen": "a" * 200_001, "rejected": "b"}, "200000 is the most"),
        ({"fields": ["p", "a", "b"]}, "fields="),
    ],
)
def test_a_row_that_cannot_be_imported_is_named_by_its_line_and_makes_no_store(run, tmp_path, row, said):
    (tmp_path / "rows.jsonl").write_text("\n" + json.dumps(row) + "\n")
    kind = "argilla" if "fields" in row else "trl"
    exit_code, _, error = run("import", tmp_path / "f.db", kind, tmp_path / "rows.jsonl")
    assert (exit_code, error.count("\n")) == (2, 1)
    assert said in error
    assert ("rows.jsonl:2: " in error) == ("most" not in said)
    assert not (tmp_path / "f.db").exists()


def test_an_import_under_a_name_that_cannot_be_makes_no_store(run, tmp_path, given):
    assert run("import", tmp_path / "f.db", "trl", given, "--annotator", "a b")[0] == 2
    assert not (tmp_path / "f.db").exists()


def test_a_damaged_parquet_file_is_one_clear_line(run, tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    (tmp_path / "rows.parquet").write_text("nope")
    exit_code, _, error = run("import", tmp_path / "f.db", "trl", tmp_path / "rows.parquet")
    assert (exit_code, error.count("\n")) == (2, 1)
    assert "no readable Parquet" in error


def test_an_empty_file_does_not_become_a_store(run, tmp_path):
    (tmp_path / "f.db").touch()
    for words in (("status", tmp_path / "f.db"), ("enrol", tmp_path / "f.db", "ann")):
        exit_code, _, error = run(*words)
        assert exit_code == 2
        assert "an empty file, no store" in error
    assert (tmp_path / "f.db").stat().st_size == 0


def test_help_says_what_there_is(run):
    assert run()[1].startswith("usage: penstock feedback ")
    assert run("serve", "--help")[0] == 0


class Process:
    """``penstock feedback serve`` in a process of its own, once it serves."""

    def __init__(self, *words):
        code = "import sys; from penstock.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "feedback", "serve", *map(str, words), "--port", "0"], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.line = self.process.stdout.readline()
        assert self.line, self.process.stderr.read()
        self.url = re.search(r"https?://\S+", self.line)[0]

    def end(self, number=signal.SIGTERM):
        """Exit code, and everything it said."""
        self.process.send_signal(number)
        try:
            out, error = self.process.communicate(timeout=120)
        finally:
            self.process.kill()
        return self.process.returncode, self.line + out + error


def accept(client, link, password="a good long password"):
    csrf = re.search(r'name="csrf" value="(\w+)"', client.get(link).text)[1]
    return client.post(link, data={"password": password, "csrf": csrf})


def test_a_session_and_a_task_survive_a_kill_of_the_server(run, place):
    with Store.open(place) as store:
        store.ask([pair()])
    link = run("enrol", place, "ann")[1].strip()
    server = Process(place)
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        assert accept(client, link).status_code == 303
        cookies, csrf = dict(client.cookies), client.get("/api/me").json()["csrf"]
        task = client.post("/api/next", json={}, headers={"X-CSRF-Token": csrf}).json()["task"]
    _, said = server.end(signal.SIGKILL)
    again = Process(place)
    with httpx.Client(base_url=again.url, trust_env=False, cookies=cookies, headers={"X-CSRF-Token": csrf}) as client:
        assert client.get("/api/held").json()["tasks"][0]["id"] == task["id"]
        vote = {"key": "a-key-of-a-test", "task": task["id"], "kind": "vote", "body": {"preference": 2}}
        assert client.post("/api/submit", json=vote).json() == {"event": 1, "done": 1}
    exit_code, more = again.end()
    assert exit_code == 0
    for secret in (link.removeprefix("/invite/"), csrf, *cookies.values(), "a good long password"):
        assert secret not in said + more
    with Store.open(place) as store:
        assert len(store.verify().judgements()) == 1


def test_by_a_certificate_of_its_own_it_speaks_https_and_cookies_are_secure(run, place, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    link = run("enrol", place, "ann")[1].strip()
    server = Process(place, "--certificate", certificate, "--key", key)
    trusted = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=server.url, trust_env=False, verify=trusted) as client:
        answered = accept(client, link)
        assert answered.status_code == 303
        assert "Secure" in answered.headers["set-cookie"]
        assert client.get("/api/me").status_code == 200
    with pytest.raises(httpx.HTTPError), httpx.Client(trust_env=False) as client:
        client.get(server.url.replace("https", "http") + "/health").raise_for_status()
    assert server.end()[0] == 0
