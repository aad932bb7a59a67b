"""Models of the Qwen2.5-VL kind behind the face of a language model: a tower encodes pictures for the decoder to read.

Positions are explicit, ``[3, N]``: what a pass reads says where it is, and nothing is remembered on the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Qwen2VLImageProcessorPil

from penstock.config.vision import Vision
from penstock.core.errors import ModelError, TrainingError
from penstock.models.architecture import require_equal
from penstock.models.attention import AttentionPlan, PackedPlan, eager_attention, quiet_transformers
from penstock.models.language_model import Head, LanguageModel
from penstock.models.packing import TokenBatch
from penstock.models.pictures import Names, Patches, SeeingText, Sight
from penstock.models.text import Text

MODEL_TYPES = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl")
"""Types of transformers whose pictures are read here."""
NEVER = -1e9
"""The logit of a token that is never generated: its probability is exactly 0, and no difference of log-probs is undefined."""


class Seen(NamedTuple):
    """What packed tokens show: positions ``[3, N]``, the picture of each (0: text) and which part of it."""

    position_3N: Tensor
    picture_N: Names
    part_N: NDArray[np.int64]


class SeeingPlan(PackedPlan):
    """Packed rows, some of whose tokens show pictures."""

    seen: Seen


class VisionLanguageModel(LanguageModel):
    """A model that reads text and pictures. Its ``config`` is the decoder's.

    Args:
        frozen: whether the tower stays as it is.
    """

    text: SeeingText
    sees = True

    def __init__(self, network: Any, text: SeeingText, head: Head = "lm", frozen: bool = True) -> None:
        kind = network.config.model_type
        if kind not in MODEL_TYPES or head != "lm":
            raise ModelError(
                f"pictures are read by language models of the types {', '.join(MODEL_TYPES)}, not by a "
                f'{"reward" if head != "lm" else "language"} model of type "{kind}"; leave model.vision out to read text alone'
            )
        super().__init__(network, text, head)
        self.tower.requires_grad_(not frozen)
        self.forbidden: Tensor | None = torch.tensor(sorted(text.media), device=self.device)
        """Tokens of media, which no distribution contains: of generators and of learners."""
        self._features: dict[int, Tensor] = {}
        self._stamp: tuple[int, ...] = ()

    @property
    def tower(self) -> Any:
        """The module that encodes pictures."""
        return self.network.model.visual

    @property
    def frozen(self) -> bool:
        """Whether the tower stays as it is."""
        return not any(parameter.requires_grad for parameter in self.tower.parameters())

    def to(self, *where: Any, **named: Any) -> VisionLanguageModel:
        """As of any module; what was encoded is forgotten."""
        super().to(*where, **named)
        self.forget()
        if self.forbidden is not None:
            self.forbidden = self.forbidden.to(self.device)
        return self

    def changed(self) -> None:
        if not self.frozen:
            self.forget()

    def forget(self) -> None:
        """Forget encoded pictures."""
        self._features = {}

    def logits(self, hidden_AH: Tensor) -> Tensor:
        logits_AV = super().logits(hidden_AH)
        return logits_AV if self.forbidden is None else logits_AV.index_fill(-1, self.forbidden, NEVER)

    # ---- passes

    def plan(self, batch: TokenBatch) -> Any:
        """How a packed batch is read. Raises TrainingError where a row is too long or an action is a token of media."""
        plain = super().plan(batch)
        media = np.isin(batch.target_A, sorted(self.text.media))
        if media.any():
            raise TrainingError(f"row {batch.row_ids[batch.row_A[int(media.argmax())]]}: an action shows a part of a picture")
        if batch.picture_N is None:
            return plain
        plan = SeeingPlan(batch.gather_BT, batch.scatter_N, batch.length_B, self.device)
        B, T = batch.gather_BT.shape
        picture_BT = batch.picture_N[batch.gather_BT]
        position_3BT, part_BT = np.zeros((3, B, T), np.int64), np.zeros((B, T), np.int64)
        for row, length in enumerate(batch.length_B):
            position_3BT[:, row, :length], part_BT[row, :length] = self.text.sight.places(picture_BT[row, :length])
        position_3N = position_3BT.reshape(3, -1)[:, batch.scatter_N]
        plan.seen = Seen(torch.from_numpy(position_3N).to(self.device), batch.picture_N, part_BT.reshape(-1)[batch.scatter_N])
        return plan

    def hidden(self, tokens_BN: Tensor, position_BN: Tensor, plan: AttentionPlan, trunk: nn.Module | None = None) -> Tensor:
        """Last hidden states ``[B, N, H]``. A position is one for time, height and width, but for tokens of a
        :class:`SeeingPlan`, which says where they are. Raises ModelError for a ``trunk`` of its own."""
        if trunk is not None:
            raise ModelError("a critic with a trunk of its own sees no pictures; set learner.critic=shared or none")
        return self.read(tokens_BN, position_BN, plan, plan.seen if isinstance(plan, SeeingPlan) else None)

    def read(self, tokens_BN: Tensor, position_BN: Tensor, plan: AttentionPlan, seen: Seen | None) -> Tensor:
        """Last hidden states of tokens, of which some show pictures."""
        embedded_BNH = self.network.get_input_embeddings()(tokens_BN)
        position, deeper = position_BN[None].expand(3, -1, -1), dict[str, Any]()
        if seen is not None:
            position = seen.position_3N[:, None]
            where = np.flatnonzero(seen.picture_N)
            if len(where):
                part_MH, *deep = self.parts(seen.picture_N[where], seen.part_N[where]).split(self.config.hidden_size, -1)
                index = torch.from_numpy(where).to(self.device)
                embedded_BNH = embedded_BNH.index_copy(1, index, part_MH[None].to(embedded_BNH.dtype))
                if deep:  # added after the first layers (DeepStack, arXiv:2406.04334)
                    shown = torch.from_numpy(seen.picture_N > 0).to(self.device)[None]
                    deeper = {"visual_pos_masks": shown, "deepstack_visual_embeds": deep}
        run = self.network.model.language_model
        return run(inputs_embeds=embedded_BNH, position_ids=position, use_cache=False, plan=plan, **deeper).last_hidden_state

    def parts(self, picture_M: Names, part_M: NDArray[np.int64]) -> Tensor:
        """What the decoder reads ``[M, H]`` in place of tokens that show a part of a picture each; of towers that are also read
        by later layers, what these read is next to it."""
        names, inverse_M = np.unique(picture_M, return_inverse=True)
        features = self.encoded(names.tolist())
        start = np.cumsum([0, *(len(one) for one in features[:-1])])
        return torch.cat(features).index_select(0, torch.from_numpy(start[inverse_M] + part_M).to(self.device))

    def encoded(self, names: Sequence[int]) -> list[Tensor]:
        """Pictures as the decoder reads them, a row a token, by the tower's present weights.

        Without gradient each is encoded once for all who ask, until weights of the tower change: who steps, loads or copies
        says so (:meth:`changed`, for fused optimizers leave no trace) or leaves its trace on the parameters.
        """
        if torch.is_grad_enabled() and not self.frozen:
            return self._encode([self.text.sight.of(name) for name in names])
        stamp = tuple(parameter._version for parameter in self.tower.parameters())
        if stamp != self._stamp:
            self.forget()
            self._stamp = stamp
        if len(self._features) + len(names) > MOST:
            self.forget()
        known = self._features  # of this moment: another thread may forget meanwhile
        lacking = [name for name in names if name not in known]
        if lacking:
            with torch.no_grad():
                made = self._encode([self.text.sight.of(name) for name in lacking])
            known.update(zip(lacking, made, strict=True))
        return [known[name] for name in names]

    def _encode(self, pictures: Sequence[Patches]) -> list[Tensor]:
        values = torch.cat([picture.values_PD for picture in pictures]).to(self.device, self.tower.dtype)
        grids = torch.tensor([picture.grid for picture in pictures], device=self.device)
        made = self.network.model.get_image_features(values, grids, return_dict=True)
        layers = [made.pooler_output, *made.get("deepstack_features", ())]
        return [torch.cat(parts, -1) for parts in zip(*layers, strict=True)]

    # ---- as transformers does it

    @torch.no_grad()
    def check(self) -> None:
        """Compare our passes, of text alone and with a picture in it, with the network's own forward.

        Raises:
            ModelError: the numbers differ.
        """
        forbidden, self.forbidden = self.forbidden, None
        try:
            super().check()
            self._check_picture()
        finally:
            self.forbidden = forbidden

    def _check_picture(self) -> None:
        sight, side = self.text.sight, 4 * self.text.sight.merge * int(self.text.sight.processor.patch_size)
        ramp = np.arange(side * side * 3, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(8)
        picture = sight.made((ramp % np.uint64(256)).astype(np.uint8).reshape(side, side, 3))
        count = int(np.prod(picture.grid)) // sight.merge**2
        pad, start, end = self.text.marks_around
        tokens = torch.tensor([[5, start, *[pad] * count, end, 6, 7]], device=self.device)
        if tokens.shape[1] > self.context:
            return
        name, shown_T = 1, np.array([0, 0, *[1] * count, 0, 0, 0])
        sight.keep(name, picture)
        position_3T, part_T = sight.places(shown_T)
        seen = Seen(torch.from_numpy(position_3T).to(self.device), shown_T, part_T)
        length = tokens.shape[1]
        row = np.arange(length)
        plan = PackedPlan(row[None], row, np.array([length]), self.device)
        ours = self.logits(self.read(tokens, tokens, plan, seen)[0])
        self.forget()
        with eager_attention(self.network):
            theirs = self.network(
                input_ids=tokens, pixel_values=picture.values_PD.to(self.device, self.dtype), use_cache=False,
                image_grid_thw=torch.tensor([picture.grid], device=self.device), mm_token_type_ids=(tokens == pad).int(),
            ).logits[0]  # fmt: skip
        self.network.model.rope_deltas = None  # which transformers notes on the module
        require_equal(self, ours, theirs, "a row with a picture")


MOST = 4096
"""Encoded pictures that are kept at most."""


def seeing_text(path: str, text: Text, vision: Vision, config: Any, **place: Any) -> SeeingText:
    """The tokenizer of a model folder or hub name, with its picture processor.

    Raises:
        ModelError: there is no processor, or the model is of a type whose pictures are not read.
    """
    if config.model_type not in MODEL_TYPES:
        raise ModelError(
            f'{path}: pictures of type "{config.model_type}" are not supported, those of {", ".join(MODEL_TYPES)} are; '
            "leave model.vision out to read its text alone"
        )
    try:
        with quiet_transformers():
            processor = Qwen2VLImageProcessorPil.from_pretrained(path, **place)
    except Exception as error:
        raise ModelError(f"{path}: the picture processor (preprocessor_config.json) cannot be loaded: {error}") from error
    return dressed(text, processor, vision, config)


def dressed(text: Text, processor: Any, vision: Vision, config: Any) -> SeeingText:
    """A tokenizer with a picture processor, whose pictures have at most as many pixels as the spec says."""
    if vision.pixels:
        size = dict(processor.size)
        processor.size = {**size, "longest_edge": vision.pixels, "shortest_edge": min(size["shortest_edge"], vision.pixels)}
    marks = config.image_token_id, config.vision_start_token_id, config.vision_end_token_id
    return SeeingText(text, Sight(processor), marks, frozenset({config.image_token_id, config.video_token_id}))
