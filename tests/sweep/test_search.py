"""Trials against hand-made curves: which are stopped, which fail, and what a resume does not run again. No run is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from sweep_examples import RATE, finish, log_values, results, sweep_of

from penstock.config.run import Run
from penstock.core.errors import DataError, RoleError
from penstock.sweep import process
from penstock.sweep.dimensions import Dimension
from penstock.sweep.process import Curve, Slots
from penstock.sweep.search import Search

STEPS = 18


class Scripted:
    """In place of processes: each run ends at once with the curve, or the failure, that ``script(number, seed)`` gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: Any) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        scripted = self

        class Ended(process.Process):
            def __init__(self, run: Run, folder: Path, objective: str, environment: dict[str, str]) -> None:
                self.name, self.said = f"{folder.parent.name}/{folder.name}", ""
                scripted.started.append(self.name)
                self.curve = Curve(folder, run, objective)
                found = script(int(folder.parent.name.split("-")[1]), run.seed)
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


def run_out(search: Search) -> Search:
    while search.advance():
        pass
    return search


def states(search: Search) -> list[str]:
    return [one.state.name for one in search.trials()]


def line(value: float) -> dict[int, float]:
    """A run that stays at a value."""
    return dict.fromkeys(range(0, STEPS + 1, 2), value)


def test_the_objective_is_the_median_of_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line([0.1, 0.9, 0.3][seed]))
    search = run_out(Search(sweep_of(tmp_path / "s", trials=1, seeds=3)))
    assert search.trials()[0].value == 0.3


def test_the_last_value_counts_and_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: {0: 0.1, 9: 0.9, 18: 0.4})
    assert run_out(Search(sweep_of(tmp_path / "s", trials=1))).trials()[0].value == 0.4


def test_a_trial_below_the_best_third_at_a_ninth_of_its_steps_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(
        monkeypatch, lambda number, seed: line([0.5, 0.6, 0.7, 0.2][number - 1]) if number < 4 else {0: 0.2, 2: 0.2}
    )
    search = run_out(Search(sweep_of(tmp_path / "s", trials=4, stop="asha")))
    assert states(search) == ["COMPLETE", "COMPLETE", "COMPLETE", "PRUNED"]
    assert scripted.stopped == ["trial-004/seed-0"]
    assert search.trials()[3].last_step == 2


def test_a_trial_is_stopped_later_where_it_falls_behind_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = {0: 0.9, 2: 0.9, 4: 0.9, 6: 0.1}
    Scripted(monkeypatch, lambda number, seed: late if number == 4 else line(0.5 + number / 10))
    search = run_out(Search(sweep_of(tmp_path / "s", trials=4, stop="asha")))
    assert (search.trials()[3].state, search.trials()[3].last_step) == (TrialState.PRUNED, 6)


def test_where_low_is_good_the_high_ones_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line(0.1 * number) if number < 4 else {0: 0.9, 2: 0.9})
    search = run_out(Search(sweep_of(tmp_path / "s", trials=4, stop="asha", direction="minimize")))
    assert (search.trials()[3].state, search.trials()[0].state) == (TrialState.PRUNED, TrialState.COMPLETE)


def test_a_poor_trial_costs_a_part_of_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda number, seed: line(1.0 - number / 10) if number < 4 else {0: 0.1, 6: 0.1})
    run_out(Search(sweep_of(tmp_path / "s", trials=4, seeds=3, stop="asha")))
    assert [name for name in scripted.started if name.startswith("trial-004")] == ["trial-004/seed-0"]


def test_nothing_is_stopped_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line(-number))
    assert states(run_out(Search(sweep_of(tmp_path / "s", trials=5)))) == ["COMPLETE"] * 5


def test_a_failed_trial_is_kept_and_the_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: "RewardError: no score" if number == 2 else line(0.5))
    sweep = sweep_of(tmp_path / "s", trials=4)
    assert states(run_out(Search(sweep))) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert results(sweep.path)["trials"][1]["error"] == "RewardError: no score"


