"""Live progress: what is said, and that nothing in an event can break or restyle the display."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.core.events import EventLog
from penstock.ui.progress import PLAIN_LINES, Progress, visible


class Ticks:
    """A clock that the test moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def plain(stages: list[tuple[str, int]]) -> tuple[Progress, io.StringIO, Ticks]:
    out, clock = io.StringIO(), Ticks()
    return Progress(stages, Console(file=out, width=200, highlight=False), clock), out, clock


def terminal(*stages: tuple[str, int], width: int = 120) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(list(stages), Console(file=out, force_terminal=True, width=width, color_system=None)), out


def metrics(step: int, stage: str = "grpo", **values: Any) -> dict[str, Any]:
    return {"kind": "metrics", "time": 0.0, "stage": stage, "step": step, "values": values}


def samples(step: int, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "samples", "stage": "grpo", "step": step, "rows": rows}


def test_plain_lines_are_few_and_hold_the_numbers() -> None:
    show, out, clock = plain([("sft", 5), ("grpo", 200)])
    for step in range(1, 201):
        clock.seconds += 2
        show(metrics(step, **{"reward/mean": 0.5, "kl/reference": 0.0123, "tokens_per_second": 1234.0, "unheard/of": 1.0}))
    show.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == PLAIN_LINES + 1
    assert lines[0].startswith("grpo 1/200  reward 0.500  KL to reference 0.0123  trained 1,234 tokens/s")
    assert "6 min 20 s left" in lines[1]
    assert lines[-1].startswith("grpo 200/200")
    assert "unheard" not in out.getvalue()
    assert "left" not in lines[-1]


def test_evaluations_are_always_said() -> None:
    show, out, _ = plain([("grpo", 100)])
    show(metrics(3, loss=1.0))
    show(metrics(3, **{"evaluation/accuracy": 0.25}))
    show(metrics(4, loss=1.0))
    assert out.getvalue().splitlines() == ["grpo 3/100  loss 1", "grpo 3/100  held-out accuracy 25.0%"]


def test_a_resumed_stage_counts_its_own_pace() -> None:
    show, out, clock = plain([("grpo", 100)])
    show({"kind": "lifecycle", "stage": "grpo", "step": 80, "what": "resumed"})
    clock.seconds = 30
    show(metrics(90, loss=1.0))
    assert out.getvalue().splitlines() == ["grpo resumed", "grpo 90/100  loss 1  30 s left"]


def test_faults_and_values_that_are_not_numbers() -> None:
    show, out, _ = plain([("grpo", 10)])
    show({"kind": "lifecycle", "stage": "grpo", "step": 1, "what": "fault", "error": "[bold]killed[/]\nat once"})
    show({"kind": "lifecycle", "stage": "grpo", "step": 1, "what": "checkpoint", "name": "x"})
    show(metrics(1, loss="nan", accuracy=None, entropy="wrong"))
    assert out.getvalue().splitlines() == ["grpo fault error=[bold]killed[/]⏎at once", "grpo 1/10  loss NaN"]


def test_samples_are_escaped_and_rare() -> None:
    show, out, clock = plain([("grpo", 10)])
    row = {"prompt": "[red]2+2?", "text": "[/red]\x1b[31m4\u202e\n", "reward": 1.0, "error": None}
    for _ in range(3):
        show(samples(1, row, {"prompt": "p", "text": "", "error": "RewardError: x"}))
    assert out.getvalue().splitlines() == ["  [red]2+2? → [/red]�[31m4�⏎  1", "  p → (nothing)  RewardError: x"]
    clock.seconds = 60
    show(samples(2, row))
    assert len(out.getvalue().splitlines()) == 3


def test_long_text_keeps_both_ends() -> None:
    assert visible("a" * 500 + "z", 20) == "a" * 10 + " … " + "a" * 9 + "z"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"kind": "novel", "stage": "s", "step": 1},
        {"kind": "metrics", "stage": "s", "step": "x", "values": 3},
        {"kind": "samples", "stage": "s", "step": 1, "rows": "text"},
        {"kind": "samples", "stage": "s", "step": 1, "rows": [3, {"text": None, "reward": "nan"}]},
    ],
)
def test_events_it_does_not_understand_are_passed_over(event: dict[str, Any]) -> None:
    for show, out, *_ in (plain([("s", 10)]), terminal(("s", 10))):
        show(event)
        show.close()
        assert "Traceback" not in out.getvalue()


def test_a_terminal_gets_a_bar_with_numbers() -> None:
    show, out = terminal(("sft", 2), ("grpo", 4))
    show(metrics(2, "sft", loss=1.5))
    for step in range(1, 5):
        show(metrics(step, **{"reward/mean": step / 4, "generation/tokens_per_second": 900.0}))
    show(samples(4, {"prompt": "p", "text": "[b]t", "reward": 0.5}))
    show.close()
    parts = ("1 of 2", "2 of 2", "4/4", "━", "loss", "1.500", "900 tokens/s", "p → [b]t  0.5")
    assert [part for part in parts if part not in out.getvalue()] == []


def test_a_lost_terminal_silences_the_display_and_nothing_else(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = EventLog(tmp_path / "events.jsonl", [Progress([("s", 3)], Console(file=Gone()))])
    for step in range(1, 4):
        log.metrics(step, {"loss": 1.0})
    log.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("width", [80, 110, 120, 160])
def test_numbers_on_a_terminal_are_never_cut_and_stand_apart_from_the_next_name(width: int) -> None:
    show, out = terminal(("grpo", 4), width=width)
    show(metrics(4, **dict.fromkeys(("entropy/sampled", "reward/mean", "loss", "policy/loss", "tokens/gap"), 1234.5)))
    show.close()
    rows = [line for line in out.getvalue().splitlines() if "1,23" in line or "1.23" in line]
    assert rows
    assert all("…" not in row for row in rows)
    assert not re.search(r"\d [a-z]", "".join(row.split("\x1b")[0] for row in rows))
