"""``penstock feedback`` about people, exports, backups and the leaderboard."""

import io
import json
import os
import sqlite3
import sys
import threading

import pytest
from feedback_examples import answer, enrol, pair, vote
from served import QUICK

from penstock.cli.main import main
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.backup import backup
from penstock.feedback.records import Annotator, Item, Response, Submission, Task
from penstock.feedback.service import passwords
from penstock.feedback.store import Store


@pytest.fixture
def place(tmp_path):
    with Store.open(tmp_path / "votes.db") as store:
        enrol(store, "ann", "bob")
        store.enrol(Annotator("root", role="admin"))
        for name in ("a", "b"):
            [task] = store.ask([pair(name)])
            answer(store, task, "ann", 1)
            answer(store, task, "bob", 1)
    return tmp_path / "votes.db"


def run(capsys, *words):
    """Exit code, output and errors of ``penstock feedback``."""
    exit_code = main(["feedback", *map(str, words)])
    said = capsys.readouterr()
    return exit_code, said.out, said.err


def test_role_quota_and_switch_change(capsys, place):
    assert (
        run(capsys, "account", place, "ann", "--role", "adjudicator", "--quota", "7")[1] == "ann: adjudicator, on, 7 answers\n"
    )
    assert run(capsys, "account", place, "ann", "--switch", "off")[1] == "ann: adjudicator, off, 7 answers\n"


def test_a_password_is_read_from_standard_input(capsys, place, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a good long password\n"))
    assert run(capsys, "account", place, "ann", "--password")[0] == 0
    with Store.open(place) as store:
        assert passwords.Passwords().same(store.annotator("ann").password, "a good long password")
        assert QUICK.made("another password") != store.annotator("ann").password


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("ann",), "say what changes"),
        (("root", "--role", "annotator"), "the only administrator"),
        (("root", "--switch", "off"), "the only administrator"),
        (("nobody", "--role", "admin"), "no person"),
        (("ann", "--quota", "-1"), "quota=-1"),
    ],
)
def test_changes_that_cannot_be_are_refused(capsys, place, words, why):
    exit_code, _, error = run(capsys, "account", place, *words)
    assert exit_code == 2
    assert why in error
    with Store.open(place) as store:
        assert [(who.role, who.enabled) for who in store.annotators()] == [("annotator", True)] * 2 + [("admin", True)]


def test_an_annotator_is_switched_off_also_where_there_is_none(capsys, tmp_path):
    with Store.open(tmp_path / "f.db") as store:
        enrol(store, "ann")
    assert run(capsys, "account", tmp_path / "f.db", "ann", "--switch", "off")[0] == 0


def test_a_person_is_deleted_by_command(capsys, place):
    assert run(capsys, "forget", place, "ann", "--by", "root", "--votes", "remove")[1].startswith("ann is deleted")
    assert run(capsys, "verify", place)[1].startswith("4 events, 2 judgements in force")
    assert run(capsys, "forget", place, "bob", "--by", "bob", "--votes", "keep")[0] == 2


def test_votes_are_exported_by_pseudonyms_or_names(capsys, place, tmp_path):
    out = tmp_path / "votes.jsonl"
    names = []
    for words in ((), (), ("--names",)):
        assert run(capsys, "export", place, "--form", "votes", "--out", out, *words)[0] == 0
        names.append([json.loads(line)["annotator"] for line in out.read_text().splitlines()])
    assert names[0] == names[1]
    assert len(set(names[0])) == 2
    assert "ann" not in names[0]
    assert names[2] == ["ann", "bob", "ann", "bob"]


def test_formats_of_others_go_out_and_come_back(capsys, place, tmp_path):
    assert run(capsys, "export", place, "--format", "trl", "--out", tmp_path / "trl.jsonl")[0] == 0
    first = json.loads((tmp_path / "trl.jsonl").read_text().splitlines()[0])
    assert first["chosen"] == [{"role": "assistant", "content": "first a"}]
    assert run(capsys, "export", place, "--format", "argilla", "--out", tmp_path / "records.json")[0] == 0
    assert run(capsys, "import", tmp_path / "other.db", "argilla", tmp_path / "records.json")[1].startswith(
        "4 new judgements of 2"
    )
    assert run(capsys, "ask", place, tmp_path / "trl.jsonl", "--round", "2")[1].startswith("2 new questions")
    assert run(capsys, "export", place, "--format", "trl", "--form", "votes", "--out", tmp_path / "x.jsonl")[0] == 2


def test_a_backup_is_whole_and_private_and_nothing_is_overwritten(capsys, place, tmp_path):
    out = tmp_path / "copy.db"
    assert run(capsys, "backup", place, out)[1] == f"backed up 4 events to {out}\n"
    assert out.stat().st_mode & 0o777 == 0o600
    with Store.open(out) as store:
        assert len(store.verify().judgements()) == 4
    assert run(capsys, "backup", place, out)[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "votes.db"]


def test_a_backup_while_votes_come_in_is_one_moment_of_the_store(place, tmp_path):
    ended = threading.Event()

    def busy():
        with Store.open(place) as store:
            count = 0
            while not ended.is_set():
                [task] = store.ask([pair(f"busy {count}")])
                store.hand_out(task, "ann")
                store.submit(vote(task, "ann", f"busy {count}".replace(" ", "-"), 1))
                count += 1

    worker = threading.Thread(target=busy)
    worker.start()
    lengths = [backup(str(place), tmp_path / f"copy {number}.db") for number in range(5)]
    ended.set()
    worker.join()
    for number, length in enumerate(lengths):
        with Store.open(tmp_path / f"copy {number}.db") as store:
            assert len(store.verify().judgements()) == store.length() == length


