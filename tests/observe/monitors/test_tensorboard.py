"""TensorBoard: event files as its own reader reads them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from monitor_examples import BEGAN, STORY, event, folder, metrics, run_of, told

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.observe.monitors import monitors_of


def read(path: Path) -> EventAccumulator:
    """All that is in a folder of event files."""
    found = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def words(found: EventAccumulator, tag: str) -> str:
    """The newest text under a tag."""
    return found.Tensors(tag)[-1].tensor_proto.string_val[0].decode()


def monitor_of(tmp_path: Path, destination: str = "") -> Any:
    return monitors_of(run_of(f"tensorboard:{destination}" if destination else "tensorboard"), folder(tmp_path))[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of TensorBoard after the story, and a step of the first stage."""
    path = tmp_path_factory.mktemp("story")
    assert told(monitor_of(path), [*STORY, metrics(4, "sft", loss=2.0)]) == []
    return path / "run" / "tensorboard"


def test_metrics_are_scalars_by_stage_and_step(story: Path) -> None:
    points = read(story / "grpo").Scalars("reward/mean")
    assert [(point.step, point.value, point.wall_time) for point in points] == [(1, 0.25, BEGAN + 2), (2, 0.5, BEGAN + 4)]
    assert [point.step for point in read(story / "sft").Scalars("loss")] == [4]


def test_samples_and_alarms_are_texts_on_the_page_of_texts(story: Path) -> None:
    found = read(story / "grpo")
    assert words(found, "samples").splitlines() == [
        "| prompt | text | reward | length | finish | error | version | held_out | reward/vowels |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        r"| ab\| | line ⏎ line | 0.25 | 3.0 | stop |  | 1.0 | 0.0 | 0.25 |",
    ]
    assert words(found, "alarms") == "warning: flat groups: no gradient"
    assert found.SummaryMetadata("samples").plugin_data.plugin_name == "text"


def test_the_spec_is_a_text_of_the_first_stage_and_of_today(story: Path) -> None:
    found = read(story / "sft")
    assert json.loads(words(found, "config").strip("`\n"))["name"] == "tiny"
    (config,) = found.Tensors("config")
    assert config.wall_time == pytest.approx(time.time(), abs=600)


def test_the_end_says_the_headline(tmp_path: Path) -> None:
    (folder(tmp_path) / "summary.json").write_text('{"headline": "reward 0.2 to 0.5"}', encoding="utf-8")
    told(monitor_of(tmp_path), STORY)
    assert words(read(tmp_path / "run" / "tensorboard" / "run"), "summary") == "reward 0.2 to 0.5"


def test_a_folder_can_be_named(tmp_path: Path) -> None:
    told(monitor_of(tmp_path, str(tmp_path / "all")), STORY)
    assert len(read(tmp_path / "all" / "run" / "grpo").Scalars("reward/mean")) == 2


def test_a_resumed_run_adds_to_its_curves(tmp_path: Path) -> None:
    told(monitor_of(tmp_path), STORY[:2])
    told(monitor_of(tmp_path), STORY[2:])
    assert [point.step for point in read(tmp_path / "run" / "tensorboard" / "grpo").Scalars("reward/mean")] == [1, 2]


def test_a_step_without_samples_is_an_empty_text(tmp_path: Path) -> None:
    assert told(monitor_of(tmp_path), [*STORY, event("samples", step=3, rows=[])]) == []


@pytest.mark.skipif(os.name != "posix", reason="files in the way of folders")
def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (folder(tmp_path) / "tensorboard").write_text("in the way")
    (warned,) = told(monitor_of(tmp_path), STORY)
    assert "tensorboard failed" in warned
