"""Runs reward functions on finished groups under deadlines, and mixes their scores.

A reward function is ``function(sample, columns) -> Score`` or, if its first parameter is called ``group``,
``function(group, columns) -> one Score a sample``; plain or ``async``; ``options`` of its spec follow as keyword arguments.
A Score is a number, one number an action token, or None for "does not apply"; among numbers of tokens, None is where no step of
the solution ends, which process supervision tells from a step rewarded with 0. ``columns`` is the prompt's data row.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.config.run import RewardSpec
from penstock.core.contracts import RewardFunction
from penstock.core.errors import PenstockError, RewardError, SpecError
from penstock.core.types import LARGEST_REWARD, STEP_ENDS, Group, Sample
from penstock.data.resolve import resolve
from penstock.rewards.built_in import BUILT_IN
from penstock.sandbox.threads import DeadlineError, StuckError, Threads, bounded, is_asynchronous

_WITH_PROCESSES = {
    "math": ("penstock.rewards.math", "MathReward", "column, limit or processes"),
    "code": ("penstock.rewards.code", "CodeReward", "column, sandbox, give, limit, memory_mb, packages or processes"),
}
"""Module, class and options of the built-in rewards that own processes, and keep their own deadlines."""

_Outcome = float | NDArray[np.float64] | None | RewardError
"""What one reward gave a sample: a number, one per action token, nothing that applies, or a failure."""


@dataclass(frozen=True)
class _Part:
    """One reward of a mixture, looked at once: how to call it and for how long. ``deadline`` None: it keeps its own."""

    name: str
    function: RewardFunction
    weight: float
    deadline: float | None
    options: Mapping[str, Any]
    whole_group: bool
    asynchronous: bool


class Mixture:
    """A weighted sum of rewards; fulfils the Reward protocol.

    A reward that raises, hangs or gives no finite score fails the sample it was asked about and no sibling; one that takes
    the whole group fails the group's samples. None is left out of the sum. ``failures`` counts failed samples by reward,
    ``inapplicable`` samples to which no reward applied, ``last_failure`` is the latest message. The deadline of a spec
    holds for one call of its function: a sample, or the group if it takes groups.

    ``provided`` holds functions that the wiring has built, by the ``function`` of the spec that asks for them.
    """

    def __init__(
        self, specs: tuple[RewardSpec, ...], provided: Mapping[str, RewardFunction] | None = None, base: Path | None = None
    ) -> None:
        if not specs:
            raise SpecError("rewards is empty; name at least one reward")
        self._owned: list[Any] = []
        self._parts = [self._part(spec, provided or {}, base) for spec in specs]
        names = [part.name for part in self._parts]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f'two rewards are called "{name}"; give each a name of its own')
        self._threads = Threads("rewards")
        self.failures = dict.fromkeys(names, 0)
        self.inapplicable = 0
        self.last_failure = ""

    def _part(self, spec: RewardSpec, provided: Mapping[str, RewardFunction], base: Path | None) -> _Part:
        scheme = spec.function.partition(":")[0]
        name = spec.name or (scheme if scheme in ("judge", "clip") else spec.function.rpartition(":")[2].removeprefix("@"))
        options: Mapping[str, Any] = spec.options
        deadline: float | None = spec.deadline
        if spec.function in provided:
            function = provided[spec.function]
        elif spec.function in BUILT_IN:
            function = BUILT_IN[spec.function]
        elif spec.function in _WITH_PROCESSES:
            function, options, deadline = self._with_processes(spec), {}, None
        elif scheme in ("model", "judge", "clip"):
            raise SpecError(f'reward "{spec.function}": the model behind it was not loaded; pass it to Mixture as provided')
        elif ":" not in spec.function:
            known = ", ".join([*BUILT_IN, *_WITH_PROCESSES])
            raise SpecError(f'reward "{spec.function}" is unknown; known are: {known}; or write FILE.py:FUNCTION')
        else:
            function = resolve(spec.function, base)
        whole_group = _takes_group(function, spec.function, options)
        return _Part(name, function, spec.weight, deadline, options, whole_group, is_asynchronous(function))

    def _with_processes(self, spec: RewardSpec) -> RewardFunction:
        module, name, options = _WITH_PROCESSES[spec.function]
        try:
            made = getattr(importlib.import_module(module), name)(spec.deadline, **spec.options)
        except TypeError as error:
            raise SpecError(f"reward {spec.function} with options {dict(spec.options)}: use {options}") from error
        self._owned.append(made)
        return made

    async def __call__(self, group: Group) -> Group:
        """The group with its samples scored or marked as failed; those that had failed before are left as they are.

        Waits for every reward; each is bounded by its deadline. ``extras["rewards"]`` of a sample maps the name of each
        reward that applied to its sum before weighting.

        Raises:
            StuckError: too many reward functions never came back, so the run has to stop.
        """
        live = [index for index, sample in enumerate(group.samples) if sample.error is None]
        if not live:
            return group
        asked = replace(group, samples=tuple(group.samples[index] for index in live))
        outcomes_RG = await asyncio.gather(*(self._ask(part, asked) for part in self._parts))
        samples = list(group.samples)
        for place, index in enumerate(live):
            samples[index] = self._combine(samples[index], [outcomes[place] for outcomes in outcomes_RG])
        return replace(group, samples=tuple(samples))

    async def _ask(self, part: _Part, group: Group) -> list[_Outcome]:
        columns, subjects = group.prompt.columns, [group] if part.whole_group else group.samples
        scores: Any = await asyncio.gather(*(self._call(part, subject, columns) for subject in subjects))
        if part.whole_group:
            (scores,) = scores
        if isinstance(scores, RewardError):
            return [scores] * len(group.samples)
        if not isinstance(scores, list) or len(scores) != len(group.samples):
            given = f"{len(scores)} scores" if isinstance(scores, list) else f"{scores!r:.60}"
            fix = f"return a list of {len(group.samples)}, one a sample"
            return [_failure(part, f"returned {given}", group, fix)] * len(group.samples)
        return [_read_score(part, sample, score) for sample, score in zip(group.samples, scores, strict=True)]

    async def _call(self, part: _Part, subject: Group | Sample, columns: Mapping[str, Any]) -> Any:
        """What the function returns, or the failure of this call."""
        own = dict(columns)  # a reward that changes its columns must not change what siblings see
        try:
            if part.asynchronous:
                return _plain(await bounded(part.function(subject, own, **part.options), part.deadline))
            return _plain(await self._threads.run(lambda: part.function(subject, own, **part.options), part.deadline))
        except StuckError as error:
            raise StuckError(f'reward "{part.name}" on prompt {subject.key}: {error}') from error
        except DeadlineError as error:
            return _failure(part, str(error), subject)
        except PenstockError as error:
            return _failure(part, "failed", subject, str(error))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{error} ({Path(place.filename).name}:{place.lineno})"
            return _failure(part, f"raised {type(error).__name__}", subject, where)

    def _combine(self, sample: Sample, outcomes: list[_Outcome]) -> Sample:
        actions = int(np.count_nonzero(sample.action_T))
        total_A, marked = np.zeros(actions), False
        last_A = np.arange(actions) == actions - 1
        ends_A = np.zeros(actions, bool)
        sums: dict[str, float] = {}
        failed = ""
        for part, outcome in zip(self._parts, outcomes, strict=True):
            if isinstance(outcome, RewardError):
                self.failures[part.name] += 1
                self.last_failure = str(outcome)
                failed = failed or str(outcome)
            elif isinstance(outcome, np.ndarray):
                given_A, absent_A = np.nan_to_num(outcome), np.isnan(outcome)
                sums[part.name] = float(given_A.sum())
                total_A += part.weight * given_A
                marked |= bool(absent_A.any())
                ends_A |= ~absent_A if absent_A.any() else (outcome != 0) | last_A
            elif outcome is not None:
                sums[part.name] = outcome
                total_A[-1:] += part.weight * outcome
                ends_A |= last_A
        extras = {**sample.extras, "rewards": sums}
        if marked:
            extras[STEP_ENDS] = ends_T = np.zeros(len(sample.action_T), bool)
            ends_T[sample.action_T] = ends_A
        sample = replace(sample, extras=extras)
        if not failed and actions == 0:
            failed = f"RewardError: prompt {sample.key} has no action token that could carry a reward"
        elif not failed and not sums:
            failed = f"RewardError: no reward applies to prompt {sample.key}; every one returned None"
            self.inapplicable += 1
        if failed:
            return sample.failed(failed)
        return sample.scored(total_A.tolist())

    async def close(self) -> None:
        """End the processes and idle threads of the rewards built here; provided functions stay their owner's."""
        for made in self._owned:
            made.close()
        self._threads.close()


