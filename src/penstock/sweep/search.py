"""Trials of a search: Optuna chooses their values and says which to stop early; its database is what a resume reads.

The seeds of a trial run one after the other, and its budget is the steps of all of them. ASHA (Li et al. 2018,
arXiv:1810.05934; Optuna's ``SuccessiveHalvingPruner``) compares trials at a ninth and at a third of that budget: the best third
goes on. So poor values cost a part of one seed, and all seeds are spent on good ones.
"""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from penstock.config.run import Run
from penstock.core.errors import RoleError, SpecError
from penstock.core.seeds import seed_of
from penstock.sweep.dimensions import Dimension, Value, words_of
from penstock.sweep.plan import Plan, Sweep
from penstock.sweep.process import Curve, Process, Slots, curve_of_finished

KEPT = 3
"""Of so many trials the best goes on at each rung."""
ALIKE = 3
"""Failures in a row with the same error after which the sweep ends: the next would fail as well."""
TOP, FEWEST = 5, 10
"""Importance asks what the best trials have in common: at least so many, out of at least so many."""


@dataclass
class Active:
    """A trial under way: the run of each seed, the objectives of those that are done, and the process of the next."""

    trial: Trial
    runs: list[Run]
    done: list[float]
    process: Process


class Search:
    """Carries the trials of a plan out, ``plan.parallel`` at once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.plan, self.study = sweep, sweep.plan, study_of(sweep)
        self.slots = Slots(self.plan.parallel, self.plan.threads)
        self.active: list[Active] = []
        self.failures: list[str] = []
        """Errors of the trials that failed last, in a row."""
        self.waiting = [one.number for one in self.trials() if one.state == TrialState.RUNNING]
        """Trials that an earlier process has begun."""
        grid = math.prod(len(one.choices) for one in self.plan.dimensions) if self.plan.sampler == "grid" else self.plan.trials
        self.total = min(grid, self.plan.trials)

    def trials(self) -> list[FrozenTrial]:
        """All trials by number, those of a grid that are still to come as well."""
        return self.study.get_trials(deepcopy=False)

    def advance(self) -> bool:
        """Start what there is room for and look at what runs; gives whether anything is left to do.

        Raises:
            DataError: a run that is done never reported the objective.
            RoleError: :data:`ALIKE` trials in a row failed with the same error.
        """
        changed = False
        while self.slots.free and (number := self._next()) is not None:
            self._begin(number)
            changed = True
        for active in list(self.active):
            ended = active.process.ended()
            self._report(active.trial, active.done, active.process.curve)
            if not self._open(active.trial):
                active.process.stop()
            if ended:
                self.slots.give_back(active.process)
                self.active.remove(active)
                changed = True
                if self._open(active.trial) and (problem := active.process.problem):
                    self._fail(active.trial, problem)
                elif self._open(active.trial):
                    self._go_on(active.trial, active.runs, active.done)
        if changed:
            self.write()
        if len(self.failures) == ALIKE and len(set(self.failures)) == 1:
            raise RoleError(f"{ALIKE} trials in a row failed with the same error: {self.failures[0]}")
        return bool(self.active) or bool(self.waiting) or self._asked() < self.total

    def write(self) -> None:
        """Write ``results.json``."""
        self.sweep.write([self._described(one) for one in self.trials()], importance(self.study, self.plan), [])

    def _place(self, number: int) -> Any:
        return self.sweep.path / f"trial-{number + 1:03d}"

    def _asked(self) -> int:
        return sum(one.state != TrialState.WAITING for one in self.trials())

    def _next(self) -> int | None:
        """The number of the next trial to carry out: one that was interrupted, or a new one."""
        if self.waiting:
            return self.waiting.pop(0)
        return self.study.ask().number if self._asked() < self.total else None

    def _open(self, trial: Trial) -> bool:
        """Whether a trial is not over."""
        return self.trials()[trial.number].state == TrialState.RUNNING

    def _begin(self, number: int) -> None:
        """Take a trial's values, some of which a kill may have left open, and go on with its runs."""
        self.study.sampler = sampler_of(self.plan, seed_of(self.sweep.base.seed, "sweep", str(number)))
        trial = Trial(self.study, self.trials()[number]._trial_id)
        values = {one.name: suggested(trial, one) for one in self.plan.dimensions}
        try:
            made = self.sweep.run_of(values)
        except SpecError as error:
            self._fail(trial, str(error))
            return
        seeds = range(made.seed, made.seed + self.plan.seeds)
        self._go_on(trial, [replace(made, name=f"trial-{number + 1}-seed-{seed}", seed=seed) for seed in seeds], [])

    def _go_on(self, trial: Trial, runs: list[Run], done: list[float]) -> None:
        """Start a trial's next run, once those that are finished already have been read; close it where none is left."""
        while len(done) < len(runs):
            run = runs[len(done)]
            folder = self._place(trial.number) / f"seed-{run.seed}"
            curve = curve_of_finished(folder, run, self.plan.objective)
            if curve is None:
                self.active.append(Active(trial, runs, done, self.slots.start(run, folder, self.plan.objective)))
                return
            self._report(trial, done, curve)
            if self._open(trial) and not math.isfinite(curve.last):
                self._fail(trial, f"{self.plan.objective} ended as {curve.last}")
            if not self._open(trial):
                return
            done.append(curve.last)
        self._tell(trial, TrialState.COMPLETE, statistics.median(done))

    def _report(self, trial: Trial, done: list[float], curve: Curve) -> None:
        """Give Optuna the values that are new of a trial's present run; where they are too poor, the trial is over."""
        known, steps = self.trials()[trial.number], self.sweep.steps
        for step, value in sorted(curve.values.items()):
            budget = len(done) * steps + step
            if known.state == TrialState.RUNNING and (known.last_step or 0) < budget < self.plan.seeds * steps:
                trial.report(statistics.median([*done, value]), budget)
                if self.plan.stop == "asha" and trial.should_prune():
                    self._tell(trial, TrialState.PRUNED)
                    return

    def _fail(self, trial: Trial, problem: str) -> None:
        trial.set_user_attr("error", problem)
        self.failures = [*self.failures, problem][-ALIKE:]
        self._tell(trial, TrialState.FAIL)

    def _tell(self, trial: Trial, state: TrialState, value: float | None = None) -> None:
        """Close a trial."""
        self.study.tell(trial, value, state=state)
        self.failures = self.failures if state == TrialState.FAIL else []
        found = self._described(self.trials()[trial.number])
        ended = found["error"] or f"{self.plan.objective} {found['objective']:.4g}"
        values = " ".join(words_of(found["values"]))
        self.sweep.say(f"trial {found['number']} of {self.total} {found['state']}: {ended} {values}")

    def _described(self, trial: FrozenTrial) -> dict[str, Any]:
        """A trial in plain values; its objective is the last one that is known."""
        place, last = self._place(trial.number), trial.last_step
        return {
            "number": trial.number + 1,
            "state": trial.state.name.lower(),
            "values": trial.params,
            "objective": trial.value if trial.value is not None else trial.intermediate_values.get(last or 0),
            "error": str(trial.user_attrs.get("error", "")),
            "runs": sorted(one.relative_to(self.sweep.path).as_posix() for one in place.glob("seed-*")),
        }


