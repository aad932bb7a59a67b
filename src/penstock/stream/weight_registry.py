"""Which weights generators should have: the newest manifest of the learner that is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import WeightError
from penstock.core.types import Version
from penstock.stream.verbs import verb


class WeightRegistry:
    """A learner that was started again announces versions that are known. Its manifests replace those of the one before,
    because the files of that one are gone: a generator that starts meanwhile needs weights, and the older ones will do until
    the learner has caught up. Generators that hold a younger version keep it."""

    def __init__(self, deadline: float) -> None:
        """``deadline`` is how many seconds :meth:`wait_newer` waits."""
        self.deadline = deadline
        self.manifest: Mapping[str, Any] | None = None
        self._changed = asyncio.Condition()

    @property
    def order(self) -> tuple[int, Version]:
        """Manifests of a later start of the learner come after all earlier ones; within a start, by version."""
        return (-1, -1) if self.manifest is None else (int(self.manifest["learner_epoch"]), int(self.manifest["version"]))

    async def announce(self, manifest: Mapping[str, Any]) -> None:
        """Weights that can be fetched. Raises WeightError where the manifest lacks what orders it."""
        if not {"version", "learner_epoch", "kind"} <= manifest.keys():
            raise WeightError(f"a weights manifest has version, learner_epoch and kind; this one has {sorted(manifest)}")
        async with self._changed:
            if (int(manifest["learner_epoch"]), int(manifest["version"])) > self.order:
                self.manifest = manifest
                self._changed.notify_all()

    @verb(waits=True)
    async def wait_newer(self, learner_epoch: int, version: Version) -> Mapping[str, Any] | None:
        """The newest manifest as soon as it comes after the given one; None after the deadline: ask again."""
        async with self._changed:
            try:
                async with asyncio.timeout(self.deadline):
                    await self._changed.wait_for(lambda: self.order > (learner_epoch, version))
            except TimeoutError:
                return None
            return self.manifest
