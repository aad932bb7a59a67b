"""Models of media behind the face of a language model: a tower encodes what a prompt shows for the decoder to read.

Positions are explicit: what a pass reads says where it is, and nothing is remembered on the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.config.media import Media
from penstock.core.blobs import medium_of
from penstock.core.errors import ModelError, TrainingError
from penstock.models import gemma, idefics, llava, qwen_audio, qwen_vl
from penstock.models.architecture import require_equal
from penstock.models.attention import AttentionPlan, PackedPlan, eager_attention
from penstock.models.draws import NEVER
from penstock.models.language_model import Head, LanguageModel
from penstock.models.media import PLURAL, MediaText, Medium, Names
from penstock.models.packing import TokenBatch
from penstock.models.text import Text

READERS: dict[str, Any] = {
    **dict.fromkeys(qwen_vl.TYPES, qwen_vl.QwenVL),
    **dict.fromkeys(llava.TYPES, llava.Llava),
    **dict.fromkeys(gemma.TYPES, gemma.Gemma),
    **dict.fromkeys(idefics.TYPES, idefics.Idefics),
    **dict.fromkeys(qwen_audio.TYPES, qwen_audio.QwenAudio),
}
"""Types of transformers whose media are read here, and by what."""


class Shown(NamedTuple):
    """What packed tokens show: positions ``[3, N]``, the medium of each (0: text) and which part of it."""

    position_3N: Tensor
    media_N: Names
    part_N: NDArray[np.int64]


class MediaPlan(PackedPlan):
    """Packed rows, some of whose tokens show media."""

    shown: Shown


class MediaModel(LanguageModel):
    """A model that reads text and media. Its ``config`` is the decoder's.

    Args:
        frozen: whether the tower stays as it is.
    """

    text: MediaText
    reads_media = True

    def __init__(self, network: Any, text: MediaText, head: Head = "lm", frozen: bool = True) -> None:
        kind = network.config.model_type
        if kind not in READERS or head != "lm":
            raise ModelError(
                f"media are read by language models of the types {', '.join(READERS)}, not by a "
                f'{"reward" if head != "lm" else "language"} model of type "{kind}"; leave model.media out to read text alone'
            )
        super().__init__(network, text, head)
        self.tower.requires_grad_(not frozen)
        self.forbidden: Tensor | None = torch.tensor(sorted(text.media), device=self.device)
        """Tokens of media, which no distribution contains: of generators and of learners."""
        self._features: dict[int, Tensor] = {}
        self._stamp: tuple[int, ...] = ()

    @property
    def tower(self) -> Any:
        """The module that encodes media, or a list of them."""
        towers = self.text.processor.towers(self.network)
        return towers[0] if len(towers) == 1 else nn.ModuleList(towers)

    @property
    def frozen(self) -> bool:
        """Whether the tower stays as it is."""
        return not any(parameter.requires_grad for parameter in self.tower.parameters())

    def to(self, *where: Any, **named: Any) -> MediaModel:
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
        """Forget encoded media."""
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
            raise TrainingError(f"row {batch.row_ids[batch.row_A[int(media.argmax())]]}: an action shows a part of a medium")
        if batch.media_N is None:
            return plain
        B, T = batch.gather_BT.shape
        media_BT, senses = batch.media_N[batch.gather_BT], self.text.senses
        position_3BT, part_BT = np.zeros((3, B, T), np.int64), np.zeros((B, T), np.int64)
        last_BT = np.zeros((B, T), np.int64) if self.text.processor.mutual else None
        for row, length in enumerate(batch.length_B):
            position_3BT[:, row, :length], part_BT[row, :length] = senses.places(media_BT[row, :length])
            if last_BT is not None:
                last_BT[row, :length] = senses.last(media_BT[row, :length], part_BT[row, :length])
        plan = MediaPlan(batch.gather_BT, batch.scatter_N, batch.length_B, self.device, last_BT)
        position_3N = position_3BT.reshape(3, -1)[:, batch.scatter_N]
        plan.shown = Shown(torch.from_numpy(position_3N).to(self.device), batch.media_N, part_BT.reshape(-1)[batch.scatter_N])
        return plan

    def hidden(self, tokens_BN: Tensor, position_BN: Tensor, plan: AttentionPlan, trunk: nn.Module | None = None) -> Tensor:
        """Last hidden states ``[B, N, H]``. A position is one for time, height and width, but for tokens of a
        :class:`MediaPlan`, which says where they are. Raises ModelError for a ``trunk`` of its own."""
        if trunk is not None:
            raise ModelError("a critic with a trunk of its own reads no media; set learner.critic=shared or none")
        return self.read(tokens_BN, position_BN, plan, plan.shown if isinstance(plan, MediaPlan) else None)

    def read(self, tokens_BN: Tensor, position_BN: Tensor, plan: AttentionPlan, shown: Shown | None) -> Tensor:
        """Last hidden states of tokens, of which some show media."""
        embedded_BNH = self.network.get_input_embeddings()(tokens_BN)
        position_3BN, deeper = position_BN[None].expand(3, -1, -1), dict[str, Any]()
        if shown is not None:
            position_3BN = shown.position_3N[:, None]
            where = np.flatnonzero(shown.media_N)
            if len(where):
                part_MH, *deep = self.parts(shown.media_N[where], shown.part_N[where]).split(self.config.hidden_size, -1)
                index = torch.from_numpy(where).to(self.device)
                embedded_BNH = embedded_BNH.index_copy(1, index, part_MH[None].to(embedded_BNH.dtype))
                if deep:  # added after the first layers (DeepStack, arXiv:2406.04334)
                    mask = torch.from_numpy(shown.media_N > 0).to(self.device)[None]
                    deeper = {"visual_pos_masks": mask, "deepstack_visual_embeds": deep}
        run, position = (
            self.text.processor.decoder(self.network),
            position_3BN if self.text.processor.mrope else position_3BN[0],
        )
        return run(inputs_embeds=embedded_BNH, position_ids=position, use_cache=False, plan=plan, **deeper).last_hidden_state

    def parts(self, media_M: Names, part_M: NDArray[np.int64]) -> Tensor:
        """What the decoder reads ``[M, H]`` in place of tokens that show a part of a medium each; of towers that are also read
        by later layers, what these read is next to it."""
        names, inverse_M = np.unique(media_M, return_inverse=True)
        features = self.encoded(names.tolist())
        start = np.cumsum([0, *(len(one) for one in features[:-1])])
        return torch.cat(features).index_select(0, torch.from_numpy(start[inverse_M] + part_M).to(self.device))

    def encoded(self, names: Sequence[int]) -> list[Tensor]:
        """Media as the decoder reads them, a row a token, by the tower's present weights.

        Without gradient each is encoded once for all who ask, until weights of the tower change: who steps, loads or copies
        says so (:meth:`changed`, for fused optimizers leave no trace) or leaves its trace on the parameters.
        """
        if torch.is_grad_enabled() and not self.frozen:
            return self._encode([self.text.senses.of(name) for name in names])
        stamp = tuple(parameter._version for parameter in self.tower.parameters())
        if stamp != self._stamp:
            self.forget()
            self._stamp = stamp
        if len(self._features) + len(names) > MOST or sum(one.nbytes for one in self._features.values()) > ROOM:
            self.forget()
        known = self._features  # of this moment: another thread may forget meanwhile
        lacking = [name for name in names if name not in known]
        if lacking:
            with torch.no_grad():
                made = self._encode([self.text.senses.of(name) for name in lacking])
            known.update(zip(lacking, made, strict=True))
        return [known[name] for name in names]

    def _encode(self, media: Sequence[Medium]) -> list[Tensor]:
        """Media encoded together with those that give the tower the same inputs."""
        together: dict[tuple[str, ...], list[int]] = {}
        for place, medium in enumerate(media):
            together.setdefault(tuple(medium.inputs), []).append(place)
        made: dict[int, Tensor] = {}
        for places in together.values():
            found = self.text.processor.features(self.network, [media[place] for place in places])
            made |= dict(zip(places, found, strict=True))
        return [made[place] for place in range(len(media))]

    # ---- as transformers does it

    @torch.no_grad()
    def check(self) -> None:
        """Compare our passes, of text alone and with each kind of medium in it, with the network's own forward.

        Raises:
            ModelError: the numbers differ.
        """
        forbidden, self.forbidden = self.forbidden, None
        try:
            super().check()
            for decoded in self.text.processor.examples():
                self._check_medium(decoded)
        finally:
            self.forbidden = forbidden

    def _check_medium(self, decoded: Any) -> None:
        senses, processor = self.text.senses, self.text.processor
        medium = senses.made(decoded)
        plain = [token for token in range(len(self.text)) if token not in processor.forbidden]
        row = [plain[5], *medium.tokens, *plain[6:8]]
        if len(row) > self.context:
            return
        tokens, length, name = torch.tensor([row], device=self.device), len(row), 1
        senses.keep(name, medium)
        media_T = np.where(np.isin(row, sorted(processor.pads.values())), name, 0)
        position_3T, part_T = senses.places(media_T)
        shown = Shown(torch.from_numpy(position_3T).to(self.device), media_T, part_T)
        last_BT = senses.last(media_T, part_T)[None] if processor.mutual else None
        plan = PackedPlan(np.arange(length)[None], np.arange(length), np.array([length]), self.device, last_BT)
        ours = self.logits(self.read(tokens, tokens, plan, shown)[0])
        self.forget()
        given = {name: value.to(self.device) for name, value in processor.arguments([medium], tokens).items()}
        with eager_attention(self.network):
            theirs = self.network(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **given).logits[0]
        if processor.mrope:
            self.network.model.rope_deltas = None  # which transformers notes on the module
        require_equal(self, ours, theirs, f"a row with {PLURAL[medium_of(decoded)]}")


MOST, ROOM = 4096, 1 << 30
"""Encoded media, and bytes of them, from which on all are forgotten: a server is shown new ones for ever."""


def media_text(path: str, text: Text, media: Media, config: Any, **place: Any) -> MediaText:
    """The tokenizer of a model folder or hub name, with its processor of media.

    Raises:
        ModelError: there is no processor, or the model is of a type whose media are not read.
    """
    reader = READERS.get(config.model_type)
    if reader is None or not set(reader.kinds) & set(media.kinds):
        read = ", ".join(kind for kind, other in READERS.items() if set(other.kinds) & set(media.kinds))
        raise ModelError(
            f'{path}: model.media={type(media).__name__} of type "{config.model_type}" is not supported, that of {read} is; '
            "leave model.media out to read its text alone"
        )
    return MediaText(text, reader.load(path, media, config, **place))
