"""Files, gym tasks, hub tables and functions as rows of data."""

import gzip
import importlib
import json

import pytest

from penstock.config.run import DataSpec
from penstock.core.errors import DataError, SpecError
from penstock.data.resolve import register
from penstock.data.sources import is_function, open_source


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def everything(source):
    return [dict(source[index]) for index in range(len(source))]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_json_lines_are_read(packed, tmp_path):
    name, written = ("some.jsonl.gz", gzip.open) if packed else ("some.jsonl", open)
    with written(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write('{"a": 1}\n\n{"a": "ü\u2028x"}')
    source = open_source(DataSpec(source=name), tmp_path)
    assert everything(source) == [{"a": 1}, {"a": "ü\u2028x"}]
    assert source.name == "some"


def test_a_given_name_wins(tmp_path):
    write(tmp_path / "some.jsonl", [{"a": 1}])
    assert open_source(DataSpec(source="some.jsonl", name="mine"), tmp_path).name == "mine"


def test_text_is_split_at_line_feeds_only(tmp_path):
    (tmp_path / "some.txt").write_bytes("one\x85still one\u2028still\x0cone\ntwo\r\nthree".encode())
    source = open_source(DataSpec(source="some.txt"), tmp_path)
    assert [row["text"] for row in everything(source)] == ["one\x85still one\u2028still\x0cone", "two", "three"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1}\n{"a": \n', r"bad.jsonl:2: not valid JSON \("),
        (b'{"a": 1}\n\n[1]\n', "bad.jsonl:3: a row must be a JSON object"),
        (b'{"a": 1}\n"\xff"\n', "bad.jsonl:2: not UTF-8"),
        (b"[" * 100000 + b"\n", "bad.jsonl:1: not valid JSON"),
        (b"", "bad.jsonl: no rows"),
        (b"\n\n", "bad.jsonl: no rows"),
    ],
)
def test_a_malformed_file_names_its_line(tmp_path, content, says):
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=says):
        open_source(DataSpec(source="bad.jsonl"), tmp_path)


def test_a_cut_archive_is_refused(tmp_path):
    whole = gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(1000)))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.jsonl.gz: cannot be read"):
        open_source(DataSpec(source="cut.jsonl.gz"), tmp_path)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("deep/none.jsonl", DataError, "{folder}/deep/none.jsonl: there is no such file"),
        ("data.xlsx", DataError, r"use a file or its URL \(.jsonl, .*gym:TASK"),
        ("none.py:f", SpecError, "there is no file"),
    ],
    ids=["by its absolute path", "with the known kinds", "of a function"],
)
def test_a_source_that_is_not_there_is_named(source, error, message, tmp_path):
    with pytest.raises(error, match=message.format(folder=tmp_path.resolve())):
        open_source(DataSpec(source=source), tmp_path)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"size": 4}, [0, 1, 2, 3]),
        ({"skip": 4}, [4, 5, 6, 7, 8, 9]),
        ({"skip": 4, "size": 2}, [4, 5]),
        ({"skip": 8, "size": 5}, [8, 9]),
    ],
)
def test_skip_and_size_keep_rows_apart(fields, expected):
    source = open_source(DataSpec(source=register(make_rows), options={"count": 10}, **fields), None)
    assert [row["n"] for row in everything(source)] == expected


@pytest.mark.parametrize("fields", [{"skip": 10}, {"skip": 20, "size": 3}])
def test_skipping_everything_is_refused(fields, tmp_path):
    write(tmp_path / "n.jsonl", [{"n": n} for n in range(10)])
    with pytest.raises(DataError, match="leaves none of its 10 rows"):
        open_source(DataSpec(source="n.jsonl", **fields), tmp_path)


def test_a_file_is_read_only_as_far_as_needed(tmp_path):
    (tmp_path / "n.jsonl").write_text('{"n": 0}\nbroken\n')
    assert everything(open_source(DataSpec(source="n.jsonl", size=1), tmp_path)) == [{"n": 0}]


def make_rows(count=2):
    return [{"n": n} for n in range(count)]


