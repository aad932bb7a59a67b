"""Sentinels over one batch: what is measured as it is trained, what is left out, and when weights go back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.core.contracts import FULL_STEP, Caution, Denominator, Learner, Loss, LossOutput, Outputs
from penstock.core.errors import LargeGradientError, NonFiniteStepError, SkippedStepError
from penstock.core.sentinels import Alarm, SentinelError
from penstock.core.types import Group, Metrics, Row, Sample, Unit, Version
from penstock.loops.learn import Watch
from penstock.observe.breakers import ACTIONS, DOUBTED, offline_rules, online_rules, range_of_rewards, spike
from penstock.observe.history import suspected
from penstock.observe.rules import (
    Reading,
    batch_facts,
    generated,
    rules_after_batch,
    rules_after_data,
    rules_before_update,
    versions,
)

if TYPE_CHECKING:
    from penstock.observe.sentinels import Sentinels

BEHAVIOUR, ORIGIN = "sentinel/behaviour_logp", "sentinel/origin"
"""Fields of rows, per action: log-prob under the policy that generated, and whose weights that policy had."""
GAP = "log-prob gap"


def fatal(alarms: list[Alarm]) -> list[Alarm]:
    """The alarms, if none is fatal; raises SentinelError otherwise."""
    worst = [alarm for alarm in alarms if alarm.severity == "fatal"]
    if worst:
        raise SentinelError.of([*(alarm for alarm in alarms if alarm not in worst), *worst])
    return alarms


class BatchWatch(Watch):
    """Sentinels over one batch of an online stage, or without groups of an offline one; enter it before the batch is labelled.

    ``alarms`` gathers what tripped and cleared. Raises SentinelError where a fatal sentinel trips: on entering (versions of
    tokens, rewards out of range), from :meth:`judged` (log-prob gap, before the optimizer steps), from :meth:`skipped` (steps
    that are not taken, again and again), from :meth:`after`, and on leaving, where a step that was not finite was taken.
    """

    def __init__(
        self, sentinels: Sentinels, learner: Learner, index: int, groups: Sequence[Group] = (), max_lag: int = 0
    ) -> None:
        self.sentinels, self.learner, self.index, self.groups, self.max_lag = sentinels, learner, index, groups, max_lag
        self.on = sentinels.mode != "off"
        self.alarms: list[Alarm] = []
        self.skips = 0
        self.facts: Metrics = batch_facts(groups, index) if self.on else {}
        if self.on and groups:
            self.facts |= sentinels.prompts.facts(groups, sentinels.limits)
        self._gap = ""  # why no step is taken on this batch, from its first minibatch on
        self._back: Alarm | None = None  # what weights go back for, once the batch is over

    def __enter__(self) -> BatchWatch:
        if self.on:
            self.sentinels.note_weights(self.learner)
        if self.on and self.groups:
            self._judge("token versions", versions(self.groups, self.index, self.max_lag))
            rewards = [sample.reward for sample in generated(self.groups) if sample.valid and sample.reward is not None]
            reading = range_of_rewards(rewards, self.sentinels.history, self.sentinels.limits)
            if reading is not None and reading.bad and self.sentinels.acts:
                self.held = True
                low, high = self.facts["reward/low"], self.facts["reward/high"]
                self.sentinels.history.leave_out(**{"reward/low": low, "reward/high": high})
                self._skip("reward range", reading.message)
            elif reading is not None:
                self._judge("reward range", reading)
            self._doubt(self.facts)
        return self

    def _doubt(self, known: Metrics, trained: bool = False) -> None:
        """Ask whether a rollback helped; leaves the batch out where it did not and it has not been trained on yet."""
        left_out, alarms = self.sentinels.doubted(known, self.index + 1, trained)
        if left_out:
            self.held, self.skips = True, self.skips + 1
        self._gather(alarms)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.on and isinstance(error, NonFiniteStepError):
            text = f"{error}{self._where()}; go on from the last checkpoint, with a lower learner.learning_rate"
            alarm = Alarm("non-finite", "fatal", self.index + 1, text, math.nan, math.inf, action="stop")
            raise SentinelError.of([*self.alarms, alarm]) from error

    def skipped(self, error: SkippedStepError) -> None:
        """Note an optimizer step that was not taken. Raises SentinelError where that happens too often."""
        if not self.on:
            raise error
        name = GAP if self._gap else "gradient norm" if isinstance(error, LargeGradientError) else "non-finite"
        if isinstance(error, LargeGradientError) and not self._gap:
            self.sentinels.history.leave_out(gradient_norm=error.norm)
        self._skip(name, self._gap or f"{error}{self._where()}")

    def _skip(self, name: str, text: str) -> None:
        self.skips += 1
        alarm = self.sentinels.skipped(name, text, self.index + 1)
        if alarm.action == "roll back":
            self._back = alarm
        else:
            self._gather([alarm])

    def _where(self) -> str:
        keys = [str(group.key) for group in self.groups]
        return f" on the batch of prompts {keys[0]} to {keys[-1]}" if keys else ""

    def measured(self, units: Sequence[Unit], loss: Loss) -> tuple[Sequence[Unit], Loss]:
        """The first minibatch, marked with what the generator said of it, and the loss that measures the gap as it runs."""
        if not self.on or not self.groups or "logp" not in loss.needs:
            return units, loss
        return marked(units, self.groups, self.index), MeasuredLoss(loss)

    def judged(self, totals: Metrics) -> Metrics:
        """The first minibatch's metrics with the gap in place of its sums; before the optimizer steps.

        A gap where none was before is a weight update that went wrong: the batch is left out, and the next version of the
        weights goes out whole. One on the first batches is a setting, and fatal.
        """
        from penstock.algos.mismatch import is_sum, mismatch_metrics

        sums = {name: value for name, value in totals.items() if is_sum(name)}
        if not sums:
            return totals
        found, sentinels = mismatch_metrics(sums), self.sentinels
        rules = rules_before_update(sentinels.thresholds)
        reading = rules[0].read(found, sentinels.context)
        if reading is not None and reading.bad and reading.severity == "fatal" and sentinels.acts and sentinels.matched:
            self._gap, rules = f"{reading.message}{self._where()}", rules[1:]
        sentinels.matched = sentinels.matched or (reading is not None and reading.severity != "fatal")
        self._gather(sentinels.check(rules, found, self.index + 1))
        return {name: value for name, value in totals.items() if name not in sums} | found

    def caution(self) -> Caution:
        """What holds the next optimizer step back."""
        if not self.on or not self.sentinels.acts:
            return FULL_STEP
        sentinels, limits = self.sentinels, self.sentinels.limits
        limit = spike("gradient_norm", sentinels.history, limits, self.facts.get("reward/range", 0.0))
        return Caution(sentinels.rate, 0.0 if self._gap else max(limit, limits.clipped_times * sentinels.clip_norm))

    def enough(self, metrics: Metrics) -> bool:
        """Whether the policy has moved so far in this batch that the rest of it is left out (as in Spinning Up's PPO)."""
        if not self.on or "policy/approx_kl" not in metrics:
            return False
        value, bound = metrics["policy/approx_kl"], self.sentinels.limits.step_kl
        text = (
            f"the policy moved {value:.3g} nats a token within a batch (bound {bound:g}), so the rest of its minibatches was "
            "left out; lower learner.learning_rate, epochs or minibatches"
        )
        self._judge("step KL", Reading(value, bound, value > bound, text))
        return value > bound and self.sentinels.acts

    def after(self, metrics: Metrics) -> Metrics:
        """The metrics of the batch, trained and described, with its facts; judges them, and goes back where weights broke."""
        if not self.on:
            return metrics
        known, sentinels, step = metrics | self.facts, self.sentinels, self.index + 1  # a fact is of the rewards as given
        self._doubt({name: value for name, value in metrics.items() if name not in self.facts}, trained=True)
        self._gather(self._checked(known))
        if reading := sentinels.weights_changed(self.learner, metrics):
            self._judge("weights unchanged", reading)
        sentinels.remember(self.facts)
        self.alarms += sentinels.recovered(step)
        due, sentinels.due = sentinels.due, None
        back = self._back or due
        if back is not None:
            self._gather([sentinels.roll_back(replace(back, step=step), self.max_lag)])
        elif not self.skips and sentinels.usual(step):
            sentinels.history.add(known)
        return self.facts | metrics | ({"steps/skipped": float(self.skips)} if self.skips else {})

    def _checked(self, known: Metrics) -> list[Alarm]:
        """Alarms of a trained batch; one that weights go back for is kept until that is done."""
        sentinels, step = self.sentinels, self.index + 1
        rules = rules_after_batch(sentinels.thresholds) if self.groups else rules_after_data(sentinels.thresholds)
        if step >= sentinels.quiet_until:
            rules += online_rules(sentinels.history, sentinels.limits) if self.groups else offline_rules(sentinels.history)
        alarms: list[Alarm] = []
        rules = tuple(rule for rule in rules if sentinels.doubt is None or rule.name not in DOUBTED)
        for alarm in sentinels.check(rules, known, step):
            action = ACTIONS.get(alarm.sentinel, ("", ""))[0] if sentinels.acts and not alarm.cleared else ""
            if alarm.sentinel in DOUBTED and action and not suspected(known, sentinels.history, sentinels.limits):
                why = "weights moved as before, and no prompt that came before has less: other data may have done it"
                action, alarm = "", replace(alarm, message=f"{alarm.message}; {why}, so training goes on")
                sentinels.ask(alarm, None)
            if action == "roll back" and self._back is None:
                self._back = replace(alarm, action=action)
            elif action != "roll back":
                alarms.append(alarm)
        return alarms

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
