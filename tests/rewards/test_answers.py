"""Which answers a row calls right, and which one a completion gives."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow
import pytest
from reward_examples import make_sample

from penstock.core.errors import RewardError
from penstock.rewards.answers import answer_of, expected, statement
from penstock.rewards.built_in import contains, exact_match, find_last_number, last_number

TRIVIA = {
    "value": "Sunset Blvd",
    "aliases": ["Sunset Blvd", "Sunset Boulevard"],
    "normalized_value": "sunset blvd",
    "normalized_aliases": ["sunset blvd", "sunset boulevard"],
    "matched_wiki_entity_name": "",
    "normalized_matched_wiki_entity_name": "",
    "type": "WikipediaEntity",
}


@pytest.mark.parametrize(
    "answer",
    [
        ["Paris", "paris"],
        ("Paris", "paris"),
        np.array(["Paris", "paris"]),
        np.array(["Paris", "paris"], object),
        pyarrow.array(["Paris", "paris"]),
        pyarrow.scalar(["Paris", "paris"]),
        {"value": "Paris", "aliases": ["paris"]},
        {"text": ["paris", "Paris"], "answer_start": [1, 7]},
        {"ground_truth": "Paris", "style": "rule"},
    ],
    ids=["list", "tuple", "array", "array of objects", "Arrow's array", "Arrow's list", "TriviaQA", "SQuAD", "verl"],
)
def test_any_of_several_right_answers_is_right(answer):
    columns = {"answer": answer}
    assert exact_match(make_sample("Paris"), columns) == 1
    assert exact_match(make_sample("London"), columns) == 0
    assert contains(make_sample("It is Paris."), columns) == 1
    assert contains(make_sample("It is London."), columns) == 0


def test_a_row_of_trivia_qa_as_it_is_published():
    for right in ("Sunset Boulevard", "sunset blvd"):
        assert exact_match(make_sample(right), {"answer": TRIVIA}) == 1
    assert exact_match(make_sample("WikipediaEntity"), {"answer": TRIVIA}) == 0


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        (3, "3.0", 1),
        (3.0, "3", 1),
        (np.float64(3), " 3 ", 1),
        (np.int64(1072), "1,072", 1),
        (np.float32(0.1), "0.1", 1),
        ([1, 2.5], "2.50", 1),
        (-3, "−3", 1),
        (3, "4", 0),
        (3, "nan", 0),
        (3, "3 apples", 0),
        ("3", "3.0", 0),
    ],
)
def test_a_number_is_compared_as_a_number_and_a_text_as_a_text(answer, text, right):
    assert exact_match(make_sample(text), {"answer": answer}) == right


def test_a_number_is_contained_as_a_whole_number():
    assert contains(make_sample("it is 42."), {"answer": 42}) == 1
    assert contains(make_sample("it is 142"), {"answer": 42}) == 0


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (float("nan"), r"nan \(float\)"),
        (np.float64("inf"), "inf"),
        (Decimal("NaN"), "Decimal"),
        (True, r"True \(bool\)"),
        (np.bool_(True), "bool"),
        (datetime.date(2024, 1, 5), "date"),
        (b"Paris", "bytes"),
        ([["Paris"]], "list"),
        (["Paris", None], "NoneType"),
        (["Paris", float("nan")], "nan"),
        ({"city": "Paris"}, "city"),
        ({"value": "Paris", "aliases": [], "score": 1}, "score"),
        ({"Paris"}, "set"),
        (np.array([["a"]]), "ndarray"),
    ],
)
@pytest.mark.parametrize("reward", [exact_match, contains, last_number])
def test_what_is_no_answer_is_an_error_that_names_the_column_and_what_was_found(reward, answer, found):
    with pytest.raises(RewardError, match=rf'column "gold" holds .*{found}.*, which is no answer; give a text, a finite'):
        reward(make_sample("nan"), {"gold": answer}, column="gold")


@pytest.mark.parametrize("answer", [[], np.array([]), {"value": None, "aliases": []}])
def test_a_list_without_an_answer_is_an_error(answer):
    with pytest.raises(RewardError, match=r'column "answer" holds .* a list without an answer'):
        expected({"answer": answer}, "answer")


@pytest.mark.parametrize("reward", [exact_match, contains])
@pytest.mark.parametrize("answer", ["48/2 = <<48/2=24>>24\n#### 72", "#### 72", r"So $x=3$ and it is $\boxed{72}$."])
def test_a_worked_solution_is_refused_where_all_of_it_would_be_compared(reward, answer):
    with pytest.raises(RewardError, match=r"worked solution, which ends in '72'.*use last_number or math"):
        reward(make_sample("72"), {"answer": answer})


@pytest.mark.parametrize(
    "answer", ["48/2 = <<48/2=24>>24\n#### 1,072", r"It is $\boxed{1072}$, as $2+1=3$.", 1072.0, ["7", "1072"]]
)
def test_the_last_number_is_that_of_the_final_answer(answer):
    assert last_number(make_sample("so 1072."), {"answer": answer}) == 1
    assert last_number(make_sample("so 3."), {"answer": answer}) == 0


@pytest.mark.parametrize("text", ["1/2", "x^2", "10^{2}", r"\frac{1}{2}", r"\frac12", "12:2", "1e2", "2/x", "2^x"])
def test_a_part_of_a_number_is_no_number(text):
    assert find_last_number(text) is None
    with pytest.raises(RewardError, match="no number in column"):
        last_number(make_sample("2"), {"answer": text})


@pytest.mark.parametrize("text", ["Answer:72", "Question 3: 72", "$72/day", "so 1 + 71 = 72"])
def test_a_number_after_punctuation_is_whole(text):
    assert find_last_number(text) == 72


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>London? No.</think>\n\nParis", "Paris"),
        ("London? No.</think>Paris", "Paris"),
        ("<think>London", ""),
        ("<think>Paris</think>", ""),
        ("Paris <think>or London", "Paris"),
        ("<think>a</think> <answer> Paris </answer>", "Paris"),
        ("<answer>London</answer><answer>Paris</answer>.", "Paris"),
        ("<answer>Paris", "Paris"),
        ("Paris", "Paris"),
    ],
)
def test_the_answer_is_what_follows_the_thought(text, answer):
    assert answer_of(make_sample(text)).strip() == answer


def test_marks_that_are_special_tokens_are_read_too():
    sample = make_sample("London? No.Paris", marked="<think>London? No.</think>Paris")
    assert exact_match(sample, {"answer": "Paris"}) == 1
    assert exact_match(make_sample("Paris", marked="Paris<|other|>"), {"answer": "Paris"}) == 1


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The answer is $x=3$, since $3+4=7$.", "x=3"),
        ("The answer is 5 because 2+3=5", "5"),
        ("I pay $5 and $7", "$5, $7"),
        ("between 3 and 4", "3, 4"),
        ("$5$ apples make 10", "10"),
        ("Step 1: 5\nStep 2: 8 * 2 = 16", "2: 8 * 2 = 16"),
        ("#### Step 4\nThe answer is 5.", "5"),
        ("(so 72)", "72"),
        ("", ""),
        ("word " * 60, ""),
        ("\\boxed{\\boxed{5}}", "5"),
    ],
)
def test_a_text_states_its_answer_at_its_end(text, stated):
    assert statement(text) == stated
