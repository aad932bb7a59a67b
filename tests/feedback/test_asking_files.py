"""Questions of one's own: from a file to tasks, all or none; the first bad row is named with how to mend it."""

import json
import random

import pytest
from feedback_examples import enrol, vote

from penstock.cli.main import main
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.questions import Asking, questions
from penstock.feedback.exchange.questions import ask as put
from penstock.feedback.exchange.snapshot import (
    Labels,
    annotator_weights,
    corrections,
    counted,
    preference_pairs,
    snapshot,
)
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Annotator, Submission
from penstock.feedback.store import Store

PAIR = {"prompt": "p", "responses": ["a", "b"]}


def asked(row, **fields):
    """The task of one row."""
    [task] = questions([("f:1", row)], Asking(**fields)).tasks
    return task


def ask(place, path, *words):
    return main(["feedback", "ask", str(place), str(path), *words])


@pytest.fixture
def place(tmp_path):
    with Store.open(tmp_path / "f.db") as store:
        enrol(store, "alice", "bob", "carol")
    return tmp_path / "f.db"


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("count", "form"), [(1, "rating"), (2, "pair"), (3, "ranking")])
def test_the_number_of_responses_says_the_form(count, form):
    assert asked({"prompt": "p", "responses": ["a", "b", "c"][:count]}).form == form
    assert asked({"prompt": "p", "responses": ["a", "b"]}, form="rating").form == "rating"


def test_what_was_chosen_is_no_vote(place, tmp_path):
    assert ask(place, lines(tmp_path / "q.jsonl", {"prompt": "p", "chosen": "good", "rejected": "bad"})) == 0
    with Store.open(place) as store:
        [task] = map(store.task, store.tasks())
        assert (task.form, task.purpose, task.gold, store.length()) == ("pair", "ask", None, 0)
    assert sorted(task.item.texts) == ["bad", "good"]


def test_which_response_comes_first_is_no_hint():
    rows = [(f"f:{n}", {"prompt": str(n), "chosen": "good", "rejected": "bad"}) for n in range(200)]
    first = sum(task.item.texts[0] == "good" for task in questions(rows, Asking()).tasks)
    assert 70 < first < 130


def test_messages_are_a_prompt():
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "why?"}]
    reply = [{"role": "assistant", "content": "so"}]
    task = asked({"prompt": turns, "response": reply, "model": "m-7"})
    assert task.item.prompt == "user: hello\n\nassistant: hi\n\nuser: why?"
    assert [(one.text, one.source) for one in task.item.responses] == [("so", "m-7")]
    assert asked({"prompt": turns[:1], "chosen": [*turns[:1], *reply], "rejected": "x"}).item.prompt == "hello"


def test_csv_has_a_column_for_each_response_and_texts_stay_texts(place, tmp_path):
    (tmp_path / "q.csv").write_text('prompt,response_1,response_2,gold,note\n"a, b",4,[5],2,x\n')
    assert ask(place, tmp_path / "q.csv", "--gold") == 0
    with Store.open(place) as store:
        [task] = map(store.task, store.tasks())
    assert (task.item.prompt, task.item.texts, task.gold["preference"]) == ("a, b", ("4", "[5]"), -1)


def test_parquet_is_read(place, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist([PAIR, {**PAIR, "prompt": "q"}]), tmp_path / "q.parquet")
    assert ask(place, tmp_path / "q.parquet", "--overlap", "1") == 0
    with Store.open(place) as store:
        assert [task.item.prompt for task in map(store.task, store.tasks())] == ["p", "q"]


@pytest.mark.parametrize(
    ("row", "fields", "preference"),
    [
        ({**PAIR, "gold": 1}, {}, 1),
        ({**PAIR, "gold": "2"}, {}, -1),
        ({**PAIR, "gold": "b"}, {}, -1),
        ({**PAIR, "gold": "tie"}, {}, 0),
        ({**PAIR, "gold": {"preference": -3}}, {}, -3),
        ({"prompt": "2 + 2", "responses": ["4", "5"], "gold": "4"}, {}, 1),  # texts come before numbers of responses
        ({"prompt": "2 - 1", "responses": ["2", "1"], "gold": "1"}, {}, -1),
        ({"prompt": "2 - 1", "responses": ["2", "1"], "gold": 1}, {}, 1),
    ],
)
def test_a_pairs_known_answer(row, fields, preference):
    task = asked(row, gold=True, **fields)
    assert (task.purpose, task.overlap, task.gold["preference"]) == ("gold", 0, preference)


