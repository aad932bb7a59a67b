"""Sentinels on watch over a training loop: small state, a watch per batch, and the loss that measures the log-prob gap."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np

from penstock.core.contracts import Denominator, Learner, Loss, LossOutput, Outputs, State
from penstock.core.errors import NonFiniteError, NonFiniteStepError
from penstock.core.sentinels import Alarm, SentinelError, SentinelMode
from penstock.core.types import Group, Metrics, Row, Sample, Unit, Version
from penstock.loops.learn import Watch, Watcher
from penstock.observe.rules import (
    EXACT,
    STARTING,
    Context,
    Reading,
    Rule,
    Thresholds,
    batch_facts,
    generated,
    rules_after_batch,
    rules_after_data,
    rules_before_update,
    versions,
    weights_differ,
)

BEHAVIOUR, ORIGIN = "sentinel/behaviour_logp", "sentinel/origin"
"""Fields of rows, per action: log-prob under the drawing policy, and whose weights that policy had."""

SAMPLED_WEIGHTS = 1024
"""Values of each tensor that tell whether the weights change."""
SKIPS, SKIP_WINDOW = 3, 20
"""So many optimizer steps that were not finite, in so many batches, end a run: it is not a batch that is bad then."""


@dataclass
class Sentinels(Watcher):
    """What a stage's sentinels remember. One that is tripped says so once, and once when it has cleared.

    ``mode``: "on"; "warn", where nothing is fatal; "off", where nothing is looked at.
    """

    mode: SentinelMode = "on"
    thresholds: Thresholds = EXACT
    _bad: dict[str, int] = field(default_factory=dict)  # batches in a row
    _calm: dict[str, int] = field(default_factory=dict)  # batches in a row since an active one was last bad
    _active: list[str] = field(default_factory=list)
    _first: list[dict[str, float]] = field(default_factory=list)
    _weights: str | None = None  # digest at the first batch; "" once they have been seen to change
    _unchanged: int = 0
    _skips: list[int] = field(default_factory=list)  # batches of the latest optimizer steps that were not finite

    def watch(self, learner: Learner, index: int, groups: Sequence[Group] = (), max_lag: int = 0) -> BatchWatch:
        """The sentinels over one batch: ``index`` counts batches from 0, ``groups`` are its own where it is of samples."""
        return BatchWatch(self, learner, index, groups, max_lag)

    def check(self, rules: Sequence[Rule], metrics: Metrics, step: int) -> list[Alarm]:
        """Alarms of the rules that trip, or clear, at a step with these metrics."""
        context = Context(self.thresholds, self.start())
        found = [(rule, rule.read(metrics, context)) for rule in rules]
        return [alarm for rule, seen in found if seen for alarm in self.judge(rule.name, rule.patience, seen, step)]

    def judge(self, name: str, patience: int, reading: Reading, step: int) -> list[Alarm]:
        """The alarm of one reading, if it trips or clears its sentinel. A fatal reading trips at once and always."""
        severity = "warning" if self.mode == "warn" else reading.severity
        alarm = Alarm(name, severity, step, reading.message, reading.value, reading.bound)
        if reading.bad:
            self._bad[name], self._calm[name] = self._bad.get(name, 0) + 1, 0
            if severity == "fatal" or (self._bad[name] >= patience and name not in self._active):
                self._active = sorted({*self._active, name})
                return [alarm]
            return []
        self._bad[name] = 0
        if name in self._active:
            self._calm[name] = self._calm.get(name, 0) + 1
            if self._calm[name] >= patience:
                self._active.remove(name)
                return [replace(alarm, severity="warning", cleared=True, message="back within the bound")]
        return []

    def compare_weights(
        self, version: Version, learner: Mapping[str, str], generator: Mapping[str, str], step: int
    ) -> list[Alarm]:
        """Compare checksums of a version's weights, by tensor or bucket name, on both sides.

        Raises SentinelError where they differ, unless the mode is "warn"; "off" compares nothing.
        """
        if self.mode == "off":
            return []
        return fatal(self.judge("weight checksum", 1, weights_differ(version, learner, generator), step))

    def start(self) -> dict[str, float]:
        """Means of facts over the first batches; empty until those have passed."""
        if len(self._first) < self.thresholds.start:
            return {}
        return {name: float(np.mean([facts[name] for facts in self._first])) for name in self._first[0]}

    def remember(self, facts: Metrics) -> None:
        """Keep a batch's facts if it is one of the first that have them."""
        if len(self._first) < self.thresholds.start and all(name in facts for name in STARTING):
            self._first.append({name: facts[name] for name in STARTING})

    def note_weights(self, learner: Learner) -> None:
        """Remember the weights that the first batch finds."""
        if self._weights is None:
            self._weights = digest_of(learner)

    def weights_changed(self, learner: Learner, metrics: Metrics) -> Reading | None:
        """Whether the weights that a generator would get have changed since the first batch; None once they have.

        Fatal after ``thresholds.unchanged`` batches with a gradient and a learning rate: the optimizer trains something else.
        """
        if not self._weights:
            return None
        if digest_of(learner) != self._weights:
            self._weights = ""
            return None
        self._unchanged += metrics.get("gradient_norm", 0.0) > 0 and metrics.get("learning_rate", 0.0) > 0
        bound = self.thresholds.unchanged
        text = (
            f"the policy's weights are what they were {self._unchanged} batches ago, though each batch had a gradient "
            "and a learning rate: the optimizer does not hold the parameters that are trained, or its steps are too small for "
            "the weights' type; look at learner.dtype and learner.learning_rate"
        )
        return Reading(self._unchanged, bound, self._unchanged >= bound, text, "fatal")

    def skipped(self, text: str, step: int) -> Alarm:
        """The alarm of an optimizer step that was not finite and was not taken; fatal where that happens too often."""
        self._skips = [*(past for past in self._skips if past > step - SKIP_WINDOW), step]
        often = len(self._skips) >= SKIPS and self.mode != "warn"
        more = (
            f"; {len(self._skips)} in {SKIP_WINDOW} batches are no accident: go on from the last checkpoint, with a lower rate"
        )
        left_out = "; its samples taught nothing, and training goes on"
        value, bound = float(len(self._skips)), float(SKIPS)
        return Alarm("non-finite", "fatal" if often else "warning", step, text + (more if often else left_out), value, bound)

    def recovered(self, step: int) -> list[Alarm]:
        """The alarm that steps are finite again, once they have been for long enough."""
        if not self._skips or step - self._skips[-1] < SKIP_WINDOW:
            return []
        self._skips = []
        return [Alarm("non-finite", "warning", step, "back within the bound", 0.0, float(SKIPS), cleared=True)]

    def state(self) -> State:
        first, active = [dict(facts) for facts in self._first], list(self._active)
        values = {
            "bad": dict(self._bad),
            "calm": dict(self._calm),
            "active": active,
            "first": first,
            "skips": list(self._skips),
        }
        return State({}, values)

    def load_state(self, state: State) -> None:
        self._bad, self._calm = dict(state.values["bad"]), dict(state.values["calm"])
        self._skips = list(state.values.get("skips", ()))  # checkpoints of before steps were skipped have none
        self._active, self._first = list(state.values["active"]), [dict(facts) for facts in state.values["first"]]


