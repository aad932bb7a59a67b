"""The embedded generator for models of media: these are encoded once and read at prefill, positions are explicit."""

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
from penstock.models.media import MEDIA, Names
from penstock.models.media_model import MediaModel, Shown


class BeforeShown(Before):
    """Tokens that are read before a sequence draws, some of which show media; of other media the same are others."""

    def __init__(self, tokens: IntArray, media_T: Names, model: MediaModel) -> None:
        super().__init__(tokens)
        self.key += media_T.tobytes()
        self.media_T = media_T
        self.position_3T, self.part_T = model.text.senses.places(media_T)
        senses = model.text.senses
        self.last_T = senses.last(media_T, self.part_T) if senses.processor.mutual else None
        self.shift = int(self.position_3T.max()) + 1 - len(tokens)


class MediaGenerator(EmbeddedGenerator):
    """Implements the ``Generator`` contract for models that read media.

    Samples that share a prompt share its prefill, media included; prompts that show the same medium share its encoding, as
    long as the tower's weights are the same.
    """

    model: MediaModel

    async def score(self, tokens_T: IntArray, temperature: float = 1.0, prompt: int | None = None) -> FloatArray:
        """As of any generator, for text. Raises GenerationError for tokens that show a medium, which nobody has given."""
        if np.isin(tokens_T, sorted(self.model.text.media)).any():
            raise GenerationError("tokens that show a medium cannot be scored without it; score rows with a learner")
        return await super().score(tokens_T, temperature, prompt)

    def _before(self, sequence: Sequence) -> Before:
        tokens = self._tokens_before(sequence)
        media_T = sequence.prompt_columns.get(MEDIA, np.zeros(0, np.int64))
        return BeforeShown(tokens, np.pad(media_T, (0, len(tokens) - len(media_T))), self.model)

    def _next(self, prefix: Prefix, room: int) -> int:
        """As of any generator; but parts that see one another are read in one go, also where they are more than ``room``."""
        count, last_T = super()._next(prefix, room), prefix.before.last_T  # type: ignore[attr-defined]
        return count if last_T is None or count <= 0 else int(last_T[prefix.done + count - 1]) + 1 - prefix.done

    def _read(self, tokens_N: Tensor, plan: PrefillPlan, parts: list[tuple[Prefix, int]]) -> Tensor:
        read: list[Any] = [(p.before, slice(p.done, p.done + count)) for p, count in parts]
        shown = Shown(
            torch.from_numpy(np.concatenate([before.position_3T[:, part] for before, part in read], 1)).to(self.model.device),
            np.concatenate([before.media_T[part] for before, part in read]),
            np.concatenate([before.part_T[part] for before, part in read]),
        )
        if self.model.text.processor.mutual:
            ends = [before.last_T[: part.stop] for before, part in read]
            plan.last_RT = np.stack([np.pad(last_T, (0, max(map(len, ends)) - len(last_T))) for last_T in ends])
        return self.model.read(tokens_N[None], plan.position_N[None], plan, shown)[0]
