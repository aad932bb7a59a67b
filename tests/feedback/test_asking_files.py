"""Questions of one's own: from a file to tasks, all or none; the first bad row is named with how to mend it."""

import json
import random

import pytest
from feedback_examples import SIMULATED, asked, enrol, say, vote

from penstock.cli.main import main
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.questions import Asking, questions
from penstock.feedback.exchange.questions import ask as put
from penstock.feedback.exchange.snapshot import (
    annotator_weights,
    corrections,
    counted,
    preference_pairs,
    snapshot,
)
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.store import Store

PAIR = {"prompt": "p", "responses": ["a", "b"]}


def task_of(row, **fields):
    """The task of one row."""
    [task] = questions([("f:1", row)], Asking(**fields)).tasks
    return task


@pytest.fixture
def ask(store, file, tmp_path):
    """``ask(rows, *words)``: put the rows of a file, or a file of a name, to people; gives all tasks."""
    enrol(store, "alice", "bob", "carol")

    def put_rows(rows, *words):
        path = tmp_path / ("q.jsonl" if isinstance(rows, list) else rows)
        if isinstance(rows, list):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["feedback", "ask", str(file), str(path), *words]) == 0
        return asked(store)

    return put_rows


@pytest.mark.parametrize(("count", "form"), [(1, "rating"), (2, "pair"), (3, "ranking")])
def test_the_number_of_responses_says_the_form(count, form):
    assert task_of({"prompt": "p", "responses": ["a", "b", "c"][:count]}).form == form
    assert task_of({"prompt": "p", "responses": ["a", "b"]}, form="rating").form == "rating"


def test_what_was_chosen_is_no_vote(store, ask):
    [task] = ask([{"prompt": "p", "chosen": "good", "rejected": "bad"}])
    assert (task.form, task.purpose, task.gold, store.length()) == ("pair", "ask", None, 0)
    assert sorted(task.item.texts) == ["bad", "good"]


def chosen(count):
    return [(f"f:{n}", {"prompt": str(n), "chosen": "good", "rejected": "bad"}) for n in range(count)]


def test_which_response_comes_first_is_no_hint():
    first = sum(task.item.texts[0] == "good" for task in questions(chosen(200), Asking()).tasks)
    assert 70 < first < 130


def test_messages_are_a_prompt():
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "why?"}]
    reply = [{"role": "assistant", "content": "so"}]
    task = task_of({"prompt": turns, "response": reply, "model": "m-7"})
    assert task.item.prompt == "user: hello\n\nassistant: hi\n\nuser: why?"
    assert [(one.text, one.source) for one in task.item.responses] == [("so", "m-7")]
    assert task_of({"prompt": turns[:1], "chosen": [*turns[:1], *reply], "rejected": "x"}).item.prompt == "hello"


def test_csv_has_a_column_for_each_response_and_texts_stay_texts(ask, tmp_path):
    (tmp_path / "q.csv").write_text('prompt,response_1,response_2,gold,note\n"a, b",4,[5],2,x\n')
    [task] = ask("q.csv", "--gold")
    assert (task.item.prompt, task.item.texts, task.gold["preference"]) == ("a, b", ("4", "[5]"), -1)


def test_parquet_is_read(ask, tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist([PAIR, {**PAIR, "prompt": "q"}]), tmp_path / "q.parquet")
    assert [task.item.prompt for task in ask("q.parquet", "--overlap", "1")] == ["p", "q"]


@pytest.mark.parametrize(
    ("responses", "gold", "preference"),
    [
        (["a", "b"], 1, 1),
        (["a", "b"], "2", -1),
        (["a", "b"], "b", -1),
        (["a", "b"], "tie", 0),
        (["a", "b"], {"preference": -3}, -3),
        (["4", "5"], "4", 1),  # texts come before numbers of responses
        (["2", "1"], "1", -1),
        (["2", "1"], 1, 1),
    ],
)
def test_a_pairs_known_answer(responses, gold, preference):
    task = task_of({"prompt": "p", "responses": responses, "gold": gold}, gold=True)
    assert (task.purpose, task.overlap, task.gold["preference"]) == ("gold", 0, preference)


def test_a_known_choice_follows_its_text():
    tasks = questions(chosen(20), Asking(gold=True)).tasks
    assert all((task.gold["preference"] > 0) == (task.item.texts[0] == "good") for task in tasks)
    assert len({task.gold["preference"] for task in tasks}) == 2


def test_known_rankings_and_ratings_by_axis():
    assert task_of({"prompt": "p", "responses": ["a", "b", "c"], "gold": [2, 1, 3]}, gold=True).gold == {"ranks": [2, 1, 3]}
    row = {"prompt": "p", "response": "a", "gold": {"helpful": 5, "harmless": 7}}
    assert task_of(row, gold=True, axes=("helpful", "harmless")).gold == {"scores": {"helpful": [5], "harmless": [7]}}


