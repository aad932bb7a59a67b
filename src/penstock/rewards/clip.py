"""CLIP as a reward: how alike a picture and a text are, or what a head on its image embeddings says (aesthetic scores)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.core.blobs import Picture
from penstock.core.types import Group
from penstock.data.render import Template
from penstock.rewards.seen import Contents, is_picture, picture
from penstock.sandbox.threads import Threads


class Clip(Protocol):
    """A model that compares pictures with texts (:class:`penstock.models.clip.Clip`)."""

    def alike(self, pictures: Sequence[Picture], texts: Sequence[str]) -> list[float]: ...

    def headed(self, pictures: Sequence[Picture], file: str) -> list[float]: ...


class ClipReward:
    """An ``async`` reward function of (group, columns), in a thread of its own.

    Options: ``about``, a template over the row's columns, is the text that a generated picture is compared with (an answer
    about a picture is compared with that picture); with ``head``, a file of safetensors with ``weight`` and ``bias``, the score
    is that of this linear layer and no text is read.
    """

    def __init__(self, clip: Clip, name: str, store: Contents) -> None:
        self._clip, self._store = clip, store
        self._threads = Threads(f"clip {name}", size=1)

    async def __call__(
        self, group: Group, columns: Mapping[str, Any], *, about: str = "{{ prompt }}", head: str = ""
    ) -> list[float]:
        """Raises RewardError where a sample shows no picture, or several."""
        pictures = [picture(sample, self._store) for sample in group.samples]
        made = is_picture(group.samples[0])
        asked = Template("about", about)(columns, f"prompt {group.key}") if made and not head else ""
        texts = [asked if made else sample.text for sample in group.samples]
        score = partial(self._clip.headed, pictures, head) if head else partial(self._clip.alike, pictures, texts)
        return await self._threads.run(score, None)

    async def close(self) -> None:
        """End the scoring thread once it is idle."""
        self._threads.close()
