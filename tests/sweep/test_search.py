"""Trials against hand-made curves: which are stopped, which fail, and what a resume does not run again. No run is started."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from sweep_examples import RATE, finish, log_values, results, sweep_of

from penstock.config.run import Run
from penstock.core.errors import DataError, RoleError
from penstock.sweep import process
from penstock.sweep.dimensions import Dimension
from penstock.sweep.plan import Sweep
from penstock.sweep.process import Curve, Slots
from penstock.sweep.search import Search

STEPS = 18


PEAK = 0.95


class Scripted:
    """In place of processes: each run ends at once with the curve, or the failure, that ``script(number, seed)`` gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.started: list[str] = []
        self.stopped: list[str] = []
        scripted = self

        class Ended(process.Process):
            def __init__(self, run: Run, folder: Path, objective: str, environment: dict[str, str]) -> None:
                self.name, self.said = f"{folder.parent.name}/{folder.name}", ""
                scripted.started.append(self.name)
                self.curve = Curve(folder, run, objective)
                found = scripted.script(int(folder.parent.name.split("-")[1]), run.seed)
                if isinstance(found, str):
                    self.said = found
                elif max(found) < STEPS:  # still on its way
                    folder.mkdir(parents=True)
                    log_values(folder, found)
                else:
                    finish(folder, run, found)

            def ended(self) -> bool:
                self.curve.refresh()
                return True

            @property
            def problem(self) -> str:
                return self.said

            def stop(self) -> None:
                scripted.stopped.append(self.name)

        monkeypatch.setattr(process, "Process", Ended)

    def sweep(self, script: Any, *dimensions: Dimension, **settings: Any) -> Sweep:
        self.script = script
        return sweep_of(self.folder, *dimensions, **settings)

    def search(self, script: Any, *dimensions: Dimension, **settings: Any) -> Search:
        """A search that has come to its end."""
        return run_out(Search(self.sweep(script, *dimensions, **settings)))


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(monkeypatch, tmp_path / "s")


def run_out(search: Search) -> Search:
    while search.advance():
        pass
    return search


def states(search: Search) -> list[str]:
    """What became of each trial."""
    return [one.state.name for one in search.trials()]


def line(value: float | str) -> dict[int, float] | str:
    """A run that stays at a value; a failure stays one."""
    return value if isinstance(value, str) else dict.fromkeys(range(0, STEPS + 1, 2), value)


def test_the_objective_is_the_median_of_the_last_values_of_the_seeds(scripted: Scripted) -> None:
    search = scripted.search(lambda number, seed: {0: 0.1, 9: PEAK, 18: [0.1, 0.9, 0.3][seed]}, trials=1, seeds=3)
    assert search.trials()[0].value == 0.3


STOPPED: dict[str, tuple[list[float], dict[int, float], dict[str, Any], int]] = {
    "below the best third at a ninth of its steps": ([0.5, 0.6, 0.7], {0: 0.2, 2: 0.2}, {}, 2),
    "later where it falls behind later": ([0.6, 0.7, 0.8], {0: 0.9, 2: 0.9, 4: 0.9, 6: 0.1}, {}, 6),
    "a high one where low is good": ([0.3, 0.2, 0.1], {0: 0.9, 2: 0.9}, {"direction": "minimize"}, 2),
    "in the first of its seeds": ([0.7, 0.8, 0.9], {0: 0.1, 6: 0.1}, {"seeds": 3}, 6),
}


@pytest.mark.parametrize("case", STOPPED)
def test_a_poor_trial_is_stopped(case: str, scripted: Scripted) -> None:
    good, poor, settings, last_step = STOPPED[case]
    curves = [*map(line, good), poor]
    search = scripted.search(lambda number, seed: curves[number - 1], trials=4, stop="asha", **settings)
    assert states(search) == ["COMPLETE", "COMPLETE", "COMPLETE", "PRUNED"]
    assert [name for name in scripted.started if name.startswith("trial-004")] == ["trial-004/seed-0"]
    assert scripted.stopped == ["trial-004/seed-0"]
    assert search.trials()[3].last_step == last_step


