"""Films of episodes that an evaluation plays, as samples which the page and the report show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.control.environments import Environments
from penstock.core.blobs import Film
from penstock.core.errors import SpecError
from penstock.core.types import Group, Prompt, PromptKey, Sample, SampleKey
from penstock.data.blobs import BLOBS, Blobs
from penstock.data.pictures import from_film

RATE = 10.0
"""Frames a second."""


class Camera:
    """Takes a picture of the first environment (of a game: the first game) at each step, up to so many."""

    def __init__(self, environments: Environments, frames: int) -> None:
        self.environments, self.frames = environments, frames
        self.taken: list[Any] = []

    def shoot(self) -> None:
        """Take a picture, where one more is wanted. Raises SpecError for an environment that gives none."""
        if len(self.taken) >= self.frames:
            return
        picture = self.environments.picture()
        if picture is None:
            raise SpecError(
                f"{self.environments.name}: it draws no picture for evaluation.film; give it gymnasium's render_mode "
                '"rgb_array", or set evaluation.film=0'
            )
        self.taken.append(np.ascontiguousarray(picture, np.uint8))

    def groups(self, run: Path | None, said: str, rewards: Sequence[float]) -> tuple[Group, ...]:
        """The film as the only sample of a group, its file among the blobs of the folder of a ``run``; nothing where no picture
        was taken or there is no such folder. No action of it is trained on, and none is judged."""
        if run is None or not self.taken:
            return ()
        blob = Blobs(run / BLOBS).add(*from_film(Film(np.stack(self.taken), RATE), "evaluation.film"))
        key, none = PromptKey("evaluation", 0, 0), np.zeros(1, bool)
        sample = Sample(
            key=SampleKey(key, 0),
            columns={},
            action_T=none,
            logp_T=np.zeros(1, np.float32),
            version_T=np.full(1, -1, np.int32),
            finish="stop",
            text=said,
            reward_T=np.array(rewards, np.float32) if rewards else None,
            blobs=(blob,),
        )
        return (Group(Prompt(key, self.environments.name), (sample,)),)
