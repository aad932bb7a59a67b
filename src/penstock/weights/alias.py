"""The channel that costs nothing: generator and learner hold the same parameters, so only the version travels."""

from __future__ import annotations

from penstock.core.contracts import Generator
from penstock.core.types import CachePolicy, Version, WeightUpdate


class AliasChannel:
    """Publishes versions to generators that alias the learner's parameters."""

    def __init__(self, generators: list[Generator], kv: CachePolicy = "keep") -> None:
        self.generators = generators
        self.kv: CachePolicy = kv

    async def publish(self, version: Version) -> None:
        """Tell every generator that the parameters are now those of ``version``."""
        for generator in self.generators:
            await generator.load(WeightUpdate(version, None, self.kv))