def test_a_known_choice_follows_its_text():
    tasks = questions(
        [(f"f:{n}", {"prompt": str(n), "chosen": "good", "rejected": "bad"}) for n in range(20)], Asking(gold=True)
    )
    assert all((task.gold["preference"] > 0) == (task.item.texts[0] == "good") for task in tasks.tasks)
    assert len({task.gold["preference"] for task in tasks.tasks}) == 2


def test_known_rankings_and_ratings_by_axis():
    assert asked({"prompt": "p", "responses": ["a", "b", "c"], "gold": [2, 1, 3]}, gold=True).gold == {"ranks": [2, 1, 3]}
    row = {"prompt": "p", "response": "a", "gold": {"helpful": 5, "harmless": 7}}
    assert asked(row, gold=True, axes=("helpful", "harmless")).gold == {"scores": {"helpful": [5], "harmless": [7]}}


BAD = [
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
]


@pytest.mark.parametrize(("row", "words", "why"), BAD)
def test_a_bad_row_is_named_and_nothing_is_written(capsys, place, tmp_path, row, words, why):
    gold = "--gold" in words
    good = {"prompt": "fine", "responses": ["x", "y"]} | ({"gold": 1} if gold else {})
    (tmp_path / "q.jsonl").write_text("\n" + json.dumps(good) + "\n" + json.dumps(row) + "\n")
    assert ask(place, tmp_path / "q.jsonl", *words) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/q.jsonl:3: " in error
    assert why in error
    assert error.count("\n") == 1
    with Store.open(place) as store:
        assert store.tasks() == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--to", "alice,dave", "--overlap", "2"), "dave: no such person"),
        (("--to", "alice,bob", "--overlap", "3"), "overlap=3 for 2 people"),
        (("--overlap", "0"), "--overlap 0"),
        (("--scale", "7"), "--scale 7"),
    ],
)
def test_flags_that_cannot_be_are_refused(capsys, place, tmp_path, words, why):
    assert ask(place, lines(tmp_path / "q.jsonl", PAIR), *words) == 2
    assert why in capsys.readouterr().err
    with Store.open(place) as store:
        assert store.tasks() == []