def test_a_function_gives_rows():
    source = open_source(DataSpec(source=register(make_rows), options={"count": 3}), None)
    assert everything(source) == make_rows(3)
    assert source.name == "make_rows"


def test_a_function_in_a_file_gives_rows(tmp_path):
    (tmp_path / "my_rows.py").write_text("def rows(n):\n    yield from ({'x': i} for i in range(n))\n")
    source = open_source(DataSpec(source="my_rows.py:rows", options={"n": 5}, skip=3), tmp_path)
    assert everything(source) == [{"x": 3}, {"x": 4}]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: "text", "return a list of mappings"),
        (lambda: {"a": [1]}, "return a list of mappings"),
        (lambda: [{"a": 1}, 2], "row 1 is int"),
        (list, "returned no rows"),
        (lambda needed: [], "needed"),
        (lambda: ({"a": 1 / n} for n in (1, 0)), "while giving its rows: ZeroDivisionError"),
    ],
)
def test_a_failing_function_is_blamed(function, says, tmp_path):
    with pytest.raises(DataError, match=says):
        open_source(DataSpec(source=register(function)), tmp_path)


def test_a_gym_task_gives_rows_with_their_scorer(tmp_path):
    from penstock.data.gym import gym_score

    source = open_source(DataSpec(source="gym:chain_sum", size=4, options={"max_terms": 3}), tmp_path)
    row = source[3]
    assert set(row) == {"question", "answer", "metadata", "task", "entry"}
    assert (source.name, len(source), row["task"]) == ("chain_sum", 4, "chain_sum")
    assert gym_score("chain_sum", row["answer"], row["entry"]) == 1
    assert gym_score("chain_sum", "nonsense", row["entry"]) < 1


def questions(**fields):
    return [row["question"] for row in everything(open_source(DataSpec(source="gym:chain_sum", **fields), None))]


def test_gym_rows_depend_on_the_seed_only():
    assert questions(size=3) == questions(size=3, options={"seed": 0})
    assert questions(size=3, options={"seed": 1}) != questions(size=3)


def test_skipped_gym_rows_are_others():
    assert questions(size=3, skip=2) == questions(size=5)[2:]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"source": "gym:chain_sums", "size": 1}, 'did you mean "chain_sum"'),
        ({"source": "gym:chain_sum"}, "set data.size"),
        ({"source": "gym:chain_sum", "size": 1, "options": {"wrong": 1}}, "wrong"),
        ({"source": "gym:chain_sum", "size": 1, "options": {"min_terms": -1}}, "min_terms"),
    ],
)
def test_a_wrong_gym_task_says_what_is_wrong(fields, says, tmp_path):
    with pytest.raises(DataError, match=says):
        open_source(DataSpec(**fields), tmp_path)


@pytest.fixture
def _offline(monkeypatch, tmp_path):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.mark.usefixtures("_offline")
def test_a_local_table_is_read_through_the_hub_source(tmp_path):
    (tmp_path / "t.csv").write_text("q,a\nx,1\ny,2\nz,3\n")
    source = open_source(DataSpec(source="hub:t.csv", skip=1), tmp_path)
    assert everything(source) == [{"q": "y", "a": 2}, {"q": "z", "a": 3}]
    assert source.name == "t"


@pytest.mark.usefixtures("_offline")
def test_a_saved_dataset_folder_is_read(tmp_path):
    import datasets

    table = datasets.Dataset.from_list([{"q": "x"}, {"q": "y"}])
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": table}).save_to_disk(tmp_path / "many")
    assert everything(open_source(DataSpec(source="hub:one"), tmp_path)) == [{"q": "x"}, {"q": "y"}]
    assert len(open_source(DataSpec(source="hub:many", split="test", size=1), tmp_path)) == 1
    with pytest.raises(DataError, match="train"):
        open_source(DataSpec(source="hub:many"), tmp_path)


