"""``penstock feedback`` about people, exports, backups and the leaderboard."""

import io
import json
import os
import shutil
import sys
import threading

import pytest
from feedback_examples import answers, enrol, pair, say
from served import QUICK

from penstock.feedback.database import backup
from penstock.feedback.errors import FeedbackError
from penstock.feedback.records import Item, Response, Task
from penstock.feedback.service.accounts import Passwords
from penstock.feedback.store import Store


@pytest.fixture
def place(empty_store, tmp_path):
    path = shutil.copy(empty_store, tmp_path / "votes.db")
    with Store.open(path) as store:
        enrol(store, "ann", "bob")
        enrol(store, "root", role="admin")
        answers(store, store.ask([pair("a"), pair("b")]), "ann", "bob")
    return path


def test_role_quota_and_switch_change(run, place):
    changed = run("account", place, "ann", "--role", "adjudicator", "--quota", "7")[1]
    assert changed == "ann: adjudicator, on, 7 answers\n"
    assert run("account", place, "ann", "--switch", "off")[1] == "ann: adjudicator, off, 7 answers\n"


def test_a_password_is_read_from_standard_input(run, place, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a good long password\n"))
    assert run("account", place, "ann", "--password")[0] == 0
    with Store.open(place) as store:
        assert Passwords().same(store.annotator("ann").password, "a good long password")
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
def test_changes_that_cannot_be_are_refused(run, place, words, why):
    exit_code, _, error = run("account", place, *words)
    assert exit_code == 2
    assert why in error
    with Store.open(place) as store:
        assert [(who.role, who.enabled) for who in store.annotators()] == [("annotator", True)] * 2 + [("admin", True)]


def test_an_annotator_is_switched_off_also_where_there_is_no_administrator(run, store, file):
    enrol(store, "ann")
    assert run("account", file, "ann", "--switch", "off")[0] == 0


def test_a_person_is_deleted_by_command(run, place):
    assert run("forget", place, "ann", "--by", "root", "--votes", "remove")[1].startswith("ann is deleted")
    assert run("verify", place)[1].startswith("4 events, 2 judgements in force")
    assert run("forget", place, "bob", "--by", "bob", "--votes", "keep")[0] == 2


def test_votes_are_exported_by_pseudonyms_or_names(run, place, tmp_path):
    out = tmp_path / "votes.jsonl"
    names = []
    for words in ((), (), ("--names",)):
        assert run("export", place, "--form", "votes", "--out", out, *words)[0] == 0
        names.append([json.loads(line)["annotator"] for line in out.read_text().splitlines()])
    assert names[0] == names[1]
    assert len(set(names[0])) == 2
    assert "ann" not in names[0]
    assert names[2] == ["ann", "bob", "ann", "bob"]


def test_formats_of_others_go_out_and_come_back(run, place, tmp_path):
    assert run("export", place, "--format", "trl", "--out", tmp_path / "trl.jsonl")[0] == 0
    first = json.loads((tmp_path / "trl.jsonl").read_text().splitlines()[0])
    assert first["chosen"] == [{"role": "assistant", "content": "first a"}]
    assert run("export", place, "--format", "argilla", "--out", tmp_path / "records.json")[0] == 0
    imported = run("import", tmp_path / "other.db", "argilla", tmp_path / "records.json")[1]
    assert imported.startswith("4 new judgements of 2")
    assert run("ask", place, tmp_path / "trl.jsonl", "--round", "2")[1].startswith("2 new questions")
    assert run("export", place, "--format", "trl", "--form", "votes", "--out", tmp_path / "x.jsonl")[0] == 2


def test_a_backup_is_whole_and_private_and_nothing_is_overwritten(run, place, tmp_path):
    out = tmp_path / "copy.db"
    assert run("backup", place, out)[1] == f"backed up 4 events to {out}\n"
    assert out.stat().st_mode & 0o777 == 0o600
    with Store.open(out) as store:
        assert len(store.verify().judgements()) == 4
    assert run("backup", place, out)[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "votes.db"]


def test_a_backup_while_votes_come_in_is_one_moment_of_the_store(place, tmp_path):
    ended = threading.Event()

    def busy():
        with Store.open(place) as store:
            count = 0
            while not ended.is_set():
                answers(store, store.ask([pair(f"busy {count}")]), "ann")
                count += 1

    worker = threading.Thread(target=busy)
    worker.start()
    lengths = [backup(str(place), tmp_path / f"copy {number}.db") for number in range(5)]
    ended.set()
    worker.join()
    for number, length in enumerate(lengths):
        with Store.open(tmp_path / f"copy {number}.db") as store:
            assert len(store.verify().judgements()) == store.length() == length


def test_a_backup_of_postgresql_is_pg_dumps(run, tmp_path):
    exit_code, _, error = run("backup", "postgresql://u@h/n", tmp_path / "x.dump")
    assert exit_code == 2
    assert "pg_dump --format=custom" in error


def test_a_damaged_store_gives_no_backup(place, tmp_path):
    content = bytearray(place.read_bytes())
    content[8192:12288] = os.urandom(4096)
    place.write_bytes(content)
    with pytest.raises(FeedbackError, match=r"damaged|no backup was made"):
        backup(str(place), tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_models_are_ranked_by_what_people_prefer(run, place):
    with Store.open(place) as store:
        for number in range(8):
            responses = (Response("x", run="r", stage="s", version=3), Response("y", source="old"))
            tasks = store.ask([Task(item=Item(f"m{number}", responses), overlap=2)])
            answers(store, tasks, "ann", "bob", preference=1 if number else -1)
    exit_code, out, _ = run("leaderboard", place, "--samples", "50")
    assert exit_code == 0
    first, second = out.splitlines()
    assert first.startswith("1. r/s version 3: +")
    assert first.endswith("won 14 of 16")
    assert second.startswith("2. old: -")


def test_pairs_to_promote_are_listed_first(run, place):
    assert run("promote", place)[1] == "0 pairs could be gold; --by ADMIN makes them so\n"


def test_a_project_is_made_asked_in_and_exported_by_commands(run, place, tmp_path):
    guideline, questions = tmp_path / "law.md", tmp_path / "q.jsonl"
    guideline.write_text("# Law", encoding="utf-8")
    questions.write_text('{"prompt": "p", "response": "r"}\n', encoding="utf-8")
    words = ("--forms", "rating", "--axes", "right,kind", "--scale", "1,5", "--overlap", "1", "--qualify", "0", "--pause", "on")
    made = run("project", place, "legal", "--new", "--add", "ann", *words)
    assert (made[0], made[1].splitlines()[0]) == (0, "legal: forms: rating; 1 answer per question")
    run("project", place, "legal", "--guideline", guideline, "--guideline-version", "a")
    assert run("project", place)[1] == "default: 2 tasks, 3 members\nlegal: 0 tasks, 1 member\n"
    assert run("ask", place, questions, "--project", "legal")[1].startswith("1 new question (the file has 1 rating)")
    with Store.open(place) as store:
        task = store.task(store.next_task("ann", project="legal").task)
        assert (task.axes, task.scale, task.overlap, task.guideline) == (("right", "kind"), (1.0, 5.0), 1, "a")
        assert store.project("legal").policy == {"qualify": 0, "pause": True}
        say(store, "rating", task.id, "ann", scores={"right": [5], "kind": [4]})
    counts = {}
    for name in ("default", "legal"):
        out = tmp_path / f"{name}.jsonl"
        assert run("export", place, "--project", name, "--form", "votes", "--out", out)[0] == 0
        counts[name] = len(out.read_text().splitlines())
    assert counts == {"default": 4, "legal": 1}
    assert "5 events" in run("status", place, "--project", "legal")[1]
    assert "members: nobody" in run("project", place, "legal", "--remove", "ann")[1]


def test_with_several_projects_a_command_says_which_and_refuses(run, place, tmp_path):
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"prompt": "p", "response": "r"}\n', encoding="utf-8")
    assert run("project", place, "legal", "--new")[0] == 0
    for words in (
        ("ask", place, questions), ("status", place), ("enrol", place, "eve"),
        ("export", place, "--out", tmp_path / "x.jsonl"),
    ):  # fmt: skip
        code, _, said = run(*words)
        assert (code, said.count("\n")) == (2, 1), words
        assert "which project? there are: default, legal" in said
    for words in (("leaderboard", place), ("promote", place), ("import", place, "trl", questions)):
        assert run(*words)[0] == 2, words
    code, _, said = run("status", place, "--project", "legla")
    assert (code, "no project 'legla'; there are: default, legal" in said) == (2, True)
    assert run("enrol", place, "eve", "--project", "legal")[0] == 0
    assert run("project", place, "--add", "eve")[0] == 2
    assert run("project", place, "tax", "--overlap", "2")[0] == 2
    assert run("project", place, "legal", "--guideline", questions)[0] == 2
    with Store.open(place) as store:
        assert store.counts("legal") == {}


def test_labels_are_imported_into_a_project(run, place, tmp_path):
    rows = tmp_path / "trl.jsonl"
    rows.write_text('{"prompt": "p", "chosen": "good", "rejected": "bad"}\n', encoding="utf-8")
    run("project", place, "legal", "--new")
    for name in ("legal", "default"):
        said = run("import", place, "trl", rows, "--project", name, "--ask", "2")[1]
        assert said == "1 new judgements of 1 tasks, by trl; 1 question for people\n"
        assert run("import", place, "trl", rows, "--project", name, "--ask", "2")[1].startswith("0 new judgements")
