"""An actor with weights that follow a learner's: what a process does that acts for another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from penstock.control.actor import Actor
from penstock.control.episodes import EpisodeLog
from penstock.control.fragments import Collected, group_of
from penstock.core.seeds import seed_of
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.types import GeneratorStats, Group, Version, WeightUpdate
from penstock.models.updates import require_newer, verified


class ActingWorker:
    """Gives fragments as groups, one at a time, and takes weights between two of them.

    Acting and loading share one thread: a fragment that nobody waits for any more still ends before anything else begins,
    so that environments and weights are never touched from two sides.
    """

    def __init__(self, actor: Actor, seed: int, name: str) -> None:
        self.actor, self.seed, self.name = actor, seed, name
        self.version: Version = -1
        self.learner_epoch = -1
        self.spans: Spans = NO_SPANS
        self.log = EpisodeLog(actor.environments.count)
        self._thread = ThreadPoolExecutor(1, "acting")
        self._begun, self._running = False, 0
        self._busy_seconds = 0.0

    async def group(self, ordinal: int) -> Group:
        """The fragment of an ordinal. The first one's environments begin with a seed that no other actor or start had."""
        return await self._alone(lambda: self._fragment(ordinal))

    def _fragment(self, ordinal: int) -> Group:
        if not self._begun and ordinal:  # those of ordinal 0 are as they were made, as in one process
            self.actor.begin_anew(seed_of(self.seed, f"environments from {ordinal}"))
        self._begun, self._running, started, began = True, 1, time.perf_counter(), self.spans.clock()
        fragment = self.actor.collect(self.version, ordinal)
        ended = self.log.ended(fragment)
        self.log.note(ended, fragment.steps)
        self._running = 0
        self._busy_seconds += time.perf_counter() - started
        self.spans.add("generate", began, self.spans.clock(), tokens=fragment.steps)
        return group_of(Collected(fragment, ended, self.name), ordinal)

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights, wholly or not at all. Raises WeightError where they are refused; the old ones stay."""
        require_newer(update, (self.learner_epoch, self.version))
        return await self._alone(lambda: self._loaded(update))

    @torch.no_grad()
    def _loaded(self, update: WeightUpdate) -> Version:
        own = dict(self.actor.policy.weights())
        for name, tensor in verified(own, update).items():
            own[name].copy_(tensor)
        self.version, self.learner_epoch = update.version, update.learner_epoch
        return self.version

    async def _alone(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def stats(self) -> GeneratorStats:
        """Steps of environments count as generated tokens."""
        return GeneratorStats(self.version, self._running, 0, 0.0, self.log.steps, self._busy_seconds)

    def close(self) -> None:
        """End the thread and the environments."""
        self._thread.shutdown(cancel_futures=True)
        self.actor.environments.close()
