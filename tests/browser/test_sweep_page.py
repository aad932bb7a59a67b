"""The report of a sweep in a browser, from its file: everything that it promises is there to be seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.core.events import EventLog
from penstock.ui.sweep_report import write_sweep_report

RATE = {"name": "grpo.learner.learning_rate", "low": 1e-5, "high": 1e-2, "whole": False, "choices": [], "log": True}
SAMPLES = {"name": "grpo.samples", "low": 0.0, "high": 0.0, "whole": False, "choices": ["4", "8"], "log": False}
COUNT, SEEDS = 12, 2


def write_sweep(folder: Path) -> Path:
    """The report of trials whose objective rises to a tenth of their number."""
    trials = []
    for number in range(1, COUNT + 1):
        runs = [f"trial-{number:03d}/seed-{seed}" for seed in range(SEEDS)]
        for seed, run in enumerate(runs):
            log = EventLog(folder / run / "events.jsonl")
            log.stage = "grpo"
            for step in range(0, 11, 5):
                log.metrics(step, {"evaluation/reward": (number + 0.2 * seed) * step / 100})
            log.close()
        values = {RATE["name"]: 10.0 ** (-5 + number / 5), SAMPLES["name"]: "48"[number % 2]}
        one = {"number": number, "state": "complete", "values": values, "objective": number / 10, "error": "", "runs": runs}
        trials.append(one)
    found = {"objective": "evaluation/reward", "direction": "maximize", "dimensions": [RATE, SAMPLES], "trials": trials}
    found |= {"seeds": SEEDS, "sampler": "tpe", "stop": "none", "population": 0, "slices": 4, "stage": "grpo", "steps": 10}
    found |= {"importance": {RATE["name"]: 0.75, SAMPLES["name"]: 0.25}, "copies": []}
    (folder / "results.json").write_text(json.dumps(found))
    return write_sweep_report(folder)


def test_curves_coordinates_importance_and_trials_are_drawn_on_any_screen(screen: Any, tmp_path: Path) -> None:
    screen.goto(write_sweep(tmp_path).as_uri())
    assert screen.locator("h2").all_inner_texts() != []
    curves, axes = screen.locator("svg").nth(0), screen.locator("svg").nth(1)
    for drawing in (curves, axes):
        assert drawing.locator("path.trial").count() == COUNT
        boxes = [path.bounding_box() for path in drawing.locator("path.trial").all()]
        frame = drawing.bounding_box()
        assert all(box["width"] > 100 and frame["y"] <= box["y"] <= frame["y"] + frame["height"] for box in boxes)
    assert curves.locator("path.band").count() == 8  # the best ones have a band over their seeds
    assert axes.locator("line.axis").count() == 3
    widths = [bar.bounding_box()["width"] for bar in screen.locator(".shares i").all()]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.05)
    rows = screen.locator("tbody tr").all_inner_texts()
    assert [row.split()[1] for row in rows] == [str(number) for number in range(COUNT, 0, -1)]
    assert screen.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