def digest_of(learner: Learner) -> str:
    """A digest of some values of every tensor that a generator would get; "" if there are none."""
    digest, some = hashlib.blake2b(digest_size=16), False
    for _, tensor in learner.weights():
        digest.update(np.ascontiguousarray(tensor.flatten()[:SAMPLED_WEIGHTS].float().cpu().numpy()).tobytes())
        some = True
    return digest.hexdigest() if some else ""


def fatal(alarms: list[Alarm]) -> list[Alarm]:
    """The alarms, if none is fatal; raises SentinelError otherwise."""
    worst = [alarm for alarm in alarms if alarm.severity == "fatal"]
    if worst:
        raise SentinelError.of([*(alarm for alarm in alarms if alarm not in worst), *worst])
    return alarms


class BatchWatch(Watch):
    """Sentinels over one batch of an online stage, or without groups of an offline one; enter it before the batch is labelled.

    ``alarms`` gathers what tripped and cleared. Raises SentinelError where a fatal sentinel trips: on entering (versions of
    tokens), from :meth:`judged` (log-prob gap, before the optimizer steps), from :meth:`skipped` (steps that are not finite,
    again and again), from :meth:`after`, and on leaving, where a step that was not finite was taken.
    """

    def __init__(
        self, sentinels: Sentinels, learner: Learner, index: int, groups: Sequence[Group] = (), max_lag: int = 0
    ) -> None:
        self.sentinels, self.learner, self.index, self.groups, self.max_lag = sentinels, learner, index, groups, max_lag
        self.on = sentinels.mode != "off"
        self.alarms: list[Alarm] = []
        self.skips = 0
        self.facts: Metrics = batch_facts(groups, index) if self.on else {}
        self.rules = rules_after_batch if groups else rules_after_data

    def __enter__(self) -> BatchWatch:
        if self.on:
            self.sentinels.note_weights(self.learner)
        if self.on and self.groups:
            self._judge("token versions", versions(self.groups, self.index, self.max_lag))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.on and isinstance(error, NonFiniteStepError):
            text = f"{error}{self._where()}; go on from the last checkpoint, with a lower learner.learning_rate"
            raise SentinelError.of(
                [*self.alarms, Alarm("non-finite", "fatal", self.index + 1, text, math.nan, math.inf)]
            ) from error

    def skipped(self, error: NonFiniteError) -> None:
        """Note an optimizer step that was not taken. Raises SentinelError where that happens too often."""
        if not self.on:
            raise error
        self.skips += 1
        self._gather([self.sentinels.skipped(f"{error}{self._where()}", self.index + 1)])

    def _where(self) -> str:
        keys = [str(group.key) for group in self.groups]
        return f" on the batch of prompts {keys[0]} to {keys[-1]}" if keys else ""

    def measured(self, units: Sequence[Unit], loss: Loss) -> tuple[Sequence[Unit], Loss]:
        """The first minibatch, marked with what the generator said of it, and the loss that measures the gap as it runs."""
        if not self.on or not self.groups or "logp" not in loss.needs:
            return units, loss
        return marked(units, self.groups, self.index), MeasuredLoss(loss)

    def judged(self, totals: Metrics) -> Metrics:
        """The first minibatch's metrics with the gap in place of its sums; before the optimizer steps."""
        from penstock.algos.mismatch import is_sum, mismatch_metrics

        sums = {name: value for name, value in totals.items() if is_sum(name)}
        if not sums:
            return totals
        found = mismatch_metrics(sums)
        self._gather(self.sentinels.check(rules_before_update(self.sentinels.thresholds), found, self.index + 1))
        return {name: value for name, value in totals.items() if name not in sums} | found

    def after(self, metrics: Metrics) -> Metrics:
        """The metrics of the batch, trained and described, with its facts; judges them."""
        if not self.on:
            return metrics
        known = metrics | self.facts  # a fact is of the rewards as they were given
        self._gather(self.sentinels.check(self.rules(self.sentinels.thresholds), known, self.index + 1))
        if reading := self.sentinels.weights_changed(self.learner, metrics):
            self._judge("weights unchanged", reading)
        self.sentinels.remember(self.facts)
        self.alarms += self.sentinels.recovered(self.index + 1)
        return self.facts | metrics | ({"steps/skipped": float(self.skips)} if self.skips else {})

    def _judge(self, name: str, reading: Reading) -> None:
        self._gather(self.sentinels.judge(name, 1, reading, self.index + 1))

    def _gather(self, alarms: list[Alarm]) -> None:
        self.alarms += alarms
        fatal(self.alarms)


