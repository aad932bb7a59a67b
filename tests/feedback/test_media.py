"""Images, sounds and videos as prompts and answers: in the store by their hashes, from files and back."""

import base64
import json

import numpy as np
import pytest
from feedback_examples import answers, asked, enrol, everything

from media_examples import png, wav
from penstock.cli.main import main
from penstock.config.run import DataSpec
from penstock.core.blobs import Blob
from penstock.core.errors import DataError
from penstock.core.types import Prompt, PromptKey, Sample, SampleKey
from penstock.data.blobs import Blobs
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import preference_pairs, snapshot
from penstock.feedback.judgements import unit_of
from penstock.feedback.records import Item, Response, Task
from penstock.runtime.judging import group_of
from penstock.runtime.stages.ask import response

BLACK, WHITE, SOUND = Blob.of(png(0), "image/png"), Blob.of(png(255), "image/png"), Blob.of(wav(), "audio/wav")
CONTENTS = {BLACK.hash: png(0), WHITE.hash: png(255), SOUND.hash: wav()}


def contents(blob):
    return CONTENTS[blob.hash]


def picture_pair(**fields):
    return Task(Item("Draw night.", (Response("", blobs=(WHITE,)), Response("", blobs=(BLACK,)))), **{"overlap": 2, **fields})


@pytest.fixture
def store(store):
    enrol(store, "alice", "bob")
    return store


@pytest.fixture
def folder(tmp_path):
    for name, content in {"night.png": png(0), "day.png": png(255), "beep.wav": wav()}.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def ask(folder, *rows):
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return main(["feedback", "ask", str(folder / "f.db"), str(folder / "q.jsonl")])


def test_names_of_texts_alone_are_what_they_were_before_there_were_media():
    assert "blobs" not in Response("a").plain()
    assert "blobs" not in Item("p", (Response("a"),)).plain()
    assert Item("p", (Response("a"),)).id == "07f1a47384f791d02e16feaf66178332e938bf5333c690709137d99a5dc97e2c"


def test_a_task_with_media_comes_back_whole(store):
    task = Task(Item("p", (Response("a", blobs=(BLACK, SOUND)), Response("a")), blobs=(WHITE,)))
    [name] = store.ask([task], contents)
    store._tasks.clear()
    assert store.task(name) == task


@pytest.mark.parametrize(
    ("give", "error", "said"),
    [
        (None, FeedbackError, "not in this store; give its bytes"),
        (lambda blob: b"\x89PNG" + bytes(blob.size - 4), DataError, "other bytes"),
    ],
    ids=["none", "others than the name says"],
)
def test_without_the_bytes_nothing_is_asked(store, give, error, said):
    with pytest.raises(error, match=said):
        store.ask([picture_pair()], give)
    assert store.tasks() == []


def test_pictures_are_the_unit_of_a_vote(store):
    there, back = picture_pair(), Task(Item("Draw night.", (Response("", blobs=(BLACK,)), Response("", blobs=(WHITE,)))))
    assert unit_of(there.item)[0] == unit_of(back.item)[0]
    assert unit_of(there.item)[1] == -unit_of(back.item)[1]
    other = Item("Draw night.", (Response("", blobs=(BLACK,)), Response("", blobs=(SOUND,))))
    assert unit_of(there.item)[0] != unit_of(other)[0]


def test_a_vote_on_pictures_is_exported_with_their_names(store):
    answers(store, store.ask([picture_pair()], contents), "alice", "bob", preference=-1)
    [row] = preference_pairs(snapshot(store))
    assert (row["chosen"], row["rejected"]) == ("", "")
    assert [one["hash"] for one in row["media"]["chosen"]] == [BLACK.hash]
    assert [one["hash"] for one in row["media"]["rejected"]] == [WHITE.hash]


NIGHT = "data:image/png;base64," + base64.b64encode(png(0)).decode()


@pytest.mark.parametrize(
    ("name", "content", "blobs"),
    [
        ("q.jsonl", '{"prompt": "p", "media": ["day.png", "night.png"], "prompt_media": "beep.wav"}', [(WHITE,), (BLACK,)]),
        ("q.jsonl", f'{{"prompt": "p", "responses": ["a night", "a day"], "media": ["{NIGHT}", null]}}', [(BLACK,), ()]),
        ("q.csv", "prompt,media_1,media_2\np,day.png,night.png\n", [(WHITE,), (BLACK,)]),
    ],
    ids=["paths", "a data URL", "cells"],
)
def test_a_file_asks_about_its_media(folder, store, name, content, blobs):
    (folder / name).write_text(content)
    assert main(["feedback", "ask", str(folder / "f.db"), str(folder / name)]) == 0
    [task] = asked(store)
    assert (task.form, task.item.blobs) == ("pair", (SOUND,) if "beep" in content else ())
    assert [one.blobs for one in task.item.responses] == blobs


