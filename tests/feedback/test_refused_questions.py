"""Files of questions that would be misread: one line says what is wrong, where and how to mend it, and nothing is written."""

import json

import pytest
from feedback_examples import answer, enrol, pair

from penstock.cli.main import main
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.questions import Asking, questions
from penstock.feedback.exchange.snapshot import preference_pairs, snapshot
from penstock.feedback.gold import demote, promote
from penstock.feedback.records import Annotator
from penstock.feedback.store import Store

PAIR = {"prompt": "p", "responses": ["a", "b"]}
TURN, OTHER, SAID = ({"role": role, "content": text} for role, text in (("user", "q"), ("user", "z"), ("assistant", "a")))


@pytest.fixture
def place(tmp_path):
    with Store.open(tmp_path / "f.db") as store:
        enrol(store, "alice", "bob", "carol")
        store.enrol(Annotator("root", role="admin"))
    return tmp_path / "f.db"


def refused(capsys, place, path, *words):
    """The one line that says no."""
    assert main(["feedback", "ask", str(place), str(path), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    with Store.open(place) as store:
        assert (store.tasks(), store.length()) == ([], 0)
    return error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prompt,response_1,response_2\np,a,b\nq,a,\n", ":3: prompt and responses must be texts that are not empty"),
        ("prompt,response_1,response_3\np,a,b\n", ":2: of the columns response_1, response_2 … one is missing"),
        ("prompt,response,response_1,response_2\np,a,b,c\n", ":2: it has response and response_1 …; keep one"),
        ("prompt,responses,prompt\np,a,q\n", ":1: 1 column names are there twice, such as 'prompt'"),
        ("prompt,responses\np,\"['a', 'b']\"\n", """:2: responses=['a', 'b'] is no JSON; write a list such as ["a", "b"]"""),
        ('prompt,responses\np,"[""a"", ""b"""\n', ":2: responses="),
        ("prompt,chosen,rejected,response_1\np,a,b,c\n", ":2: it has chosen or rejected besides other responses"),
        ("", ": no rows in it"),
        ("prompt,response\n", ": no rows in it"),
    ],
)
def test_tables_that_would_be_misread(capsys, place, tmp_path, text, why):
    (tmp_path / "q.csv").write_text(text)
    assert f"{tmp_path}/q.csv{why}" in refused(capsys, place, tmp_path / "q.csv")


def test_windows_1252_is_named_with_its_line(capsys, place, tmp_path):
    (tmp_path / "q.csv").write_bytes(b"prompt,response\n" + b"p,a\n" * 9000 + "p,é\n".encode("cp1252") + b"p,a\n" * 9000)
    assert "q.csv:9002: not UTF-8; save the file as UTF-8" in refused(capsys, place, tmp_path / "q.csv")


def test_a_packed_table_is_to_be_unpacked(capsys, place, tmp_path):
    (tmp_path / "q.csv.gz").write_bytes(b"")
    assert "unpack it first" in refused(capsys, place, tmp_path / "q.csv.gz")


@pytest.mark.parametrize(
    ("row", "words", "why"),
    [
        ({**PAIR, "responses": ["a", 5]}, (), "responses[2] is a number (5); put it in quotes"),
        ({**PAIR, "responses": ["a", float("nan")]}, (), "responses[2] is a number (nan); put it in quotes"),
        ({**PAIR, "responses": ["a", True]}, (), "responses[2] is true or false (True); put it in quotes"),
        ({"prompt": "p", "chosen": "a", "rejected": 5}, (), "rejected is a number (5)"),
        ({"prompt": "p", "response_1": "a", "response_2": None}, (), "not empty"),
        ({**PAIR, "response_1": "a"}, (), "it has responses and response_1 …; keep one of them"),
        ({**PAIR, "chosen": "a"}, (), "chosen or rejected besides other responses"),
        ({"chosen": [TURN, SAID], "rejected": [OTHER, SAID]}, (), "different messages before the last one"),
        ({**PAIR, "responses": ["a", "\ud800"]}, (), "half a character"),
        ({**PAIR, "responses": [str(n) for n in range(27)]}, (), "27 responses; a question has 26 at most"),
        ({**PAIR, "gold": True}, ("--gold",), "give 1 or 2"),
        ({**PAIR, "responses": ["a", "b", "c"], "gold": "a"}, ("--gold",), "a list of ranks such as [2, 1, 3]"),
    ],
)
def test_rows_that_would_be_misread(capsys, place, tmp_path, row, words, why):
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    error = refused(capsys, place, tmp_path / "q.jsonl", *words)
    assert f"{tmp_path}/q.jsonl:1: " in error
    assert why in error


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--axes", "a,a"), "each once"),
        (("--axes", ",,"), "give names with commas"),
        (("--axes", "a" * 121), "at most 120"),
        (("--round", "r" * 121), "at most 120"),
        (("--scale", "0,inf"), "--scale 0,inf: give the lowest"),
        (("--to", "dave"), "dave: no such person"),
        (("--overlap", "1.5"), "--overlap '1.5': give a whole number"),
        (("--form", "ranking", "--to", "alice"), "overlap=3 for 1 people"),
    ],
)
def test_flags_that_cannot_be(capsys, place, tmp_path, words, why):
    (tmp_path / "q.jsonl").write_text(json.dumps(PAIR) + "\n")
    assert why in refused(capsys, place, tmp_path / "q.jsonl", *words)