def study_of(sweep: Sweep) -> optuna.Study:
    """The trials so far, in a database of the sweep's folder, and those of a grid that are to come."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    plan, rung = sweep.plan, -(-sweep.plan.seeds * sweep.steps // KEPT**2)
    study = optuna.create_study(
        storage=f"sqlite:///{(sweep.path / 'trials.db').absolute()}",
        study_name="sweep",
        direction=plan.direction,
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=rung, reduction_factor=KEPT),
        load_if_exists=True,
    )
    points = list(itertools.product(*(one.choices for one in plan.dimensions))) if plan.sampler == "grid" else []
    for point in points[len(study.get_trials(deepcopy=False)) : plan.trials]:
        study.enqueue_trial(dict(zip((one.name for one in plan.dimensions), point, strict=True)))
    return study


def sampler_of(plan: Plan, seed: int) -> optuna.samplers.BaseSampler:
    """What chooses a trial's values. Seeded for each trial, so that what a resume asks for does not depend on the kill."""
    return optuna.samplers.TPESampler(seed=seed) if plan.sampler == "tpe" else optuna.samplers.RandomSampler(seed=seed)


def suggested(trial: Trial, one: Dimension) -> Value:
    """A trial's value of a dimension."""
    if one.choices:
        return str(trial.suggest_categorical(one.name, one.choices))
    if one.whole:
        return trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
    return trial.suggest_float(one.name, one.low, one.high, log=one.log)


def importance(study: optuna.Study, plan: Plan) -> dict[str, float]:
    """How much each dimension decides whether a trial is among the best (PED-ANOVA, Watanabe et al. 2023, arXiv:2304.10255);
    shares of 1, and none for fewer than :data:`FEWEST` complete trials."""
    count = sum(one.state == TrialState.COMPLETE for one in study.get_trials(deepcopy=False))
    if count < FEWEST or len(plan.dimensions) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=max(0.1, TOP / count))
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
