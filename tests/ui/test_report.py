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

from live_examples import log_of, run_folder
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


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    """The log of a run of one stage ``s`` that has just begun."""
    return log_of(run_folder(tmp_path, "tiny run", "s"), "s")


def report(log: EventLog) -> tuple[str, Page]:
    """The page of a log's run, as text and parsed."""
    log.close()
    text = write_report(log.path.parent).read_text(encoding="utf-8")
    return text, Page(text)


def test_everything_of_a_run_is_on_the_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "tiny run", "warm start", "grpo")
    for stage in ("warm start", "grpo"):
        log = log_of(folder, stage)
        log.lifecycle(0, "stage started", parameters=1_234_567)
        for step in range(1, 11):
            log.metrics(step, {"loss": 1 / step, "kl/reference": step / 100, "evaluation/accuracy": step / 10})
        row = {"prompt": "2+2?", "text": "4", "reward": 1.1, "rewards": {"correct": 1.0, "format": 0.1}, "length": 7}
        log.samples(10, [row | {"finish": "stop", "kl": 0.5, "error": None}])
        log.lifecycle(10, "checkpoint", name=f"stage-{stage}")
    (folder / "summary.json").write_text(json.dumps({"headline": "From 10% to 100%", "grpo": {"accuracy": 1.0}}))
    text, page = report(log)
    words = [
        "tiny run", "warm start", "grpo", "From 10% to 100%", "10 of 10", "KL to reference", "0.100 nats", "10.0% → 100.0%",
        "2+2?", "correct", "format", "1,234,567", "stage-grpo", "finished", '"kind": "Run"',
    ]  # fmt: skip
    assert [word for word in words if word not in page.text] == []
    assert page.tags.count("svg") == 6
    assert text.count("data-step=") == 2


def test_films_and_sounds_of_prompts_are_on_the_page_and_scripts_are_not(log: EventLog) -> None:
    store = Blobs(log.path.parent / BLOBS)
    blobs = [store.add(f"a {kind}".encode(), kind) for kind in ("image/apng", "audio/wav", "image/svg+xml")]
    named = [{"hash": blob.hash, "kind": blob.kind, "of": "prompt"} for blob in blobs]
    log.samples(1, [{"prompt": "?", "text": "!", "blobs": named}])
    text, page = report(log)
    sources = [value for tag, name, value in page.attributes if tag in ("img", "audio") and name == "src"]
    assert sources == [
        f"data:{kind};base64,{base64.b64encode(f'a {kind}'.encode()).decode()}" for kind in ("image/apng", "audio/wav")
    ]
    assert ("audio", "controls", "") in page.attributes
    assert "media-src data:" in text


def test_samples_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7919 * 7907 }}\" onload='x'"
    folder = run_folder(tmp_path, "tiny run", evil)
    log = log_of(folder, evil)
    log.metrics(1, {evil: 1.0})
    log.samples(1, [{"prompt": evil, "text": evil, "rewards": {evil: 1.0, "b": 0.0}, "finish": evil, "error": evil}])
    log.lifecycle(1, evil, field=evil)
    (folder / "summary.json").write_text(json.dumps({"headline": evil, evil: evil}))
    text, page = report(log)
    assert text.count("<script>") == 1
    assert text.count("</script>") == 1
    assert "img" not in page.tags
    assert "&lt;script&gt;alert(1)" in text
    assert str(7919 * 7907) not in page.text  # a product that no clock and no coordinate on the page shows by chance
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_nothing_is_fetched_from_elsewhere(log: EventLog) -> None:
    log.metrics(1, {"loss": 1.0})
    text, page = report(log)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert all(value.startswith("#") for _, name, value in page.attributes if name in ("href", "src", "srcset", "action"))


LOGS = {
    "missing": None,
    "empty": "",
    "begun": '{"kind": "metr',
    "cut": '{"kind": "metrics", "time": 1.0, "stage": "s", "step": 1, "values": {"loss": 2.5}}\n{"kind": "metrics", "ti',
    "bare": '[]\n3\nnull\n{"kind": "metrics"}\n{"kind": "samples", "stage": "s", "step": 1}\n{"kind": "lifecycle"}\n',
    "null": '{"kind": "metrics", "stage": "s", "step": 1, "values": null}\n'
    '{"kind": "samples", "stage": "s", "step": 2, "rows": [1, {}]}',
}


@pytest.mark.parametrize("damage", LOGS)
def test_an_empty_or_damaged_log_makes_a_page(tmp_path: Path, damage: str) -> None:
    folder, written = run_folder(tmp_path, "tiny run", "s"), LOGS[damage]
    if written is not None:
        (folder / "events.jsonl").write_text(written)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "not finished" in page.text
    assert ("2.500" in page.text) == (damage == "cut")


def test_values_that_are_not_finite_are_counted_and_marked(log: EventLog) -> None:
    for step in range(1, 6):
        log.metrics(step, {"loss": math.nan if step in (2, 4) else 1.0, "kl/reference": math.inf})
    text, page = report(log)
    assert "2 not finite" in page.text
    assert "5 not finite" in page.text
    assert text.count('class="bad"') == 7
    assert "nan" not in text.replace("nan,", "").lower().split("<main>")[0]


def test_a_stage_of_one_step(tmp_path: Path) -> None:
    log = log_of(run_folder(tmp_path, "tiny run", "s", steps=1), "s")
    log.metrics(1, {"loss": 0.0})
    _text, page = report(log)
    assert page.tags.count("circle") == 2  # the point and the tooltip's cursor
    assert "NaN" not in page.text


def test_steps_that_were_run_twice_count_once(log: EventLog) -> None:
    for step, loss in ((1, 9.0), (2, 8.0), (2, 4.0)):
        log.metrics(step, {"loss": loss})
    _text, page = report(log)
    assert "4 to 9" in page.text


def test_text_that_no_file_can_hold(log: EventLog) -> None:
    event = {"kind": "samples", "time": 0, "stage": "s", "step": 1, "rows": [{"text": "\ud800\0" + "x" * 9000}]}
    log.path.write_text(json.dumps(event) + "\n")
    _text, page = report(log)
    assert "(5,002 more characters)" in page.text


def test_what_is_not_a_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run\.json: cannot be read as JSON .*is this a run folder"):
        write_report(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(DataError, match="holds a list"):
        write_report(tmp_path)


def test_a_long_run_is_quick_and_small(tmp_path: Path) -> None:
    log = log_of(run_folder(tmp_path, "tiny run", "s", steps=3000), "s")
    for step in range(1, 3001):
        log.metrics(step, {f"metric/{i}": math.sin(step / 50) + i for i in range(10)})
        log.samples(step, [{"text": "x"}])
    started = time.process_time()
    path = write_report(log.path.parent)
    assert time.process_time() - started < 2
    assert path.stat().st_size < 300_000
    assert "60 of the 3000 logged steps are shown" in path.read_text(encoding="utf-8")


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
