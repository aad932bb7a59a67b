"""What people have in their hands as rows: tables, data sets, columns."""

from __future__ import annotations

import datetime
import io
from collections import namedtuple
from pathlib import Path

import numpy as np
import pandas
import pytest

from penstock.core.errors import SpecError
from penstock.data.held import held

ROWS = [{"prompt": "a", "answer": 3}, {"prompt": "b", "answer": 4}]


def test_lists_tuples_and_generators_are_their_items():
    assert held(ROWS, "prompts") == held(tuple(ROWS), "prompts") == held((row for row in ROWS), "prompts") == ROWS


def test_columns_are_rows():
    assert held({"prompt": ["a", "b"], "answer": np.array([3, 4])}, "prompts") == ROWS


def test_a_table_of_pandas_is_its_rows():
    pandas = pytest.importorskip("pandas")
    assert held(pandas.DataFrame(ROWS), "prompts") == ROWS
    assert held(pandas.DataFrame(ROWS)["prompt"], "prompts") == ["a", "b"]


def test_an_empty_cell_is_null_and_makes_no_float_of_its_column():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([{"answer": 3, "text": "x"}, {"text": None}, {"answer": 5, "text": float("nan")}])
    assert held(table, "prompts") == [{"answer": 3, "text": "x"}, {"answer": None, "text": None}, {"answer": 5, "text": None}]


def test_a_table_of_arrow_has_no_keys_that_it_added():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_pylist([{"call": {"city": "Paris"}}, {"call": {"zone": "CET"}}])
    assert table.to_pylist()[0]["call"] == {"city": "Paris", "zone": None}
    assert held(table.cast(table.schema), "prompts") == [{"call": {"city": "Paris"}}, {"call": {"zone": "CET"}}]


def test_a_data_set_is_its_rows():
    datasets = pytest.importorskip("datasets")
    assert held(datasets.Dataset.from_list(ROWS), "prompts") == ROWS


def test_the_splits_of_a_data_set_are_named():
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(SpecError, match=r'has the splits train, test; give one of them: …\["train"\]'):
        held(both, "prompts")


def test_a_data_set_without_a_length_is_refused():
    datasets = pytest.importorskip("datasets")
    with pytest.raises(SpecError, match="without a length"):
        held(datasets.Dataset.from_list(ROWS).to_iterable_dataset(), "prompts")


def test_a_data_set_of_torch_is_its_items():
    class Mine:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return ROWS[index]

    assert held(Mine(), "prompts") == ROWS


@pytest.mark.parametrize(("given", "says"), [
    ({"prompt": "a"}, "one mapping with prompt"),
    ({}, "one mapping with nothing"),
    ({"a": ["x"], "b": []}, "different lengths"),
    ({"a", "b"}, "no order"),
    (b"abc", "is bytes"),
    (7, "is int"),
    (None, "is NoneType"),
])  # fmt: skip
def test_what_is_no_list_of_rows_is_refused(given, says):
    with pytest.raises(SpecError, match=f"prompts=….*{says}"):
        held(given, "prompts")


def test_dates_stay_what_they_are():
    assert held([{"day": datetime.date(2024, 1, 5)}], "prompts") == [{"day": datetime.date(2024, 1, 5)}]


def test_named_tuples_are_rows_by_their_names():
    Pair = namedtuple("Pair", "chosen rejected prompt")
    assert held([Pair("good", "bad", "q")], "preferences") == [{"chosen": "good", "rejected": "bad", "prompt": "q"}]


@pytest.mark.parametrize("given", [["a.json", "b.json"], [Path("a.txt")]], ids=["names", "paths"])
def test_a_list_of_files_is_no_list_of_prompts(given):
    with pytest.raises(SpecError, match="is a list of files"):
        held(given, "prompts")


def test_an_open_file_is_refused():
    with pytest.raises(SpecError, match="is an open file; give its name"):
        held(io.StringIO("{}"), "samples")


def test_columns_of_the_same_name_are_refused():
    table = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(SpecError, match="has columns twice: a"):
        held(table, "samples")
