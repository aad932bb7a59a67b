"""Files of questions that would be misread: one line says what is wrong, where and how to mend it, and nothing is written."""

import json

import pytest
from feedback_examples import answers, enrol, pair, rows_of

from penstock.cli.main import main
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.questions import Asking, questions
from penstock.feedback.exchange.snapshot import Labels
from penstock.feedback.gold import demote, promote

PAIR = {"prompt": "p", "responses": ["a", "b"]}
TURN, OTHER, SAID = ({"role": role, "content": text} for role, text in (("user", "q"), ("user", "z"), ("assistant", "a")))


@pytest.fixture
def ask(store, file):
    """``ask(path, *words)``: the exit code of a command about a file."""
    enrol(store, "alice", "bob", "carol")
    enrol(store, "root", role="admin")
    return lambda path, *words: main(["feedback", "ask", str(file), str(path), *words])


@pytest.fixture
def refused(store, ask, capsys):
    """``refused(path, *words)``: the one line that says no; nothing is written."""

    def line(path, *words):
        assert ask(path, *words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert (store.tasks(), store.length()) == ([], 0)
        return error

    return line


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("q.csv", "prompt,response_1,response_2\np,a,b\nq,a,\n", ":3: prompt and responses must be texts that are not empty"),
        ("q.csv", "prompt,response_1,response_3\np,a,b\n", ":2: of the columns response_1, response_2 … one is missing"),
        ("q.csv", "prompt,response,response_1,response_2\np,a,b,c\n", ":2: it has response and response_1 …; keep one"),
        ("q.csv", "prompt,responses,prompt\np,a,q\n", ":1: 1 column names are there twice, such as 'prompt'"),
        (
            "q.csv",
            "prompt,responses\np,\"['a', 'b']\"\n",
            """:2: responses=['a', 'b'] is no JSON; write a list such as ["a", "b"]""",
        ),
        ("q.csv", 'prompt,responses\np,"[""a"", ""b"""\n', ":2: responses="),
        ("q.csv", "prompt,chosen,rejected,response_1\np,a,b,c\n", ":2: it has chosen or rejected besides other responses"),
        ("q.csv", "", ": no rows in it"),
        ("q.csv", "prompt,response\n", ": no rows in it"),
        ("q.csv", "prompt,response\na\n", ":2: "),
        (
            "q.csv",
            b"prompt,response\n" + b"p,a\n" * 9000 + b"p,\xe9\n" + b"p,a\n" * 9000,
            ":9002: not UTF-8; save the file as UTF-8",
        ),
        ("q.csv.gz", "", ""),
        ("q.json", "{}", ""),
        ("q.txt", "x", ""),
        ("q.jsonl", "", ""),
    ],
)
def test_tables_that_would_be_misread(refused, tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    error = refused(tmp_path / name)
    assert f"{tmp_path}/{name}{why}" in error
    assert ("unpack it first" in error) == name.endswith(".gz")


@pytest.mark.parametrize(
    ("row", "words", "why"),
    [
        ({"prompt": "p"}, (), "responses (a list), chosen and rejected, or response"),
        ({"responses": ["a", "b"]}, (), "give prompt"),
        ({**PAIR, "prompt": " "}, (), "not empty"),
        ({**PAIR, "prompt": 5}, (), "prompt is a number (5); put it in quotes"),
        ({**PAIR, "responses": ["a", "a"]}, (), "two responses are the same"),
        ({**PAIR, "responses": ["a", "b", "c"]}, ("--form", "pair"), "a pair has 2 responses, not 3"),
        ({**PAIR, "models": ["m"]}, (), "give 2 names"),
        ({**PAIR, "groups": {"language": 5}}, (), "object of texts"),
        ({**PAIR, "gold": 1}, (), "ask with --gold"),
        (PAIR, ("--gold",), "needs its answer"),
        ({**PAIR, "gold": 3}, ("--gold",), "give 1 or 2"),
        ({"prompt": "p", "response": "a", "gold": 9}, ("--gold",), "no number from 1 to 7"),
        ({"prompt": "p", "responses": ["a", "b", "c"], "gold": [1]}, ("--gold",), "give 3 ranks"),
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
def test_rows_that_would_be_misread(refused, tmp_path, row, words, why):
    good = {"prompt": "fine", "responses": ["x", "y"]} | ({"gold": 1} if "--gold" in words else {})
    (tmp_path / "q.jsonl").write_text("\n" + json.dumps(good) + "\n" + json.dumps(row) + "\n")
    error = refused(tmp_path / "q.jsonl", *words)
    assert f"{tmp_path}/q.jsonl:3: " in error
    assert why in error


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--to", "alice,dave", "--overlap", "2"), "dave: no such person"),
        (("--to", "alice,bob", "--overlap", "3"), "overlap=3 for 2 people"),
        (("--overlap", "0"), "--overlap 0"),
        (("--scale", "7"), "--scale 7"),
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
def test_flags_that_cannot_be(refused, tmp_path, words, why):
    assert why in refused(written(tmp_path / "q.jsonl", PAIR), *words)


def test_a_guideline_that_the_project_does_not_have(refused, file, tmp_path):
    (tmp_path / "g.md").write_text("# How")
    main(["feedback", "project", str(file), "default", "--guideline", str(tmp_path / "g.md"), "--guideline-version", "2"])
    assert "guideline 3: project default has 2" in refused(written(tmp_path / "q.jsonl", PAIR), "--guideline", "3")


# Gold


def test_gold_of_a_file_is_known_before_anybody_answers_it(store, ask, tmp_path):
    ask(written(tmp_path / "q.jsonl", {"prompt": "p", "responses": ["right", "wrong"]}))
    answers(store, store.tasks(), "alice", "bob", "carol", preference=-1)
    assert [row["chosen"] for row in rows_of(store, Labels())] == ["wrong"]
    known = written(tmp_path / "g.jsonl", {"prompt": "p", "responses": ["wrong", "right"], "gold": "right"})
    assert ask(known, "--gold") == ask(known, "--gold") == 0
    assert [row["chosen"] for row in rows_of(store, Labels())] == ["right"]
    assert [row["chosen"] for row in rows_of(store, Labels(), until=3)] == ["wrong"]
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


def test_gold_that_contradicts_gold_in_force_is_refused(store, ask, capsys, tmp_path):
    other = written(tmp_path / "b.jsonl", {"prompt": "p", "responses": ["b", "a"], "gold": 1})
    assert ask(written(tmp_path / "a.jsonl", {**PAIR, "gold": 1}), "--gold") == 0
    assert ask(other, "--gold") == 2
    [known] = store.tasks()
    assert f"gold {known} has another known answer to 'p'" in capsys.readouterr().err
    demote(store, "root", known, "wrong")
    assert ask(other, "--gold") == 0


def test_gold_is_not_promoted_with_another_answer(store):
    enrol(store, "root", role="admin")
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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("promote", "--by", "alice"), "alice is no administrator"),
        (("promote", "--most", "0"), "--most 0: give 1"),
        (("project", "default", "--qualify", "10001"), "qualify is from 0 to 10,000"),
        (("project", "default", "--quota", "1000000001"), "qualify is from 0 to 10,000"),
        (("leaderboard", "--axis", "zzz"), "axis 'zzz': no question asks for it; there are: overall"),
    ],
)
def test_other_commands_with_what_cannot_be(capsys, store, file, words, why):
    enrol(store, "alice")
    assert main(["feedback", words[0], str(file), *words[1:]]) == 2
    assert why in capsys.readouterr().err
