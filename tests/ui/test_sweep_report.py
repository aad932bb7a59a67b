"""The report of a sweep: complete, safe, self-contained, whatever came of its trials."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from live_examples import log_of
from penstock.core.errors import DataError
from penstock.ui.sweep_report import best_line, ranked, write_sweep_report

RATE = {"name": "grpo.learner.learning_rate", "low": 1e-5, "high": 1e-2, "whole": False, "choices": [], "log": True}
KV = {"name": "grpo.kv", "low": 0.0, "high": 0.0, "whole": False, "choices": ["keep", "<b>"], "log": False}
SETTINGS = {"seeds": 2, "sampler": "tpe", "stop": "asha", "population": 0, "slices": 4, "stage": "grpo", "steps": 4}


def trial(number: int, objective: float | None, state: str = "complete", **more: Any) -> dict[str, Any]:
    values = {"grpo.learner.learning_rate": 10.0 ** -(number + 1), "grpo.kv": "<b>"}
    runs = [f"trial-{number}/seed-0", f"trial-{number}/seed-1"]
    return {"number": number, "state": state, "values": values, "objective": objective, "error": "", "runs": runs, **more}


def sweep(folder: Path, *trials: dict[str, Any], direction: str = "maximize", **more: Any) -> Path:
    found = {"objective": "evaluation/reward", "direction": direction, "dimensions": [RATE, KV], **SETTINGS}
    found |= {"trials": trials, "importance": {"grpo.kv": 0.25, "grpo.learner.learning_rate": 0.75}, "copies": [], **more}
    (folder / "results.json").write_text(json.dumps(found))
    for one in trials:
        for run in one["runs"] if one["objective"] is not None else ():
            log = log_of(folder / run, "grpo")
            for step in range(0, 5, 2):
                log.metrics(step, {"evaluation/reward": one["objective"] * step / 4})
            log.close()
    return folder


def page_of(folder: Path) -> str:
    return write_sweep_report(folder).read_text(encoding="utf-8")


def test_the_page_has_curves_coordinates_importance_and_every_trial(tmp_path: Path) -> None:
    page = page_of(
        sweep(tmp_path, trial(1, 0.5), trial(2, 0.9), trial(3, 0.1, "pruned"), trial(4, None, "fail", error="no score"))
    )
    assert "trial 2 is the best: held-out reward 0.900" in page
    assert page.count('class="band r') == 2
    assert page.count('<path class="trial') == 6
    assert "no score" in page
    assert "75%" in page


def test_the_page_asks_for_nothing_and_runs_no_script(tmp_path: Path) -> None:
    page = page_of(sweep(tmp_path, trial(1, 0.5, error="<script>alert(1)</script>")))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"https?://|<link|<img|@import|url\(", page)


@pytest.mark.parametrize("trials", [(), (trial(1, None, "running"),), (trial(1, None, "fail", error="no"),)], ids=len)
def test_a_sweep_without_results_has_a_page(trials: tuple[Any, ...], tmp_path: Path) -> None:
    assert "Trials" in page_of(sweep(tmp_path, *trials))
    assert best_line(tmp_path) == "nothing is complete yet"


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        write_sweep_report(tmp_path)


def test_complete_trials_rank_above_stopped_ones_by_the_direction() -> None:
    trials = [trial(1, 0.2), trial(2, 0.1), trial(3, 0.0, "pruned"), trial(4, None, "fail")]
    assert [one["number"] for one in ranked(trials, -1.0)] == [2, 1, 3, 4]


def test_the_page_of_a_population_says_who_copied_whom(tmp_path: Path) -> None:
    slices = [trial(place, 0.1 * place, member=place, slice=1) for place in (1, 2, 3)] + [trial(4, 0.5, member=1, slice=2)]
    copies = [{"slice": 1, "member": 1, "donor": 3, "values": {"grpo.learner.learning_rate": 0.001}}]
    page = page_of(sweep(tmp_path, *slices, population=3, copies=copies))
    assert "<td>1</td><td>1</td><td>3</td><td>grpo.learner.learning_rate 0.00100</td>" in page
    assert best_line(tmp_path).startswith("best: member 1, slice 2, evaluation/reward 0.500")