NAN = "evaluation/reward ended as nan"
ENDINGS: dict[str, tuple[list[Any], list[str]]] = {
    "nothing is stopped unless asked": ([-1.0, -2.0, -3.0, -4.0, -5.0], [""] * 5),
    "a failed trial is kept and the sweep goes on": ([0.5, "RewardError: no score", 0.5], ["", "RewardError: no score", ""]),
    "an objective that is not finite is a failure": ([math.nan, math.nan], [NAN, NAN]),
    "failures that differ do not end the sweep": ([f"NonFiniteError: at step {n}" for n in "1234"],) * 2,
}


@pytest.mark.parametrize("case", ENDINGS)
def test_what_becomes_of_trials(case: str, scripted: Scripted) -> None:
    ends, errors = ENDINGS[case]
    search = scripted.search(lambda number, seed: line(ends[number - 1]), trials=len(ends))
    assert states(search) == ["FAIL" if error else "COMPLETE" for error in errors]
    assert [one["error"] for one in results(scripted.folder)["trials"]] == errors


def test_the_same_failure_three_times_in_a_row_ends_the_sweep(scripted: Scripted) -> None:
    with pytest.raises(RoleError, match="3 trials in a row failed with the same error: DataError: no such file"):
        scripted.search(lambda number, seed: line(0.5 if number == 1 else "DataError: no such file"), trials=9)


def test_an_objective_that_is_never_reported_ends_the_sweep(scripted: Scripted) -> None:
    with pytest.raises(DataError, match='never reported "evaluation/accuracy"; choose --objective from: evaluation/reward'):
        scripted.search(lambda number, seed: line(0.5), trials=5, objective="evaluation/accuracy")


def test_a_resume_runs_nothing_again_and_asks_for_the_same_values(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = scripted.sweep(lambda number, seed: line(number / 10), trials=3, sampler="random")
    for _ in range(6):  # each process of the sweep lives for one look
        if not Search(sweep).advance():
            break
    whole = Scripted(monkeypatch, scripted.folder.with_name("whole"))
    at_once = whole.search(scripted.script, trials=3, sampler="random")
    assert scripted.started == whole.started == [f"trial-00{number}/seed-0" for number in (1, 2, 3)]
    assert [one.params for one in Search(sweep).trials()] == [one.params for one in at_once.trials()]


def test_values_that_a_kill_left_open_are_chosen_by_the_resume(scripted: Scripted) -> None:
    sweep = scripted.sweep(lambda number, seed: line(0.5), trials=2)
    Search(sweep).study.ask()  # and nothing more
    search = run_out(Search(sweep))
    assert states(search) == ["COMPLETE", "COMPLETE"]
    assert all(len(one.params) == 2 for one in search.trials())


def test_seeds_that_were_done_before_a_kill_are_read_and_not_run(scripted: Scripted) -> None:
    sweep = scripted.sweep(lambda number, seed: line(seed), trials=1, seeds=3)
    Search(sweep).advance()  # one look: the first seed is done
    search = run_out(Search(sweep))
    assert sorted(scripted.started) == ["trial-001/seed-0", "trial-001/seed-1", "trial-001/seed-2"]
    assert search.trials()[0].value == 1.0


def test_a_grid_is_every_combination_once(scripted: Scripted) -> None:
    kv, batch = Dimension(name="grpo.kv", choices=("keep", "abort")), Dimension(name="grpo.batch", choices=("2", "4", "8"))
    search = scripted.search(lambda number, seed: line(0.5), kv, batch, sampler="grid")
    points = {tuple(one.params.values()) for one in search.trials()}
    assert (len(search.trials()), len(points)) == (6, 6)


def test_importance_finds_the_field_that_matters(scripted: Scripted) -> None:
    kv = Dimension(name="grpo.kv", choices=("keep", "abort"))
    sweep = scripted.sweep(lambda number, seed: line(search.trials()[number - 1].params[RATE.name]), RATE, kv,
                           trials=16, sampler="random")  # fmt: skip
    search = Search(sweep)
    run_out(search)
    shares = results(sweep.path)["importance"]
    assert abs(sum(shares.values()) - 1) < 1e-6
    assert shares[RATE.name] > 0.8


def test_processes_share_the_gpus_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(visible: str, count: int) -> list[str | None]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return [environment.get("CUDA_VISIBLE_DEVICES") for environment in Slots(count, 1)._environments]

    assert shares("0,1,2,3", 2) == ["0,2", "1,3"]
    assert shares("4,5", 3) == ["4", "5", "4"]
    assert shares("", 2) == [None, None]