def _takes_group(function: Callable[..., Any], name: str, options: Mapping[str, Any]) -> bool:
    """Whether a function takes whole groups; refuses one that could not be called at all."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature to look at
        return False
    if said := _elsewhere(signature):
        raise SpecError(f'reward "{name}" cannot be called as function(sample or group, columns, **options): {said}')
    try:
        signature.bind(None, None, **options)
    except TypeError as error:
        raise SpecError(
            f'reward "{name}" cannot be called as function(sample or group, columns, **options) '
            f"with options {dict(options)}: {error}"
        ) from error
    return next(iter(signature.parameters)) == "group"


def _elsewhere(signature: inspect.Signature) -> str:
    """How a reward with the arguments of TRL's or verl's is called from one of ours; empty for another."""
    first = list(signature.parameters)[:2]  # what we would call by place
    if "completions" in first:  # TRL's: lists over a batch, and columns by name
        return "TRL's take lists: def reward(sample, columns): return FUNCTION(completions=[sample.text], …=[columns[…]])[0]"
    if "solution_str" in first:  # verl's
        return "verl's are called so: def reward(sample, columns): return FUNCTION(…, sample.text, columns['answer'])"
    return ""


def _read_score(part: _Part, sample: Sample, score: Any) -> _Outcome:
    """Check one score: a finite number, one finite number an action token, or None. A failure stays one."""
    if score is None or isinstance(score, RewardError):
        return score
    actions = int(np.count_nonzero(sample.action_T))
    values = [value for value in score if value is not None] if isinstance(score, list) else [score]
    if not all(isinstance(value, int | float | np.floating) for value in values):
        fix = "return a number, a list of numbers (one an action token), or None"
        return _failure(part, f"returned {type(score).__name__} {score!r:.60}", sample, fix)
    if isinstance(score, list) and len(score) != actions:
        fix = f"return one for each of the {actions} action tokens"
        return _failure(part, f"returned {len(score)} numbers", sample, fix)
    if not all(abs(value) <= LARGEST_REWARD for value in values):
        return _failure(part, f"returned {score!r:.60}", sample, f"a score must be finite, and within ±{LARGEST_REWARD:g}")
    return np.array(score, np.float64) if isinstance(score, list) else float(score)  # None becomes NaN


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch, which may need a gradient or be on a device, and lists of them, as Python's."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _failure(part: _Part, what: str, subject: Group | Sample, detail: str = "") -> RewardError:
    return RewardError(f'RewardError: reward "{part.name}" {what} on prompt {subject.key}' + (f": {detail}" if detail else ""))
