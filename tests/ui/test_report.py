"""The report page: complete, safe, self-contained, and drawable whatever the log holds."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import DataError
from penstock.core.events import EventLog
from penstock.data.blobs import BLOBS, Blobs
from penstock.ui.curves import BOTTOM, HEIGHT, LARGEST, TOP, WIDTH, curve, nice_ticks, tick_label
from penstock.ui.report import write_report

VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def run_folder(folder: Path, *stages: str, steps: int = 10) -> Path:
    folder.mkdir(exist_ok=True)
    spec = {"kind": "Run", "name": "tiny run", "stages": [{"kind": "Online", "name": name, "steps": steps} for name in stages]}
    (folder / "run.json").write_text(json.dumps(spec))
    return folder


def log_of(folder: Path, stage: str) -> EventLog:
    log = EventLog(folder / "events.jsonl")
    log.stage = stage
    return log


def report(folder: Path) -> tuple[str, Page]:
    text = write_report(folder).read_text(encoding="utf-8")
    return text, Page(text)


def test_everything_of_a_run_is_on_the_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "warm start", "grpo")
    for stage in ("warm start", "grpo"):
        log = log_of(folder, stage)
        log.lifecycle(0, "stage started", parameters=1_234_567)
        for step in range(1, 11):
            log.metrics(step, {"loss": 1 / step, "kl/reference": step / 100, "evaluation/accuracy": step / 10})
        row = {"prompt": "2+2?", "text": "4", "reward": 1.1, "rewards": {"correct": 1.0, "format": 0.1}, "length": 7}
        log.samples(10, [row | {"finish": "stop", "kl": 0.5, "error": None}])
        log.lifecycle(10, "checkpoint", name=f"stage-{stage}")
        log.close()
    (folder / "summary.json").write_text(json.dumps({"headline": "From 10% to 100%", "grpo": {"accuracy": 1.0}}))
    text, page = report(folder)
    words = (
        "tiny run",
        "warm start",
        "grpo",
        "From 10% to 100%",
        "10 of 10",
        "KL to reference",
        "0.100 nats",
        "10.0% → 100.0%",
    )
    for word in (*words, "2+2?", "correct", "format", "1,234,567", "stage-grpo", "finished", '"kind": "Run"'):
        assert word in page.text, word
    assert page.tags.count("svg") == 6
    assert text.count("data-step=") == 2


def test_films_and_sounds_of_prompts_are_on_the_page_and_scripts_are_not(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "grpo")
    store = Blobs(folder / BLOBS)
    kinds = ("image/apng", "audio/wav", "image/svg+xml")
    blobs = [store.add(f"a {kind}".encode(), kind) for kind in kinds]
    log = log_of(folder, "grpo")
    named = [{"hash": blob.hash, "kind": blob.kind, "of": "prompt"} for blob in blobs]
    log.samples(1, [{"prompt": "?", "text": "!", "blobs": named}])
    log.close()
    text, page = report(folder)
    sources = [value for tag, name, value in page.attributes if tag in ("img", "audio") and name == "src"]
    assert sources == [
        f"data:{kind};base64,{base64.b64encode(f'a {kind}'.encode()).decode()}" for kind in ("image/apng", "audio/wav")
    ]
    assert ("audio", "controls", "") in page.attributes
    assert "media-src data:" in text


def test_samples_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7919 * 7907 }}\" onload='x'"
    folder = run_folder(tmp_path, evil)
    log = log_of(folder, evil)
    log.metrics(1, {evil: 1.0})
    log.samples(1, [{"prompt": evil, "text": evil, "rewards": {evil: 1.0, "b": 0.0}, "finish": evil, "error": evil}])
    log.lifecycle(1, evil, field=evil)
    log.close()
    (folder / "summary.json").write_text(json.dumps({"headline": evil, evil: evil}))
    text, page = report(folder)
    assert text.count("<script>") == 1
    assert text.count("</script>") == 1
    assert "img" not in page.tags
    assert "&lt;script&gt;alert(1)" in text
    assert str(7919 * 7907) not in page.text  # a product that no clock and no coordinate on the page shows by chance
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_nothing_is_fetched_from_elsewhere(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "s")
    log = log_of(folder, "s")
    log.metrics(1, {"loss": 1.0})
    log.close()
    text, page = report(folder)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert all(value.startswith("#") for _, name, value in page.attributes if name in ("href", "src", "srcset", "action"))


@pytest.mark.parametrize(
    "log",
    [
        None,
        "",
        '{"kind": "metr',
        '{"kind": "metrics", "time": 1.0, "stage": "s", "step": 1, "values": {"loss": 2.5}}\n{"kind": "metrics", "ti',
        '[]\n3\nnull\n{"kind": "metrics"}\n{"kind": "samples", "stage": "s", "step": 1}\n{"kind": "lifecycle"}\n',
        '{"kind": "metrics", "stage": "s", "step": 1, "values": null}\n'
        '{"kind": "samples", "stage": "s", "step": 2, "rows": [1, {}]}',
    ],
)
def test_an_empty_or_damaged_log_makes_a_page(tmp_path: Path, log: str | None) -> None:
    folder = run_folder(tmp_path, "s")
    if log is not None:
        (folder / "events.jsonl").write_text(log)
    _text, page = report(folder)
    assert "not finished" in page.text
    assert ("2.500" in page.text) == (log is not None and "2.5" in log)


def test_values_that_are_not_finite_are_counted_and_marked(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "s")
    log = log_of(folder, "s")
    for step in range(1, 6):
        log.metrics(step, {"loss": math.nan if step in (2, 4) else 1.0, "kl/reference": math.inf})
    log.close()
    text, page = report(folder)
    assert "2 not finite" in page.text
    assert "5 not finite" in page.text
    assert text.count('class="bad"') == 7
    assert "nan" not in text.replace("nan,", "").lower().split("<main>")[0]


def test_a_stage_of_one_step(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "s", steps=1)
    log = log_of(folder, "s")
    log.metrics(1, {"loss": 0.0})
    log.close()
    _text, page = report(folder)
    assert page.tags.count("circle") == 2  # the point and the tooltip's cursor
    assert "NaN" not in page.text


def test_steps_that_were_run_twice_count_once(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "s")
    log = log_of(folder, "s")
    for step, loss in ((1, 9.0), (2, 8.0), (2, 4.0)):
        log.metrics(step, {"loss": loss})
    log.close()
    _text, page = report(folder)
    assert "4 to 9" in page.text


def test_text_that_no_file_can_hold(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "s")
    event = {"kind": "samples", "time": 0, "stage": "s", "step": 1, "rows": [{"text": "\ud800\0" + "x" * 9000}]}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    _text, page = report(folder)
    assert "(5,002 more characters)" in page.text


def test_what_is_not_a_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run\.json: cannot be read as JSON .*is this a run folder"):
        write_report(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(DataError, match="holds a list"):
        write_report(tmp_path)


def test_a_long_run_is_quick_and_small(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "s", steps=10_000)
    with open(folder / "events.jsonl", "w") as log:
        for step in range(1, 10_001):
            values = {f"metric/{i}": math.sin(step / 50) + i for i in range(30)}
            log.write(json.dumps({"kind": "metrics", "time": step, "stage": "s", "step": step, "values": values}) + "\n")
            log.write(json.dumps({"kind": "samples", "time": step, "stage": "s", "step": step, "rows": [{"text": "x"}]}) + "\n")
    started = time.process_time()
    path = write_report(folder)
    assert time.process_time() - started < 20
    assert path.stat().st_size < 3_000_000
    assert "60 of the 10000 logged steps are shown" in path.read_text(encoding="utf-8")


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=50), st.integers(0, 10**7))
def test_any_curve_stays_inside_its_frame(values: list[float], first: int) -> None:
    drawn = curve("loss", np.arange(first, first + len(values)), np.array(values))
    for y in re.findall(r"[ML][\d.]+ ([-\d.naif]+)", drawn.line):
        assert TOP - 0.1 <= float(y) <= BOTTOM + 0.1
    for tick in (*drawn.x_ticks, *drawn.y_ticks):
        assert -0.1 <= tick.at <= max(WIDTH, HEIGHT)
    assert drawn.bad_count == sum(not abs(value) < LARGEST for value in values)


def test_ticks_are_round_numbers() -> None:
    assert nice_ticks(0, 103, 5) == [0, 50, 100]
    assert nice_ticks(1, 3, 4, whole=True) == [1, 2, 3]
    assert [tick_label(t, [20_000, 40_000]) for t in (20_000, 40_000)] == ["20k", "40k"]
    assert [tick_label(t, [1e-5, 1.5e-5]) for t in (1e-5, 1.5e-5)] == ["1.0e−5", "1.5e−5"]
    assert tick_label(0.6, [0.4, 0.6], share=True) == "60%"
