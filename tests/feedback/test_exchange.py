"""From votes to rows by hand values; natures kept apart; hashes; files; formulas made inert; TRL and Argilla there and back."""

import csv
import io
from dataclasses import dataclass, replace
from typing import Any

import pytest
from feedback_examples import EQUAL, SIMULATED, answer, enrol, gold, pair, rows_of, say

from penstock.feedback.errors import FeedbackError, NotAllowed
from penstock.feedback.exchange.files import changed_texts, csv_bytes, placed_rows, write_rows
from penstock.feedback.exchange.formats import ArgillaLayout, from_argilla, from_trl, to_argilla, to_trl
from penstock.feedback.exchange.imports import hh_rlhf, load, rt_polarity
from penstock.feedback.exchange.snapshot import (
    COMMON_WEIGHT,
    Labels,
    annotator_weights,
    content_hash,
    corrections,
    counted,
    labelled_completions,
    preference_pairs,
    snapshot,
)
from penstock.feedback.records import Item, Response, Submission, Task
from penstock.feedback.store import Store


@pytest.fixture
def store(store):
    enrol(store, "ann", "bob", "cleo", "dora", "emil", "mal")
    enrol(store, "judge", role="adjudicator")
    return store


def placed(rows):
    """Rows with their places."""
    return [(f"f:{number}", row) for number, row in enumerate(rows, 1)]


def said(store, task, **preferences):
    [name] = store.ask([task])
    for annotator, preference in preferences.items():
        answer(store, name, annotator, preference)
    return name


@dataclass(frozen=True)
class Case:
    """Votes on a pair, what gold and a judge say of it, who fails other gold; and the row that it becomes, or none."""

    votes: dict[str, int]
    row: dict[str, Any] | None
    gold: int | None = None
    judge: int | None = None
    liar: str = ""
    labels: Labels = EQUAL


ONE_SIDED = {"ann": 1, "bob": 1}
CASES = {
    "a majority is a soft label": Case(
        {"ann": -2, "bob": -1, "cleo": 3},
        # two votes of log-odds w against one leave one vote
        {
            "chosen": "second x",
            "rejected": "first x",
            "votes": 3,
            "probability": pytest.approx(0.7),
            "agreement": pytest.approx(2 / 3),
        },
    ),
    "shares are the other soft label": Case(
        {"ann": 1, "bob": 1, "cleo": 0},
        {"probability": pytest.approx((2.5 * COMMON_WEIGHT + 1) / (3 * COMMON_WEIGHT + 2))},
        labels=Labels(weights="equal", soft="share"),
    ),
    "a tie is no pair": Case({"ann": 1, "bob": -1}, None),
    "what most call a tie is no preference": Case({"ann": 0, "bob": 0, "cleo": 0, "dora": 1, "emil": 1}, None),
    "what half call a tie is one": Case({"ann": 0, "bob": 0, "cleo": 1, "dora": 1}, {"chosen": "first x"}),
    "an adjudicator decides": Case(
        ONE_SIDED, {"chosen": "second x", "votes": 1, "agreement": 1, "probability": pytest.approx(0.95)}, judge=-3
    ),
    "an adjudicator who fails gold decides nothing": Case(
        ONE_SIDED, {"chosen": "first x", "votes": 2}, judge=-3, liar="judge", labels=Labels()
    ),
    "what gold calls a tie is no preference": Case({**ONE_SIDED, "cleo": 1}, None, gold=0, labels=Labels()),
    "strength and votes are of those whose word counts": Case(
        {**ONE_SIDED, "mal": 3}, {"strength": 1, "votes": 2, "agreement": 1}, liar="mal", labels=Labels()
    ),
    "where gold alone prefers it strength is the least": Case(
        {"ann": -3, "bob": -2}, {"chosen": "first x", "strength": 1, "agreement": 0}, gold=1, labels=Labels()
    ),
}


