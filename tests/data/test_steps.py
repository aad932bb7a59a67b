"""Judged solutions in the formats of Math-Shepherd and PRM800K."""

import json

import pytest

from penstock.core.errors import DataError
from penstock.data.steps import math_shepherd, prm800k

SHEPHERD = {
    "input": "How many? 2 + 2 - 1 Step 1: 2 + 2 = 4 ки\nStep 2: 4 - 1 = 2 ки\nStep 3: The answer is: 2 ки",
    "label": "How many? 2 + 2 - 1 Step 1: 2 + 2 = 4 +\nStep 2: 4 - 1 = 2 -\nStep 3: The answer is: 2 -",
    "task": "GSM8K",
}


def rating(text, value):
    return {"text": text, "rating": value, "flagged": None}


PRM = {
    "question": {"problem": "How many?"},
    "label": {
        "steps": [
            {"completions": [rating("one", 1), rating("bad", -1)], "human_completion": None, "chosen_completion": 0},
            {"completions": [rating("two", 0)], "human_completion": {"text": "human"}, "chosen_completion": None},
            {"completions": [rating("three", -1), rating("four", None)], "human_completion": None, "chosen_completion": None},
        ]
    },
}


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write


def test_math_shepherd_is_cut_into_steps_with_their_marks(write):
    assert math_shepherd(write(SHEPHERD)) == [
        {
            "prompt": "How many? 2 + 2 - 1\n",
            "steps": ["Step 1: 2 + 2 = 4", "Step 2: 4 - 1 = 2", "Step 3: The answer is: 2"],
            "labels": [1.0, 0.0, 0.0],
        }
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, 'row 0: Math-Shepherd has the text "label"'),
        ({"input": "no steps"}, 'no "Step 1:"'),
        ({"label": SHEPHERD["label"].replace("= 2 -", "= 2 ?")}, "do not agree on step 2"),
        ({"label": SHEPHERD["label"][:40]}, "do not agree on step"),
    ],
)
def test_rows_of_another_format_are_named(write, change, message):
    with pytest.raises(DataError, match=message):
        math_shepherd(write(SHEPHERD | change))


def test_prm800k_gives_one_row_for_each_judged_completion(write):
    found = [(row["steps"], row["labels"]) for row in prm800k(write(PRM), neutral=0.5)]
    assert found == [
        (["one"], [1.0]),
        (["bad"], [0.0]),
        (["one", "two"], [None, 0.5]),
        (["one", "human", "three"], [None, None, 0.0]),
    ]


def test_a_row_that_is_not_prm800k_is_named(write):
    with pytest.raises(DataError, match="row 0: not of the format of PRM800K"):
        prm800k(write({"question": "How many?"}))
