"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): members train in slices; after each, the worst take over
the weights and optimizer of the best, with values nearby.

A slice of a member is a run of its own: its folder begins with a checkpoint of its slice before, or of its donor's, and
its spec ends where the slice does. All members share a seed, so a lineage is one run whose values changed on the way: every
prompt is trained in order, once. What was decided after a slice is one line of the log; a resume decides nothing twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ckpt.store import CheckpointStore
from penstock.config.run import Run
from penstock.config.spec import difference, plain, require
from penstock.core.errors import CheckpointError, RoleError
from penstock.core.files import append_to, json_lines, write_json
from penstock.core.seeds import seed_of
from penstock.runtime.folder import RunFolder
from penstock.sweep.dimensions import Dimension, Value, Values, words_of
from penstock.sweep.plan import Sweep
from penstock.sweep.process import Process, Slots, curve_of_finished

QUARTER = 0.25
"""Share of the members that copy, and of those that are copied."""
FACTOR, SHIFT = 1.25, 0.1
"""How far a copied value moves: by a factor on a logarithmic scale, by a share of a linear range."""
CHANGED = ("learner", "algorithm", "sampling")
"""Parts of a stage that may change between two slices; everything else is what a checkpoint was made with."""


def first_values(dimensions: Sequence[Dimension], count: int, generator: np.random.Generator) -> list[dict[str, Value]]:
    """Values of each member at the start: each has a part of every range to itself, in a random order."""
    columns = {
        one.name: [one.at(float(share)) for share in (generator.permutation(count) + generator.random(count)) / count]
        for one in dimensions
    }
    return [{name: column[member] for name, column in columns.items()} for member in range(count)]


def exploit(scores: Sequence[float | None], generator: np.random.Generator) -> dict[int, int]:
    """Who copies whom: the worst quarter, and all that failed (None), each a random one of the best quarter.

    Nobody copies a member that is no better. Larger scores are better; at least one has not failed.
    """
    value_N = np.array([-np.inf if score is None else score for score in scores])
    order, size = np.argsort(value_N, kind="stable"), max(1, round(len(scores) * QUARTER))
    best = [int(member) for member in order[-size:] if np.isfinite(value_N[member])]
    worst = np.flatnonzero((value_N == -np.inf) | (np.isin(range(len(scores)), order[:size]) & (value_N < value_N[best[0]])))
    return {int(member): best[int(generator.integers(len(best)))] for member in worst}


def explore(one: Dimension, value: Value, generator: np.random.Generator) -> Value:
    """A value near another one and other than it: a step up or down within the range, or of choices any other one."""
    if one.choices:
        others = [choice for choice in one.choices if choice != value]
        return others[int(generator.integers(len(others)))]
    number, shift = float(value), SHIFT * (one.high - one.low)
    up, down = (number * FACTOR, number / FACTOR) if one.log else (number + shift, number - shift)
    if one.whole:
        up, down = max(round(up), number + 1), min(round(down), number - 1)
    found = [min(up, one.high)] * (number < one.high) + [max(down, one.low)] * (number > one.low)
    moved = found[int(generator.integers(len(found)))]
    return int(moved) if one.whole else moved


def require_changeable(sweep: Sweep) -> None:
    """Refuse what a population cannot change while it trains.

    Raises:
        SpecError: a value of another part of the run, one that a checkpoint keeps, or a schedule that depends on the last step.
    """
    stage: Any = sweep.base.stages[-1]
    name, parts = stage.name, tuple(f"stages[{len(sweep.base.stages) - 1}].{part}." for part in CHANGED)
    require(stage.evaluation is not None, f"--population: stage {name} has no evaluation to rank members by")
    require(stage.steps >= sweep.plan.slices, f"--slices {sweep.plan.slices}: stage {name} has {stage.steps} steps only")
    require(
        stage.learner.schedule == "constant",
        f"--population: a slice does not know the last step of stage {name}; set --{name}.learner.schedule constant",
    )
    for one in sweep.plan.dimensions:
        other = sweep.run_of({each.name: each.at(float(each is one)) for each in sweep.plan.dimensions})
        last: Any = other.stages[-1]
        require(
            all(line.startswith(parts) for line in difference(plain(sweep.base), plain(other))),
            f"--population: --{one.name} is no field of {', '.join(CHANGED)} of stage {name}, so it cannot change on the way",
        )
        require(
            stage.algorithm.learns_from == "data"
            or stage.algorithm.initial_coefficients() == last.algorithm.initial_coefficients(),
            f"--population: --{one.name} is kept in the run's checkpoints, so a change would have no effect",
        )