def test_what_is_asked_twice_is_asked_once_and_a_round_asks_again(capsys, ask):
    rows = [PAIR, {**PAIR, "responses": ["b", "a"], "extra": 1}, {**PAIR, "prompt": "q"}]
    said = []
    for words in ((), ("--overlap", "2"), ("--round", "w2")):
        ask(rows, *words)
        said.append(capsys.readouterr().out)
    assert said[0] == "2 new questions (the file has 2 pairs); 1 duplicate row skipped; columns not used: extra\n"
    assert said[1].startswith(
        "0 new questions (the file has 2 pairs); 2 asked already (whatever their scale and guideline; --round NAME"
    )
    assert said[2].startswith("2 new questions")


def test_what_was_asked_is_told_by_form(capsys, ask):
    ask([PAIR, {**PAIR, "prompt": "q"}, {"prompt": "r", "response": "a"}])
    assert capsys.readouterr().out == "3 new questions (the file has 2 pairs, 1 rating)\n"


def test_a_batch_goes_to_its_people_alone(store, ask):
    [task] = ask([PAIR], "--to", "alice,bob", "--overlap", "2")
    assert store.next_task("carol") is None
    with pytest.raises(FeedbackError, match="another annotator"):
        store.hand_out(task.id, "carol")
    assert [store.next_task(name).task for name in ("alice", "bob")] == [task.id, task.id]
    store.verify()


def test_a_name_within_another_is_another_person(store, ask):
    enrol(store, "ali", "_lice")
    ask([PAIR], "--to", "alice", "--overlap", "1")
    assert [store.next_task(name) for name in ("ali", "_lice")] == [None, None]
    assert store.next_task("alice") is not None


def test_the_gold_share_is_filled_from_a_file(store, ask):
    store.policy = QueuePolicy(gold_share=0.25, repeat_share=0, held=200)
    ask([{**PAIR, "prompt": str(number)} for number in range(90)])
    ask([{**PAIR, "prompt": f"g{number}", "gold": 1} for number in range(40)], "--gold")
    given = [store.task(store.next_task("alice").task).purpose for _ in range(60)]
    assert 9 <= given.count("gold") <= 21  # 15 expected; the draws are fixed by the seed


def test_gold_of_a_file_ends_a_collusion(store):
    """Two who are right in nine of ten, three who agree on wrong answers, 100 questions, a tenth more that are gold."""
    rows = [(f"f:{n}", {"prompt": f"p{n}", "chosen": f"right {n}", "rejected": f"wrong {n}"}) for n in range(110)]
    tasks = [*questions(rows[:100], Asking(overlap=5)).tasks, *questions(rows[100:], Asking(gold=True)).tasks]
    draws = random.Random(0)
    put(store, tasks)
    for name in ("honest-1", "honest-2", "liar-1", "liar-2", "liar-3"):
        enrol(store, name, nature="simulated")
        said = []
        for task in tasks:
            right = draws.random() < (0.9 if name.startswith("honest") else 0.05)
            side = 1 if task.item.texts[0].startswith("right") == right else -1
            said.append(vote(task.id, name, f"{name}/{task.id}", side))
        store.record(said)
    taken = snapshot(store)
    worth = annotator_weights(counted(taken, SIMULATED), taken.gold(), SIMULATED)
    assert all(worth[f"liar-{n}"] < 0.05 for n in (1, 2, 3))
    pairs = preference_pairs(taken, SIMULATED)
    assert len(pairs) > 60
    assert sum(row["chosen"].startswith("right") for row in pairs) >= 0.95 * len(pairs)


def test_argillas_records_are_questions(ask):
    fields = {"instruction": "p", "response1": "a", "response2": "b"}
    [task] = ask([{"id": "1", "fields": fields, "metadata": {"gold": 2, "l": "en"}}], "--format", "argilla", "--gold")
    assert (task.item.prompt, task.item.texts, task.gold["preference"]) == ("p", ("a", "b"), -1)
    assert dict(task.item.groups) == {"l": "en"}


def test_a_correction_is_an_edit_that_fills_a_seat(store, ask):
    [task] = ask([{"prompt": "p", "response": "teh"}], "--form", "correction", "--overlap", "1")
    say(store, "correction", task.id, "alice", text="the")
    assert store.next_task("bob") is None
    [row] = corrections(snapshot(store))
    assert (row["prompt"], row["completion"], row["original"]) == ("p", "the", "teh")


def test_an_empty_place_of_media_stays_its_place(ask, tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "q.csv").write_text("prompt,response_1,response_2,media_1,media_2\np,a,,,x.png\n")
    [task] = ask("q.csv")
    assert [(one.text, len(one.blobs)) for one in task.item.responses] == [("a", 0), ("", 1)]


def test_postgresql_knows_whom_a_question_is_for(store_on_postgresql):
    with Store.open(store_on_postgresql) as store:
        enrol(store, "alice", "bob")
        task = task_of(PAIR, to=("alice",), overlap=1)
        assert (put(store, [task]), put(store, [task])) == (1, 0)
        assert store.next_task("bob") is None
        assert store.next_task("alice").task == task.id
