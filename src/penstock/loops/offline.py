"""The offline loop: batches straight from data (SFT, reward models, preferences)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence

from penstock.core.spans import NO_SPANS, Spans
from penstock.core.types import Unit
from penstock.loops.learn import Step, Trainer


async def offline(
    unit_of: Callable[[int], Unit],
    trainer: Trainer,
    label: Callable[[Sequence[Unit]], Sequence[Unit]] = tuple,
    *,
    batch: int,
    steps: int,
    start: int = 0,
    spans: Spans = NO_SPANS,
) -> AsyncGenerator[Step, None]:
    """Train on the units of ordinals ``step · batch …``; yields after each optimizer step.

    Takes units by ordinal (a pure function, so a resume draws the same), completed by ``label`` (``loops/columns.py``), a
    whole batch at a time; gives a :class:`Step` to the caller, who logs, assesses and saves. Waits for nothing.
    """
    for index in range(start, steps):
        if trainer.watcher.over:
            return
        began = time.perf_counter()
        units: Sequence[Unit] = [unit_of(ordinal) for ordinal in range(index * batch, (index + 1) * batch)]
        with spans.span("train", step=index), trainer.watch(index) as watch:
            metrics = watch.after(trainer.step(label(units), watch))
        seconds = time.perf_counter() - began
        tokens = sum(len(row.action_T) for unit in units for row in unit)
        metrics |= {"seconds/trained": seconds, "tokens/trained": float(tokens), "tokens_per_second": tokens / seconds}
        yield Step(index, index + 1, metrics, alarms=tuple(watch.alarms))