def rows_about(store, case):
    """The rows of the pair."""
    for number in range(12 if case.liar else 0):
        said(store, gold(f"g{number}"), **{**ONE_SIDED, case.liar: -1})
    task = pair(overlap=5)
    said(store, task, **case.votes)
    if case.gold is not None:
        said(store, gold("x", case.gold), dora=case.gold)
    if case.judge is not None:
        said(store, replace(task, purpose="adjudication", origin=task.id, overlap=1), judge=case.judge)
    return [row for row in rows_of(store, case.labels) if row["prompt"] == "prompt x"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_votes_become_a_row(store, case):
    found = [{name: row[name] for name in case.row or ()} for row in rows_about(store, case)]
    assert found == ([] if case.row is None else [case.row])


def test_an_adjudicator_decides_for_the_minority_too(store):
    [row] = rows_about(store, Case({**ONE_SIDED, "cleo": -1}, None, judge=-1, labels=Labels()))
    assert row["chosen"] == "second x"


def test_gold_and_repeats_are_not_trained_on(store):
    task = pair(overlap=1)
    said(store, task, ann=1)
    said(store, gold(), ann=1, bob=1)
    said(store, replace(task, purpose="repeat", origin=task.id, reserved="ann"), ann=-3)
    [row] = rows_of(store)
    assert (row["votes"], row["chosen"]) == (1, "first x")


def test_simulated_votes_are_never_mixed_in_unasked(store):
    enrol(store, "sim", nature="simulated")
    said(store, pair(), sim=1)
    assert preference_pairs(snapshot(store)) == []
    assert len(rows_of(store, SIMULATED)) == 1


def test_rows_tell_which_weights_wrote_them(store):
    item = Item("p", (Response("a", (5, 6), (-1.0,), "run", "ppo", 12), Response("b", source="human")))
    said(store, Task(item=item, overlap=1), ann=2)
    [row] = rows_of(store)
    assert row["chosen_origin"] == {"run": "run", "stage": "ppo", "version": 12, "source": ""}
    assert row["rejected_origin"]["source"] == "human"


def test_votes_become_good_and_bad_completions(store):
    said(store, pair(overlap=1), ann=2)
    name = said(store, pair("bad", overlap=1))
    say(store, "vote", name, "bob", preference=0, both_bad=True)
    rows = {row["completion"]: row["label"] for row in labelled_completions(snapshot(store), EQUAL)}
    assert rows == {"first x": True, "second x": False, "first bad": False, "second bad": False}


def test_ratings_are_good_above_the_middle_of_the_scale(store):
    [name] = store.ask([pair(form="rating", scale=(0, 10))])
    say(store, "rating", name, "ann", scores={"overall": [7, 5]})
    [row] = labelled_completions(snapshot(store), EQUAL)
    assert (row["completion"], row["label"]) == ("first x", True)


def test_a_repeat_does_not_stand_in_for_a_rating_that_was_taken_back(store):
    task = pair(form="rating", scale=(0, 10))
    repeat = replace(task, purpose="repeat", origin=task.id, reserved="ann", overlap=1)
    for name in store.ask([task, repeat]):
        say(store, "rating", name, "ann", scores={"overall": [7, 3]})
    assert [row["votes"] for row in labelled_completions(snapshot(store), EQUAL)] == [1, 1]
    enrol(store, "root", role="admin")
    store.retract("root", "r", 1, "a mistake")
    assert labelled_completions(snapshot(store), EQUAL) == []


def test_who_is_contradicted_by_ties_alone_has_the_common_weight(store):
    for number in range(6):
        said(store, pair(str(number)), ann=1 if number % 2 else -1, bob=0)
    found = counted(snapshot(store), Labels())
    assert annotator_weights(found, {}, Labels())["ann"] == COMMON_WEIGHT


def test_edits_are_corrections_and_pairs(store):
    [name] = store.ask([pair()])
    say(store, "edit", name, "ann", response=1, text="mended")
    store.submit(Submission("edit", name, "ann", "e2", {"response": 0, "text": "first x"}))
    [row] = corrections(snapshot(store))
    assert (row["completion"], row["chosen"], row["rejected"]) == ("mended", "mended", "second x")


def test_an_earlier_point_of_the_log_gives_the_same_rows_for_ever(store):
    said(store, pair("a", overlap=1), ann=1)
    then, digest = store.length(), content_hash(rows_of(store))
    said(store, pair("b", overlap=1), ann=-1)
    store.undo("ann", "u1", 1)
    assert content_hash(rows_of(store, until=then)) == digest
    assert content_hash(rows_of(store)) != digest
    with pytest.raises(FeedbackError, match="same store"):
        snapshot(store, 99)


def test_rows_come_back_from_json_lines_and_parquet(store, tmp_path):
    said(store, pair("café\u2028=1+1"), ann=1)
    rows = rows_of(store)
    write_rows(rows, tmp_path / "r.jsonl")
    assert [row for _, row in placed_rows(tmp_path / "r.jsonl")] == rows
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    write_rows(rows, tmp_path / "r.parquet")
    [(_, back)] = placed_rows(tmp_path / "r.parquet")
    assert {name: value for name, value in back.items() if isinstance(value, str | int | float)}.items() >= {
        (name, value) for name, value in rows[0].items() if not isinstance(value, dict)
    }


def test_a_file_of_nothing_is_refused(tmp_path):
    with pytest.raises(FeedbackError, match="no rows"):
        write_rows([], tmp_path / "r.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", " =1", "＝1", "|cmd", "\n=1", "\u2003\n@SUM(1)"]
)
def test_csv_cells_are_no_formulas_and_plain_ones_stay_as_they_are(text):
    given = {"text": text, "number": -1.5, "quoted": 'say "=1"', "lines": "two\nlines", "none": None}
    [_, cells] = csv.reader(io.StringIO(csv_bytes([given]).decode(), newline=""))
    assert cells == ["'" + text, "-1.5", 'say "=1"', "two\nlines", ""]


