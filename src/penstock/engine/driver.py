"""What the generators of this process have in common: steps while there is work, and weights that change between two."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock.core.errors import GenerationError
from penstock.core.spans import NO_SPANS, Spans
from penstock.core.tape import Tape
from penstock.core.types import CachePolicy, Version, WeightUpdate
from penstock.models.updates import require_newer, switch, verified


class Driver(ABC):
    """Runs :meth:`step` while :attr:`busy`. The model's parameters are read where they are: when a learner trains the same
    model object, they are shared."""

    def __init__(self, model: Any, version: Version) -> None:
        self.model, self.text, self.version = model, model.text, version
        self.learner_epoch = self.generated_tokens = 0
        self.busy_seconds = 0.0
        self.spans: Spans = NO_SPANS
        self.tape = Tape()
        self._open = asyncio.Event()
        self._open.set()
        self._driver: asyncio.Task[None] | None = None

    @abstractmethod
    def step(self) -> None:
        """One turn, after which other tasks run."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether there is work."""

    @abstractmethod
    def _all(self) -> Sequence[Any]:
        """Everything that waits or runs; each has a ``request`` and the ``future`` of its sample."""

    @abstractmethod
    def _clear(self) -> None:
        """Forget everything that waits or runs."""

    @abstractmethod
    def _renew_cache(self, policy: CachePolicy) -> None:
        """Weights have changed: do what the update says to what is under way."""

    async def load(self, update: WeightUpdate) -> Version:
        """Take new weights between two steps; what becomes of the cache is the update's ``kv``.

        Raises:
            WeightError: the update was refused; the old weights and version are still in place.
        """
        require_newer(update, (self.learner_epoch, self.version))
        stalled = self.spans.clock()
        if update.owned:  # looked at in a thread, while steps go on
            tensors = await asyncio.to_thread(verified, dict(self.model.policy_weights()), update)
            stalled = self.spans.clock()
            require_newer(update, (self.learner_epoch, self.version))  # another may have come meanwhile
        else:
            tensors = verified(dict(self.model.policy_weights()), update)
        self.tape.note("load", update.version, update.learner_epoch)
        switch(self.model, tensors, update.owned)
        self.learner_epoch, self.version = update.learner_epoch, update.version
        self._renew_cache(update.kv)
        self.spans.add("update", stalled, self.spans.clock(), version=update.version)
        return self.version

    def pause(self) -> None:
        """Take no more steps until ``resume``; weights may change meanwhile, and requests may come, be aborted or leave."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def _drive(self) -> None:
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._run(), name="generator")

    async def _run(self) -> None:
        """Step while there is work; a failure reaches everyone who waits. Other tasks run between any two steps."""
        try:
            while self.busy:
                await self._open.wait()
                self.step()
                await asyncio.sleep(0)
        except Exception as error:
            everything = self._all()
            self._clear()
            for one in everything:
                if not one.future.done():
                    failure = GenerationError(f"{one.request.key}: the engine failed: {error!r}")
                    failure.__cause__ = error
                    one.future.set_exception(failure)