@dataclass(frozen=True)
class MeasuredLoss:
    """A loss that also gives the sums of the gap between the learner's log-probs and those of the marks."""

    loss: Loss

    @property
    def needs(self) -> frozenset[str]:
        return self.loss.needs

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        from penstock.algos.mismatch import mismatch_sums

        own = {name: value for name, value in fields.items() if name not in (BEHAVIOUR, ORIGIN)}
        loss, metrics = self.loss(outputs, own, batch, denominator)
        return loss, {**metrics, **mismatch_sums(outputs["logp"], fields[BEHAVIOUR], fields[ORIGIN])}


def marked(units: Sequence[Unit], groups: Sequence[Group], version: Version) -> list[Unit]:
    """The units with the fields BEHAVIOUR and ORIGIN, found by a row's columns, which are those of its sample."""
    known = {id(sample.columns): sample for sample in generated(groups)}
    return [tuple(_marked(row, known.get(id(row.columns)), version) for row in unit) for unit in units]


def _marked(row: Row, sample: Sample | None, version: Version) -> Row:
    from penstock.algos.mismatch import CURRENT, MIXED, OLDER, UNKNOWN

    if sample is None:
        count = int(np.count_nonzero(row.action_T))
        behaviour_A, origin_A = np.zeros(count, np.float32), np.full(count, UNKNOWN, np.float32)
    else:
        behaviour_A, own_A = sample.logp_T[row.action_T], sample.version_T[row.action_T] == version
        whole = own_A.all() and (row.action_T is sample.action_T or sample.oldest_version == version)
        origin_A = np.where(own_A, np.float32(CURRENT if whole else MIXED), np.float32(OLDER))
    return Row(row.columns, row.action_T, {**row.fields, BEHAVIOUR: behaviour_A, ORIGIN: origin_A})