def test_what_is_asked_already_is_not_asked_again(folder, store):
    row = {"prompt": "Draw night.", "responses": ["", ""], "media": ["day.png", "night.png"]}
    assert ask(folder, row) == ask(folder, row, {**row, "media": ["night.png", "day.png"]}) == 0
    assert len(store.tasks()) == 1


@pytest.mark.parametrize(
    ("media", "why"),
    [
        (["nowhere.png", "day.png"], "No such file"),
        (["../secret.png", "day.png"], "outside the folder"),
        (["/etc/hostname", "day.png"], "outside the folder"),
        (["link.png", "day.png"], "outside the folder"),
        (["page.svg", "day.png"], "no file that browsers show"),
        (["day\0.png", "day.png"], "no path to a file"),
        (["circle.png", "day.png"], "no path to a file"),
        (["empty.png", "day.png"], "0 bytes"),
        (["day.png", "copy.png"], "two responses are the same"),
        (["day.png"], "1 entries for 2 responses"),
        (["day.png", 7], "give the path"),
        (["day.png", ["night.png"] * 17], "16 is the most"),
        (["data:image/png,abc", "day.png"], "no data: URL in base64"),
        (["day.png", None], "not empty"),
    ],
)
def test_a_bad_medium_is_named_and_nothing_is_written(folder, store, capsys, media, why):
    (folder / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (folder / "empty.png").touch()
    (folder / "copy.png").write_bytes(png(255))
    (folder / "link.png").symlink_to("/etc/hostname")
    (folder / "circle.png").symlink_to("circle.png")
    good = {"prompt": "p", "responses": ["a", "b"]}
    assert ask(folder, good, {"prompt": "q", "responses": ["", ""], "media": media}) == 2
    said = capsys.readouterr().err
    assert "q.jsonl:2: " in said
    assert why in said
    assert said.count("\n") == 1
    assert store.tasks() == []


def test_a_file_above_the_limit_is_not_read(folder, store, capsys, monkeypatch):
    monkeypatch.setattr("penstock.feedback.exchange.media.LARGEST", 50)
    assert ask(folder, {"prompt": "p", "media": ["day.png", "night.png"]}) == 2
    assert "bytes; give 1 to 50" in capsys.readouterr().err


def test_an_export_writes_the_files_that_its_rows_name(folder, store, tmp_path):
    answers(store, store.ask([picture_pair()], contents), "alice", "bob")
    out, place = tmp_path / "rows.parquet", str(tmp_path / "f.db")
    assert main(["feedback", "export", place, "--out", str(out), "--media", str(tmp_path / "files")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()} == {
        f"{BLACK.hash}.png": png(0), f"{WHITE.hash}.png": png(255),
    }  # fmt: skip
    from pyarrow.parquet import read_table

    [row] = read_table(out).to_pylist()
    assert json.loads(row["media"])["chosen"][0]["hash"] == WHITE.hash


def test_a_stage_of_texts_does_not_train_on_pictures(store, tmp_path):
    answers(store, store.ask([picture_pair()], contents), "alice")
    with pytest.raises(DataError, match="rows have media"):
        everything(DataSpec(source="feedback:f.db"), tmp_path)


def test_a_corrected_answer_has_a_text():
    with pytest.raises(FeedbackError, match="1 response with a text"):
        Task(Item("p", (Response("", blobs=(BLACK,)),)), form="correction")


def test_what_a_run_made_is_asked_about_from_its_folder_of_blobs(store, tmp_path):
    blobs = Blobs(tmp_path / "blobs")
    shown, made = blobs.add(wav(), "audio/wav"), blobs.add(png(0), "image/png")
    key = PromptKey("rows", 0, 0)
    columns = {"tokens_T": np.array([5, 6])}
    logp_T, version_T = np.array([0.0, -0.5], np.float32), np.array([-1, 3], np.int32)
    sample = Sample(SampleKey(key, 0), columns, np.array([False, True]), logp_T, version_T, "stop", "a", blobs=(shown, made))
    prompt = Prompt(key, "p", blobs=(shown,))
    found = response(sample, {"run": "r", "stage": "s", "version": 3}, {}, prompt)
    assert found.blobs == (made,)
    [name] = store.ask([Task(Item("p", (found, Response("b")), blobs=(shown,)))], blobs.read)
    group = group_of(store.task(name).item)
    assert (group.prompt.blobs, group.samples[0].blobs) == ((shown,), (made,))
