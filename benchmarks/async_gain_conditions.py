"""Imposes the conditions of ``async_gain.py`` on whoever generates in this process."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from async_gain_task import Conditions

import penstock.engine.encoder_decoder
import penstock.runtime.engines
import penstock.runtime.stages.online
from penstock.core.types import Request, Sample
from penstock.engine.generator import EmbeddedGenerator


class Conditioned(EmbeddedGenerator):
    """The embedded generator under conditions. No token ends an answer: its length does."""

    def __init__(self, conditions: Conditions, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.conditions = conditions
        self.text.ends = frozenset()

    async def generate(self, request: Request) -> Sample:
        length = self.conditions.length(request.key)
        return await super().generate(replace(request, sampling=replace(request.sampling, max_new_tokens=length)))

    def step(self) -> None:
        began = time.perf_counter()
        super().step()
        time.sleep(max(0.0, began + self.conditions.floor - time.perf_counter()))


def impose(conditions: Conditions) -> None:
    """Let everything that generates in this process do so under the conditions; the tool is the stage's own environment."""
    if conditions.lengths == "free":
        return

    def generator(model: Any, **options: Any) -> Conditioned:
        return Conditioned(conditions, model, **options)

    for module in (penstock.engine.encoder_decoder, penstock.runtime.stages.online):
        module.embedded_generator = generator  # type: ignore[attr-defined]