@pytest.mark.parametrize(
    ("name", "text"), [("q.csv", "prompt,response\na\n"), ("q.json", "{}"), ("q.txt", "x"), ("q.jsonl", "")]
)
def test_a_file_that_is_none_is_refused(capsys, place, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert ask(place, tmp_path / name) == 2
    assert str(capsys.readouterr().err).count("\n") == 1


def test_what_is_asked_twice_is_asked_once_and_a_round_asks_again(capsys, place, tmp_path):
    path = lines(tmp_path / "q.jsonl", PAIR, {**PAIR, "responses": ["b", "a"], "extra": 1}, {**PAIR, "prompt": "q"})
    said = []
    for words in ((), ("--overlap", "2"), ("--round", "w2")):
        ask(place, path, *words)
        said.append(capsys.readouterr().out)
    assert said[0] == "2 new questions (the file has 2 pairs); 1 duplicate row skipped; columns not used: extra\n"
    assert said[1].startswith(
        "0 new questions (the file has 2 pairs); 2 asked already (whatever their scale and guideline; --round NAME"
    )
    assert said[2].startswith("2 new questions")


def test_two_known_answers_to_one_question_are_refused():
    rows = [("f:1", {**PAIR, "gold": 1}), ("f:2", {**PAIR, "gold": 2})]
    with pytest.raises(FeedbackError, match=r"f:2: another known answer than f:1"):
        questions(rows, Asking(gold=True))


def test_a_batch_goes_to_its_people_alone(place, tmp_path):
    assert ask(place, lines(tmp_path / "q.jsonl", PAIR), "--to", "alice,bob", "--overlap", "2") == 0
    with Store.open(place) as store:
        [task] = store.tasks()
        assert store.next_task("carol") is None
        with pytest.raises(FeedbackError, match="another annotator"):
            store.hand_out(task, "carol")
        assert [store.next_task(name).task for name in ("alice", "bob")] == [task, task]
        store.verify()


def test_a_name_within_another_is_another_person(place, tmp_path):
    with Store.open(place) as store:
        enrol(store, "ali", "_lice")
    assert ask(place, lines(tmp_path / "q.jsonl", PAIR), "--to", "alice", "--overlap", "1") == 0
    with Store.open(place) as store:
        assert [store.next_task(name) for name in ("ali", "_lice")] == [None, None]
        assert store.next_task("alice") is not None


def test_the_gold_share_is_filled_from_a_file(tmp_path):
    with Store.open(tmp_path / "f.db", QueuePolicy(gold_share=0.25, repeat_share=0, held=200)) as store:
        enrol(store, "ann")
    rows = [{"prompt": str(n), "responses": ["a", "b"]} for n in range(200)]
    ask(tmp_path / "f.db", lines(tmp_path / "q.jsonl", *rows))
    ask(
        tmp_path / "f.db",
        lines(tmp_path / "g.jsonl", *({**row, "prompt": f"g{row['prompt']}", "gold": 1} for row in rows)),
        "--gold",
    )
    with Store.open(tmp_path / "f.db", QueuePolicy(gold_share=0.25, repeat_share=0, held=200)) as store:
        given = [store.task(store.next_task("ann").task).purpose for _ in range(120)]
    assert 20 <= given.count("gold") <= 40  # 30 expected; the draws are fixed by the seed


def test_gold_of_a_file_ends_a_collusion(tmp_path):
    """Two who are right in nine of ten, three who agree on wrong answers, 200 questions, a tenth of that gold."""
    rows = [(f"f:{n}", {"prompt": f"p{n}", "chosen": f"right {n}", "rejected": f"wrong {n}"}) for n in range(220)]
    tasks = [*questions(rows[:200], Asking(overlap=5)).tasks, *questions(rows[200:], Asking(gold=True)).tasks]
    draws = random.Random(0)
    with Store.open(tmp_path / "f.db") as store:
        put(store, tasks)
        for name in ("honest-1", "honest-2", "liar-1", "liar-2", "liar-3"):
            store.enrol(Annotator(name, nature="simulated"))
            said = []
            for task in tasks:
                right = draws.random() < (0.9 if name.startswith("honest") else 0.05)
                side = 1 if task.item.texts[0].startswith("right") == right else -1
                said.append(vote(task.id, name, f"{name}/{task.id}", side))
            store.record(said)
        taken = snapshot(store)
    labels = Labels(natures=("simulated",))
    worth = annotator_weights(counted(taken, labels), taken.gold(), labels)
    assert all(worth[f"liar-{n}"] < 0.05 for n in (1, 2, 3))
    pairs = preference_pairs(taken, labels)
    assert len(pairs) > 120
    assert sum(row["chosen"].startswith("right") for row in pairs) >= 0.95 * len(pairs)


def test_argillas_records_are_questions(place, tmp_path):
    records = [
        {"id": "1", "fields": {"instruction": "p", "response1": "a", "response2": "b"}, "metadata": {"gold": 2, "l": "en"}}
    ]
    (tmp_path / "records.json").write_text(json.dumps(records))
    assert ask(place, tmp_path / "records.json", "--format", "argilla", "--gold") == 0
    with Store.open(place) as store:
        [task] = map(store.task, store.tasks())
    assert (task.item.prompt, task.item.texts, task.gold["preference"]) == ("p", ("a", "b"), -1)
    assert dict(task.item.groups) == {"l": "en"}


def test_a_correction_is_an_edit_that_fills_a_seat(place, tmp_path):
    assert (
        ask(place, lines(tmp_path / "q.jsonl", {"prompt": "p", "response": "teh"}), "--form", "correction", "--overlap", "1")
        == 0
    )
    with Store.open(place) as store:
        [task] = store.tasks()
        store.next_task("alice")
        store.submit(Submission("correction", task, "alice", "k", {"text": "the"}))
        assert store.next_task("bob") is None
        [row] = corrections(snapshot(store))
    assert (row["prompt"], row["completion"], row["original"]) == ("p", "the", "teh")


def test_postgresql_knows_whom_a_question_is_for(empty_postgresql):
    with Store.open(empty_postgresql) as store:
        enrol(store, "alice", "bob")
        task = asked(PAIR, to=("alice",), overlap=1)
        assert (put(store, [task]), put(store, [task])) == (1, 0)
        assert store.next_task("bob") is None
        assert store.next_task("alice").task == task.id