@pytest.mark.usefixtures("_offline")
def test_a_data_set_that_cannot_be_loaded_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match="hub:no/such_thing") as caught:
        open_source(DataSpec(source="hub:no/such_thing"), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_offline")
def test_a_hub_out_of_reach_is_left_alone_for_one_data_set_only(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match="hub:no/such_thing"):
        open_source(DataSpec(source="hub:no/such_thing"), tmp_path)
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize("source", ["hub:t.csv", "hub:imdb", "gym:chain_sum", "feedback:votes.db"])
def test_a_source_with_a_scheme_is_no_function(source):
    importlib.import_module("penstock.runtime")  # which brings feedback:
    assert not is_function(source)


def test_cells_of_csv_are_as_they_are_spelled(tmp_path):
    """A reader that guesses makes 7 of 007, a date of 2024-01-05 and null of NA."""
    (tmp_path / "some.csv").write_text("id,day,price,note\n007,2024-01-05,0.50,NA\n7,,0.5,\n")
    assert everything(open_source(DataSpec(source="some.csv"), tmp_path)) == [
        {"id": "007", "day": "2024-01-05", "price": "0.50", "note": "NA"}, {"id": 7, "day": None, "price": 0.5, "note": None}
    ]  # fmt: skip


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": "7"}]', '{"a": 1}\n{"a": "7"}\n'], ids=["a list", "a line each"])
def test_a_json_file_is_a_list_of_objects_or_one_a_line_and_its_texts_stay_texts(text, tmp_path):
    (tmp_path / "some.json").write_text(text)
    assert everything(open_source(DataSpec(source="some.json"), tmp_path)) == [{"a": 1}, {"a": "7"}]


def test_json_lines_stay_on_disk_and_their_index_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "some.jsonl", [{"a": n, "b": "ü" * 600} for n in range(1000)])
    first = open_source(DataSpec(source="some.jsonl", skip=990), tmp_path)
    assert [row["a"] for row in everything(first)] == list(range(990, 1000))
    (kept,) = (tmp_path / "cache").rglob("*.npy")
    monkeypatch.setattr("penstock.data.files._read_through", None)  # nobody reads it again
    assert open_source(DataSpec(source="some.jsonl"), tmp_path)[500]["a"] == 500
    assert kept.stat().st_size < 20_000


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "some.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2}')
    assert everything(open_source(DataSpec(source="some.jsonl"), tmp_path)) == [{"a": 1}, {"a": 2}]


@pytest.mark.usefixtures("_offline")
@pytest.mark.parametrize(("name", "text"), [
    ("train.csv", "q,answer\nr,007\ns,1.50\n"), ("train.jsonl", '{"q": "r", "answer": "007"}\n{"q": "s", "answer": "1.50"}\n')
])  # fmt: skip
def test_files_of_a_folder_are_read_as_they_are_spelled(name, text, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text(text)
    source = open_source(DataSpec(source="hub:set"), tmp_path)
    assert everything(source) == [{"q": "r", "answer": "007"}, {"q": "s", "answer": "1.50"}]
    with pytest.raises(DataError, match="name one, and use skip and size"):
        open_source(DataSpec(source="hub:set", split="train[:1]"), tmp_path)


@pytest.mark.parametrize("name", ["rows.ndjson", "rows.csv.gz", "rows.tsv", "ROWS.CSV", "rows.json.gz", "rows.txt.gz"])
def test_files_by_other_names_are_read(name, tmp_path):
    kind = name.lower().removesuffix(".gz").rpartition(".")[2]
    text = {"ndjson": '{"text": "a"}\n', "csv": "text\na\n", "tsv": "text\na\n", "json": '[{"text": "a"}]', "txt": "a\n"}[kind]
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert everything(open_source(DataSpec(source=name), tmp_path)) == [{"text": "a"}]


def test_a_function_may_give_a_container_which_is_read_as_one(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pyarrow\ndef rows():\n    return pyarrow.Table.from_pylist([{'a': {'x': 1}}, {'a': {'y': 2}}])\n"
    )
    assert everything(open_source(DataSpec(source="mine.py:rows"), tmp_path)) == [{"a": {"x": 1}}, {"a": {"y": 2}}]
