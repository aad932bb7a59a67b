"""The offline loop: batches straight from data (SFT, reward models, preferences)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.contracts import Scorer
from penstock.core.errors import TrainingError
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.types import FloatArray, Unit
from penstock.loops.learn import Step, Trainer

LOGP = frozenset({"logp"})


@dataclass(frozen=True)
class OfflineLabeller:
    """Fills what an algorithm on data ``needs`` beyond its rows, for a whole batch before it is split.

    "reference": field ``reference_logp`` per action, by the frozen ``reference``. "baseline": whatever the algorithm's
    ``with_baseline(units, policy, reference)`` adds, given both as functions from units to log-probs. Nothing here has a
    gradient, and nothing is kept from batch to batch.
    """

    algorithm: Any
    policy: Scorer
    reference: Scorer | None = None

    def label(self, units: Sequence[Unit], *, baseline: bool = True) -> Sequence[Unit]:
        """The units with their fields filled; ``baseline=False`` leaves that out, which an assessment does not read.

        Raises:
            TrainingError: a reference is needed, and there is none.
        """
        needs = self.algorithm.needs
        if "reference" in needs:
            units = self._with_reference(units)
        if "baseline" in needs and baseline:
            units = self.algorithm.with_baseline(units, self._policy_logp, self._reference_logp)
        return units

    def _with_reference(self, units: Sequence[Unit]) -> list[Unit]:
        logp = iter(self._reference_logp(units))
        return [tuple(replace(row, fields={**row.fields, "reference_logp": next(logp)}) for row in unit) for unit in units]

    def _policy_logp(self, units: Sequence[Unit]) -> list[FloatArray]:
        return self.policy.score(units, LOGP)["logp"]

    def _reference_logp(self, units: Sequence[Unit]) -> list[FloatArray]:
        if self.reference is None:
            raise TrainingError("the algorithm needs a reference model, and there is none")
        return self.reference.score(units, LOGP)["logp"]


async def offline(
    unit_of: Callable[[int], Unit],
    trainer: Trainer,
    labeller: OfflineLabeller | None = None,
    *,
    batch: int,
    steps: int,
    start: int = 0,
    spans: Spans = NO_SPANS,
) -> AsyncGenerator[Step, None]:
    """Train on the units of ordinals ``step · batch …``; yields after each optimizer step.

    Takes units by ordinal (a pure function, so a resume draws the same), filled by ``labeller`` where the algorithm needs
    more than its rows; gives a :class:`Step` to the caller, who logs, assesses and saves. Waits for nothing.
    """
    for index in range(start, steps):
        began = time.perf_counter()
        units: Sequence[Unit] = [unit_of(ordinal) for ordinal in range(index * batch, (index + 1) * batch)]
        with spans.span("train", step=index), trainer.watch(index) as watch:
            metrics = watch.after(trainer.step(labeller.label(units) if labeller else units))
        seconds = time.perf_counter() - began
        tokens = sum(len(row.action_T) for unit in units for row in unit)
        metrics |= {"seconds/trained": seconds, "tokens/trained": float(tokens), "tokens_per_second": tokens / seconds}
        yield Step(index, index + 1, metrics, alarms=tuple(watch.alarms))