def test_trl_rows_go_there_and_back(store, tmp_path):
    for number in range(6):
        said(store, pair(str(number), overlap=1), ann=1 if number % 2 else -1)
    rows = rows_of(store)
    for form in (rows, to_trl(rows)):
        with Store.open(tmp_path / f"{type(form[0]['prompt']).__name__}.db") as other:
            assert load(other, from_trl(placed(form), "theirs")) == 6
            again = rows_of(other)
        kept = ("prompt", "chosen", "rejected")
        assert [[row[name] for name in kept] for row in again] == [[row[name] for name in kept] for row in rows]


def test_trl_rows_with_an_implicit_prompt_are_split_at_a_word():
    [(task, _)] = from_trl([("f:1", {"chosen": "The sky is blue.", "rejected": "The sky is black."})], "theirs")
    assert task.item.prompt == "The sky is"
    assert {response.text for response in task.item.responses} == {" blue.", " black."}


def test_conversations_are_not_written_into_cells_of_csv(tmp_path):
    with pytest.raises(FeedbackError, match=r"chosen holds conversations, .* use \.jsonl or \.parquet"):
        write_rows([{"chosen": [{"role": "user", "content": "q"}]}], tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())


SAID = [{"role": "assistant", "content": text} for text in ("good", "bad")]
ASKED = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    "row",
    [
        {"input": {"messages": [ASKED]}, "preferred_output": SAID[:1], "non_preferred_output": SAID[1:]},
        {"prompt": "q", "chosen": [ASKED, SAID[0]], "rejected": [ASKED, SAID[1]], "score_chosen": 8.5},
    ],
    ids=["OpenAI's preference format", "UltraFeedback, binarized"],
)
def test_preferences_of_other_layouts_are_read_as_training_reads_them(row):
    [(task, _)] = from_trl([("f:1", row)], "theirs")
    assert task.item.prompt == "q"
    assert {response.text for response in task.item.responses} == {"good", "bad"}


def test_an_answer_that_is_a_call_and_no_text_is_refused_by_its_place():
    calls = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    with pytest.raises(FeedbackError, match=r"^f:7: .*chosen\[0\] has no content"):
        from_trl([("f:7", {"prompt": "q", "chosen": [calls], "rejected": SAID[1:]})], "theirs")


def test_argilla_records_go_there_and_back(store, tmp_path):
    said(store, pair("x", overlap=3), ann=2, bob=-1, cleo=0)
    records = to_argilla(snapshot(store))
    assert [answer["value"] for answer in records[0]["responses"]["preference"]] == ["response1", "response2", "tie"]
    with Store.open(tmp_path / "back.db") as other:
        assert load(other, from_argilla(placed(records))) == 3
        assert to_argilla(snapshot(other))[0]["responses"] == records[0]["responses"]
        assert {annotator.nature for annotator in other.annotators()} == {"imported"}


def test_argilla_rankings_are_read():
    layout = ArgillaLayout(responses=("a", "b", "c"), question="rank")
    fields = {"prompt": "p", "a": "x", "b": "y", "c": "z"}
    [(task, [submission])] = from_argilla(placed([record({"value": ["c", "a", "b"]}, of="rank", fields=fields)]), layout)
    assert (task.form, submission.body) == ("ranking", {"ranks": [2, 3, 1]})


FIELDS = {"prompt": "p", "response1": "x", "response2": "y"}