class Population:
    """Carries the members of a plan out, slice after slice, ``plan.parallel`` at once.

    ``slices.jsonl`` has a line for each slice that is over: how its members ended, and who copied whom.
    """

    def __init__(self, sweep: Sweep) -> None:
        require_changeable(sweep)
        self.sweep, self.plan, self.log = sweep, sweep.plan, sweep.path / "slices.jsonl"
        self.slots = Slots(self.plan.parallel, self.plan.threads)
        self.active: dict[int, Process] = {}
        self._enter()

    def advance(self) -> bool:
        """Start what there is room for and look at what runs; gives whether anything is left to do.

        Raises:
            DataError: a run that is done never reported the objective.
            RoleError: all members failed.
        """
        while self.slots.free and self.waiting:
            self._begin(self.waiting.pop(0))
        for member, process in list(self.active.items()):
            if process.ended():
                self.slots.give_back(process)
                del self.active[member]
                self._close(member, process.problem)
        if not self.active and not self.waiting and self.slice <= self.plan.slices:
            self._decide()
        return self.slice <= self.plan.slices

    def write(self) -> None:
        """Write ``results.json``: each slice of each member that has ended."""
        found = [one for line in self.decided for one in line["members"]] + list(self.present.values())
        self.sweep.write(found, {}, [one for line in self.decided for one in line["copies"]])

    def _enter(self) -> None:
        """Make the next slice ready: who is to train, with which values, from whose slice before."""
        self.decided = list(json_lines(self.log)) if self.log.exists() else []
        self.slice = 1 + len(self.decided)
        """The present one, counted from 1 as members are."""
        generator = np.random.default_rng(seed_of(self.sweep.base.seed, "population"))
        first = first_values(self.plan.dimensions, self.plan.population, generator)
        self.values: dict[int, Values] = dict(enumerate(first, 1))
        self.sources = {member: member for member in self.values}
        for line in self.decided:
            self.values |= {one["member"]: one["values"] for one in line["copies"]}
            self.sources = {member: member for member in self.values} | {one["member"]: one["donor"] for one in line["copies"]}
        self.present: dict[int, dict[str, Any]] = {}
        """How members have ended this slice."""
        self.waiting = list(self.values) if self.slice <= self.plan.slices else []

    def _place(self, member: int, number: int) -> Path:
        return self.sweep.path / f"member-{member}" / f"slice-{number}"

    def _run(self, member: int) -> Run:
        made = self.sweep.run_of(self.values[member])
        last: Any = made.stages[-1]
        last = replace(last, steps=round(last.steps * self.slice / self.plan.slices))
        return replace(made, name=f"member-{member}-slice-{self.slice}", stages=(*made.stages[:-1], last))

    def _begin(self, member: int) -> None:
        folder, run = self._place(member, self.slice), self._run(member)
        if self.slice > 1:
            prepare(folder, run, self._place(self.sources[member], self.slice - 1))
        if curve_of_finished(folder, run, self.plan.objective) is None:
            self.active[member] = self.slots.start(run, folder, self.plan.objective)
        else:
            self._close(member, "")

    def _close(self, member: int, problem: str) -> None:
        """Note how a member's slice ended."""
        place = self._place(member, self.slice)
        curve = None if problem else curve_of_finished(place, self._run(member), self.plan.objective)
        score = curve.last if curve is not None and math.isfinite(curve.last) else None
        problem = problem or ("" if score is not None else "the objective is not finite")
        found: dict[str, Any] = {
            "member": member,
            "slice": self.slice,
            "state": "fail" if problem else "complete",
            "error": problem,
        }
        found |= {"values": self.values[member], "objective": score, "runs": [f"{place.parent.name}/{place.name}"]}
        self.present[member] = found
        shown = problem or f"{self.plan.objective} {score:.4g}"
        self.sweep.say(f"slice {self.slice} of {self.plan.slices}, member {member}: {shown}")
        self.write()

    def _decide(self) -> None:
        """Choose who copies whom, write it down, and begin the next slice."""
        ended = [self.present[member] for member in sorted(self.values)]
        scores = [None if one["objective"] is None else self.plan.sign * one["objective"] for one in ended]
        if all(score is None for score in scores):
            raise RoleError(f"all {len(ended)} members failed: {ended[0]['error']}")
        generator = np.random.default_rng(seed_of(self.sweep.base.seed, "slice", str(self.slice)))
        copies = []
        for member, donor in exploit(scores, generator).items() if self.slice < self.plan.slices else ():
            near = {one.name: explore(one, self.values[donor + 1][one.name], generator) for one in self.plan.dimensions}
            copies.append({"slice": self.slice, "member": member + 1, "donor": donor + 1, "values": near})
            self.sweep.say(f"member {member + 1} copies member {donor + 1} and goes on with {' '.join(words_of(near))}")
        with append_to(self.log) as log:
            log.write(json.dumps({"members": ended, "copies": copies}).encode() + b"\n")
        for member, number in itertools.product(self.values, range(1, self.slice)):
            for kept in ("checkpoints", "model"):  # of slices that nobody will copy any more
                shutil.rmtree(self._place(member, number) / kept, ignore_errors=True)
        self._enter()
        self.write()


def prepare(folder: Path, run: Run, source: Path) -> None:
    """Make the folder of a slice from what the run in ``source`` ended with: its log, earlier stages and newest checkpoint.

    Files are linked, not copied: a checkpoint never changes. The folder gets its name when all is there.

    Raises:
        CheckpointError: the run in ``source`` has no checkpoint, or the folder cannot be written.
    """
    if RunFolder(folder).spec.exists():
        return
    entries = CheckpointStore(source / "checkpoints").entries()
    if not entries or entries[-1].position.stage != run.stages[-1].name:
        raise CheckpointError(f"{source}: no checkpoint of stage {run.stages[-1].name} to copy")
    newest, made = entries[-1].path, folder.with_name(f".making-{folder.name}")
    shutil.rmtree(made, ignore_errors=True)
    try:
        RunFolder(made).begin(run).close()
        shutil.copytree(newest, made / "checkpoints" / newest.name, copy_function=os.link)
        with contextlib.suppress(FileNotFoundError):  # a run of one stage has no earlier ones
            shutil.copytree(source / "models", made / "models", copy_function=os.link)
        shutil.copy(source / "events.jsonl", made / "events.jsonl")
        stages = RunFolder(source).read_summary()["stages"]
        stages.pop(run.stages[-1].name, None)
        write_json(made / "summary.json", {"stages": stages})
        os.rename(made, folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: the copy of {source} cannot be written: {error}") from error