def test_an_objective_that_is_not_finite_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: {0: 0.1, 18: float("nan")})
    search = run_out(Search(sweep_of(tmp_path / "s", trials=2)))
    assert states(search) == ["FAIL", "FAIL"]
    assert search.trials()[0].user_attrs["error"] == "evaluation/reward ended as nan"


def test_the_same_failure_three_times_in_a_row_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line(0.5) if number == 1 else "DataError: no such file")
    with pytest.raises(RoleError, match="3 trials in a row failed with the same error: DataError: no such file"):
        run_out(Search(sweep_of(tmp_path / "s", trials=9)))


def test_other_failures_do_not_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: f"NonFiniteError: at step {number}")
    assert states(run_out(Search(sweep_of(tmp_path / "s", trials=5)))) == ["FAIL"] * 5


def test_an_objective_that_is_never_reported_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line(0.5))
    with pytest.raises(DataError, match='never reported "evaluation/accuracy"; choose --objective from: evaluation/reward'):
        run_out(Search(sweep_of(tmp_path / "s", trials=5, objective="evaluation/accuracy")))


def test_a_resume_runs_nothing_again_and_asks_for_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda number, seed: line(number / 10))
    whole = run_out(Search(sweep_of(tmp_path / "whole", trials=6, sampler="random")))
    before = list(scripted.started)
    scripted.started.clear()
    for _ in range(12):  # each process of the sweep lives for one look
        if not Search(sweep_of(tmp_path / "s", trials=6, sampler="random")).advance():
            break
    search = Search(sweep_of(tmp_path / "s", trials=6, sampler="random"))
    assert scripted.started == before
    assert [one.params for one in search.trials()] == [one.params for one in whole.trials()]


def test_values_that_a_kill_left_open_are_chosen_by_the_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line(0.5))
    sweep = sweep_of(tmp_path / "s", trials=2)
    Search(sweep).study.ask()  # and nothing more
    search = run_out(Search(sweep))
    assert states(search) == ["COMPLETE", "COMPLETE"]
    assert all(len(one.params) == 2 for one in search.trials())


def test_seeds_that_were_done_before_a_kill_are_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted(monkeypatch, lambda number, seed: line(seed))
    sweep = sweep_of(tmp_path / "s", trials=1, seeds=3)
    Search(sweep).advance()  # one look: the first seed is done
    search = run_out(Search(sweep))
    assert sorted(scripted.started) == ["trial-001/seed-0", "trial-001/seed-1", "trial-001/seed-2"]
    assert search.trials()[0].value == 1.0


def test_a_grid_is_every_combination_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(monkeypatch, lambda number, seed: line(0.5))
    kv, batch = Dimension(name="grpo.kv", choices=("keep", "abort")), Dimension(name="grpo.batch", choices=("2", "4", "8"))
    search = run_out(Search(sweep_of(tmp_path / "s", kv, batch, sampler="grid")))
    points = {tuple(one.params.values()) for one in search.trials()}
    assert (len(search.trials()), len(points)) == (6, 6)


def test_importance_finds_the_field_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = sweep_of(tmp_path / "s", RATE, Dimension(name="grpo.kv", choices=("keep", "abort")), trials=30, sampler="random")
    Scripted(monkeypatch, lambda number, seed: line(search.trials()[number - 1].params["grpo.learner.learning_rate"]))
    search = Search(sweep)
    run_out(search)
    shares = results(sweep.path)["importance"]
    assert abs(sum(shares.values()) - 1) < 1e-6
    assert shares["grpo.learner.learning_rate"] > 0.8


def test_processes_share_the_gpus_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(visible: str, count: int) -> list[str | None]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return [environment.get("CUDA_VISIBLE_DEVICES") for environment in Slots(count, 1)._environments]

    assert shares("0,1,2,3", 2) == ["0,2", "1,3"]
    assert shares("4,5", 3) == ["4", "5", "4"]
    assert shares("", 2) == [None, None]