def record(*answers, of="preference", **more):
    """A record of Argilla, answered by one user after the other."""
    return {"fields": FIELDS, "responses": {of: list(answers)}, **more}


@pytest.mark.parametrize(
    "wrong",
    [
        record({"value": "what"}),
        {"fields": ["p", "x", "y"]},
        {"fields": FIELDS, "responses": ["response1"]},
        {"fields": FIELDS, "responses": {"preference": "response1"}},
        record("response1"),
        record({"value": True}),
        record({"value": 11}),
        record({"value": 5}, {"value": "response1"}),
        record({"value": {"response1": 1}}),
        record({"value": [{"rank": 1}, 5]}),
        record({"value": [[], None]}),
        record({"value": [{"value": "response1", "rank": "1"}, {"value": "response2", "rank": "2"}]}),
        {"prompt": "p", "chosen": "x", "rejected": "y"},
    ],
)
def test_an_argilla_record_of_another_kind_is_refused_by_its_place(wrong):
    with pytest.raises(FeedbackError, match=r"^f\.json:7: "):
        from_argilla([("f.json:7", wrong)])


def test_two_answers_by_one_user_in_an_argilla_record_are_refused_by_line_and_record():
    answers = [{"value": f"response{number}", "user_id": "u7"} for number in (1, 2)]
    with pytest.raises(FeedbackError, match=r"^f:2: record r-9 has two answers by user u7; keep one of them$"):
        from_argilla(placed([{"fields": FIELDS}, record(*answers, id="r-9")]))


def test_an_argilla_record_without_answers_is_a_task():
    for responses in (None, {}, {"preference": None}, {"preference": []}):
        [(task, said)] = from_argilla([("f.json:1", {"fields": FIELDS, "responses": responses})])
        assert (task.form, said) == ("pair", [])


def imported(annotator, count=1):
    return from_trl([("f", {"prompt": str(n), "chosen": "good", "rejected": "bad"}) for n in range(count)], annotator)


def test_imported_pairs_stand_in_even_order():
    first = sum(submission.body["preference"] > 0 for _, [submission] in imported("theirs", 200))
    assert 70 < first < 130


def test_importing_again_adds_nothing(store):
    assert (load(store, imported("theirs")), load(store, imported("theirs"))) == (1, 0)
    store.verify()


def test_nobody_imports_in_the_name_of_a_person(store):
    with pytest.raises(FeedbackError, match="stays so"):
        load(store, imported("ann"))
    [(task, said)] = imported("ann")
    store.ask([task])
    with pytest.raises(NotAllowed, match="person"):
        store.record(said)


def test_hh_rlhf_and_rt_polarity_are_read(store, tmp_path):
    dialogue = "\n\nHuman: hi\n\nAssistant:"
    rows = [{"chosen": f"{dialogue} yes", "rejected": f"{dialogue} no"}, {"chosen": f"{dialogue} a", "rejected": "other"}]
    write_rows(rows, tmp_path / "hh.jsonl")
    (tmp_path / "pos.txt").write_text("fine film\n")
    (tmp_path / "neg.txt").write_text("dull film\n")
    assert load(store, hh_rlhf(tmp_path / "hh.jsonl")) == 1
    assert load(store, rt_polarity(tmp_path)) == 2
    taken = snapshot(store)
    assert [(row["prompt"], row["chosen"]) for row in preference_pairs(taken)] == [(dialogue, " yes")]
    labels = {row["completion"]: row["label"] for row in labelled_completions(taken)}
    assert labels == {"fine film": True, "dull film": False, " yes": True, " no": False}


def test_a_store_and_its_exports_are_nobody_else_s(tmp_path):
    with Store.open(tmp_path / "f.db") as store:
        enrol(store, "ann")
        said(store, pair(overlap=1), ann=1)
        write_rows(rows_of(store), tmp_path / "rows.jsonl")
        made = {place.name: place.stat().st_mode & 0o077 for place in tmp_path.iterdir()}
    assert made.keys() >= {"f.db", "f.db-wal", "rows.jsonl"}
    assert set(made.values()) == {0}


@pytest.mark.parametrize(("suffix", "count"), [(".csv", 2), (".jsonl", 0), (".parquet", 0)])
def test_texts_that_a_file_changes_are_counted(suffix, count):
    rows = [{"prompt": "-1 + 1", "answer": "0"}, {"prompt": "= 3", "votes": -2}]
    assert changed_texts(rows, suffix) == count