def test_a_guideline_that_the_project_does_not_have(capsys, place, tmp_path):
    (tmp_path / "g.md").write_text("# How")
    main(["feedback", "project", str(place), "default", "--guideline", str(tmp_path / "g.md"), "--guideline-version", "2"])
    (tmp_path / "q.jsonl").write_text(json.dumps(PAIR) + "\n")
    assert "guideline 3: project default has 2" in refused(capsys, place, tmp_path / "q.jsonl", "--guideline", "3")


def test_an_empty_place_of_media_stays_its_place(place, tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "q.csv").write_text("prompt,response_1,response_2,media_1,media_2\np,a,,,x.png\n")
    assert main(["feedback", "ask", str(place), str(tmp_path / "q.csv")]) == 0
    with Store.open(place) as store:
        [task] = map(store.task, store.tasks())
    assert [(one.text, len(one.blobs)) for one in task.item.responses] == [("a", 0), ("", 1)]


def test_what_was_asked_is_told_by_form(capsys, place, tmp_path):
    rows = [PAIR, {**PAIR, "prompt": "q"}, {"prompt": "r", "response": "a"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["feedback", "ask", str(place), str(tmp_path / "q.jsonl")])
    assert capsys.readouterr().out == "3 new questions (the file has 2 pairs, 1 rating)\n"


# Gold


def test_gold_of_a_file_is_known_before_anybody_answers_it(place, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"prompt": "p", "responses": ["right", "wrong"]}) + "\n")
    main(["feedback", "ask", str(place), str(tmp_path / "q.jsonl")])
    with Store.open(place) as store:
        [task] = store.tasks()
        for name in ("alice", "bob", "carol"):
            answer(store, task, name, -1)
        assert [row["chosen"] for row in preference_pairs(snapshot(store))] == ["wrong"]
    (tmp_path / "g.jsonl").write_text(json.dumps({"prompt": "p", "responses": ["wrong", "right"], "gold": "right"}) + "\n")
    main(["feedback", "ask", str(place), str(tmp_path / "g.jsonl"), "--gold"])
    main(["feedback", "ask", str(place), str(tmp_path / "g.jsonl"), "--gold"])
    with Store.open(place) as store:
        assert [row["chosen"] for row in preference_pairs(snapshot(store))] == ["right"]
        assert [row["chosen"] for row in preference_pairs(snapshot(store, until=3))] == ["wrong"]
        assert [(event.kind, event.annotator) for event in store.events(after=3)] == [("promote", "penstock:store")]
        assert "penstock:store" not in {who.name for who in store.annotators()}
        store.verify()


@pytest.mark.parametrize("responses", [["a", "b"], ["b", "a"]])
def test_contradictory_gold_of_a_file_is_refused_in_either_order(responses):
    given = 2 if responses == ["a", "b"] else 1
    rows = [("f:1", {**PAIR, "gold": 1}), ("f:2", {"prompt": "p", "responses": responses, "gold": given})]
    with pytest.raises(FeedbackError, match=r"^f:2: another known answer than f:1"):
        questions(rows, Asking(gold=True))
    same = {"prompt": "p", "responses": responses, "gold": 3 - given}
    assert questions([rows[0], ("f:2", same)], Asking(gold=True)).same == 1


def test_gold_that_contradicts_gold_in_force_is_refused(capsys, place, tmp_path):
    for name, row in (("a", {**PAIR, "gold": 1}), ("b", {"prompt": "p", "responses": ["b", "a"], "gold": 1})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["feedback", "ask", str(place), str(tmp_path / "a.jsonl"), "--gold"]) == 0
    assert main(["feedback", "ask", str(place), str(tmp_path / "b.jsonl"), "--gold"]) == 2
    with Store.open(place) as store:
        [gold] = store.tasks()
        assert f"gold {gold} has another known answer to 'p'" in capsys.readouterr().err
        demote(store, "root", gold, "wrong")
    assert main(["feedback", "ask", str(place), str(tmp_path / "b.jsonl"), "--gold"]) == 0


def test_gold_is_not_promoted_with_another_answer(place):
    with Store.open(place) as store:
        [task] = store.ask([pair("x")])
        gold = promote(store, "root", task, 1, "sure")
        for wanted in (task, gold):
            with pytest.raises(FeedbackError, match="has another known answer"):
                promote(store, "root", wanted, 2, "no, the other")
            with pytest.raises(FeedbackError, match="give 1 or 2"):
                promote(store, "root", wanted, "nonsense", "why")
        assert promote(store, "root", gold, 1, "again") == gold
        demote(store, "root", gold, "wrong")
        other = promote(store, "root", task, 2, "the other")
        assert (other != gold, store.length()) == (True, 3)


def test_promote_refuses_who_is_no_administrator_and_no_pairs(capsys, place):
    for words, why in ((("--by", "alice"), "alice is no administrator"), (("--most", "0"), "--most 0: give 1")):
        assert main(["feedback", "promote", str(place), *words]) == 2
        assert why in capsys.readouterr().err


def test_a_policy_of_absurd_numbers_is_refused(capsys, place):
    for words in (("--qualify", "10001"), ("--quota", "1000000001")):
        assert main(["feedback", "project", str(place), "default", *words]) == 2
        assert "qualify is from 0 to 10,000" in capsys.readouterr().err


def test_the_leaderboard_knows_its_axes(capsys, place):
    assert main(["feedback", "leaderboard", str(place), "--axis", "zzz"]) == 2
    assert "axis 'zzz': no question asks for it; there are: overall" in capsys.readouterr().err
