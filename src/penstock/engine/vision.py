"""The embedded generator for models that see: pictures are encoded once and read at prefill, positions are explicit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.core.errors import GenerationError
from penstock.core.types import FloatArray, IntArray
from penstock.engine.cache import PrefillPlan
from penstock.engine.generator import EmbeddedGenerator
from penstock.engine.sequences import Before, Prefix, Sequence
from penstock.models.pictures import PICTURES, Names
from penstock.models.vision_language import Seen, VisionLanguageModel


class BeforeSeen(Before):
    """Tokens that are read before a sequence draws, some of which show pictures; of other pictures the same are others."""

    def __init__(self, tokens: IntArray, picture_T: Names, model: VisionLanguageModel) -> None:
        super().__init__(tokens)
        self.key += picture_T.tobytes()
        self.picture_T = picture_T
        self.position_3T, self.part_T = model.text.sight.places(picture_T)
        self.shift = int(self.position_3T.max()) + 1 - len(tokens)


class SeeingGenerator(EmbeddedGenerator):
    """Implements the ``Generator`` contract for vision-language models.

    Samples that share a prompt share its prefill, pictures included; prompts that show the same picture share its encoding, as
    long as the tower's weights are the same.
    """

    model: VisionLanguageModel

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """As of any generator, for text. Raises GenerationError for tokens that show a picture, which nobody has given."""
        if np.isin(tokens_T, sorted(self.model.text.media)).any():
            raise GenerationError("tokens that show a picture cannot be scored without it; score rows with a learner")
        return await super().score(tokens_T, temperature, prompt)

    def _before(self, sequence: Sequence) -> Before:
        tokens = self._tokens_before(sequence)
        picture_T = sequence.prompt_columns.get(PICTURES, np.zeros(0, np.int64))
        return BeforeSeen(tokens, np.pad(picture_T, (0, len(tokens) - len(picture_T))), self.model)

    def _read(self, tokens_N: Tensor, plan: PrefillPlan, parts: list[tuple[Prefix, int]]) -> Tensor:
        shown: list[Any] = [(p.before, slice(p.done, p.done + count)) for p, count in parts]
        seen = Seen(
            torch.from_numpy(np.concatenate([before.position_3T[:, part] for before, part in shown], 1)).to(self.model.device),
            np.concatenate([before.picture_T[part] for before, part in shown]),
            np.concatenate([before.part_T[part] for before, part in shown]),
        )
        return self.model.read(tokens_N[None], plan.position_N[None], plan, seen)[0]