def test_a_backup_of_postgresql_is_pg_dumps(capsys, tmp_path):
    exit_code, _, error = run(capsys, "backup", "postgresql://u@h/n", tmp_path / "x.dump")
    assert exit_code == 2
    assert "pg_dump --format=custom" in error


def test_a_damaged_store_gives_no_backup(place, tmp_path):
    content = bytearray(place.read_bytes())
    content[8192:12288] = os.urandom(4096)
    place.write_bytes(content)
    with pytest.raises(FeedbackError, match=r"damaged|no backup was made"):
        backup(str(place), tmp_path / "copy.db")
    assert sqlite3.sqlite_version
    assert not (tmp_path / "copy.db").exists()


def test_models_are_ranked_by_what_people_prefer(capsys, place):
    with Store.open(place) as store:
        for number in range(8):
            item = Item(
                f"m{number}", (Response(f"x{number}", run="r", stage="s", version=3), Response(f"y{number}", source="old"))
            )
            [task] = store.ask([Task(item=item, overlap=2)])
            for name in ("ann", "bob"):
                answer(store, task, name, 1 if number else -1)
    exit_code, out, _ = run(capsys, "leaderboard", place, "--samples", "50")
    assert exit_code == 0
    first, second = out.splitlines()
    assert first.startswith("1. r/s version 3: +")
    assert first.endswith("won 14 of 16")
    assert second.startswith("2. old: -")


def test_pairs_to_promote_are_listed_first(capsys, place):
    assert run(capsys, "promote", place)[1] == "0 pairs could be gold; --by ADMIN makes them so\n"


def test_a_project_is_made_asked_in_and_exported_by_commands(capsys, place, tmp_path):
    guideline, questions = tmp_path / "law.md", tmp_path / "q.jsonl"
    guideline.write_text("# Law", encoding="utf-8")
    questions.write_text('{"prompt": "p", "response": "r"}\n', encoding="utf-8")
    words = ("--forms", "rating", "--axes", "right,kind", "--scale", "1,5", "--overlap", "1", "--qualify", "0", "--pause", "on")
    made = run(capsys, "project", place, "legal", "--new", "--add", "ann", *words)
    assert (made[0], made[1].splitlines()[0]) == (0, "legal: forms: rating; 1 answer per question")
    run(capsys, "project", place, "legal", "--guideline", guideline, "--guideline-version", "a")
    assert run(capsys, "project", place)[1] == "default: 2 tasks, 3 members\nlegal: 0 tasks, 1 member\n"
    assert run(capsys, "ask", place, questions, "--project", "legal")[1].startswith("1 new question (the file has 1 rating)")
    with Store.open(place) as store:
        lease = store.next_task("ann", project="legal")
        task = store.task(lease.task)
        assert (task.axes, task.scale, task.overlap, task.guideline) == (("right", "kind"), (1.0, 5.0), 1, "a")
        assert store.project("legal").policy == {"qualify": 0, "pause": True}
        body = {"scores": {"right": [5], "kind": [4]}}
        store.submit(Submission("rating", task.id, "ann", "key", body))
    counts = {}
    for name in ("default", "legal"):
        out = tmp_path / f"{name}.jsonl"
        assert run(capsys, "export", place, "--project", name, "--form", "votes", "--out", out)[0] == 0
        counts[name] = len(out.read_text().splitlines())
    assert counts == {"default": 4, "legal": 1}
    assert "5 events" in run(capsys, "status", place, "--project", "legal")[1]
    assert "members: nobody" in run(capsys, "project", place, "legal", "--remove", "ann")[1]


def test_with_several_projects_a_command_says_which_and_refuses(capsys, place, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"prompt": "p", "response": "r"}\n', encoding="utf-8")
    assert run(capsys, "project", place, "legal", "--new")[0] == 0
    for words in (
        ("ask", place, questions), ("status", place), ("leaderboard", place), ("promote", place), ("enrol", place, "eve"),
        ("export", place, "--out", tmp_path / "x.jsonl"), ("import", place, "trl", questions),
    ):  # fmt: skip
        refused = run(capsys, *words)
        assert refused[0] == 2, words
    for words in (
        ("ask", place, questions),
        ("status", place),
        ("enrol", place, "eve"),
        ("export", place, "--out", tmp_path / "x.jsonl"),
    ):
        code, _, said = run(capsys, *words)
        assert code == 2
        assert said.count("\n") == 1
        assert "which project? there are: default, legal" in said
    code, _, said = run(capsys, "status", place, "--project", "legla")
    assert (code, "no project 'legla'; there are: default, legal" in said) == (2, True)
    assert run(capsys, "enrol", place, "eve", "--project", "legal")[0] == 0
    assert run(capsys, "project", place, "--add", "eve")[0] == 2
    assert run(capsys, "project", place, "tax", "--overlap", "2")[0] == 2
    assert run(capsys, "project", place, "legal", "--guideline", questions)[0] == 2
    with Store.open(place) as store:
        assert store.counts("legal") == {}


def test_labels_are_imported_into_a_project(capsys, place, tmp_path):
    rows = tmp_path / "trl.jsonl"
    rows.write_text('{"prompt": "p", "chosen": "good", "rejected": "bad"}\n', encoding="utf-8")
    run(capsys, "project", place, "legal", "--new")
    for name in ("legal", "default"):
        said = run(capsys, "import", place, "trl", rows, "--project", name, "--ask", "2")[1]
        assert said == "1 new judgements of 1 tasks, by trl; 1 question for people\n"
        assert run(capsys, "import", place, "trl", rows, "--project", name, "--ask", "2")[1].startswith("0 new judgements")
