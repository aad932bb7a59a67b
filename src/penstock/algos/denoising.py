"""Learning to denoise given pictures, and the literature's algorithms of diffusion policies as those of language.

A trajectory's transitions are its actions, and the log-prob of one is in the mean over the picture's dimensions
(``models/diffusion/kernels.py``), so clips are smaller than those of tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.algos.grpo import GRPO
from penstock.algos.kl import KLPenalty
from penstock.algos.objectives import PolicyGradient
from penstock.config.spec import require, spec
from penstock.core.algorithm import Encoder, FromData
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError
from penstock.core.types import FloatArray, Metrics, Row, Unit

STATES = "state_TD"
"""The column of a diffusion policy: the states of a trajectory, the last of which is the picture."""
PICTURE = "picture"
"""The extra of a trajectory of latents: its decoded picture, uint8 ``[H, W, C]``."""


@spec
class Denoise(FromData):
    """Denoising of given pictures under their prompts (Ho et al. 2020, arXiv 2006.11239), or flow matching (Lipman et al. 2022,
    arXiv 2210.02747), as the denoiser predicts. Reads the column ``picture``: uint8 ``[H, W]`` or ``[H, W, C]``."""

    drop: float = 0.0
    """Share of the pictures whose prompt is not read, so that an empty prompt is known for classifier-free guidance (Ho &
    Salimans 2022, arXiv 2207.12598: 0.1 to 0.2)."""

    coupled: ClassVar[bool] = False
    denoises: ClassVar[bool] = True
    data = "prompts"

    def __post_init__(self) -> None:
        require(0 <= self.drop < 1, f"drop={self.drop} is outside [0, 1); 0.1 is usual")

    @property
    def loss_reads(self) -> frozenset[str]:
        return frozenset({"denoising_error"})

    @property
    def assessed_by(self) -> frozenset[str]:
        return self.loss_reads

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One row of one action, the picture. Raises DataError where there is no picture."""
        fields: dict[str, Any] = {"prompt_drop": np.full(1, self.drop, np.float32)} if self.drop else {}
        return (data_row(example, "picture", tokenizer, **fields),)

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The mean squared error of the batch's pictures."""
        loss = outputs["denoising_error"].sum() / denominator.rows
        return loss, {"loss": loss.detach()}

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``denoising_error``."""
        return {"denoising_error": float(np.mean([np.mean(error_A) for error_A in scores["denoising_error"]]))}


def data_row(example: Mapping[str, Any], column: str, tokenizer: Encoder, draws: int = 1, **fields: Any) -> Row:
    """The picture in a column of a data row, under its prompt, as a row of ``draws`` equal actions. Raises DataError where
    there is none."""
    if example.get(column) is None:
        raise DataError(f'a row has no column "{column}"; give uint8 [height, width] or [height, width, channels]')
    prompt_C = np.asarray(tokenizer.prompt(example["prompt"]), np.int32)
    return _picture(values_of(np.asarray(example[column])), prompt_C, fields, draws)


def picture_row(sample: Any, fields: Mapping[str, Any], draws: int = 1) -> Row:
    """The picture that a trajectory ended with as a row of its own, of ``draws`` equal actions. Raises DataError for samples
    of another policy."""
    if STATES not in sample.columns:
        raise DataError(f"{sample.key}: no column {STATES}; this algorithm learns from samples of denoisers")
    return _picture(sample.columns[STATES][-1], sample.columns["prompt_TC"][0], fields, draws)


def _picture(state_D: FloatArray, prompt_C: Any, fields: Mapping[str, Any], draws: int = 1) -> Row:
    states, prompts = (np.broadcast_to(value, (draws, *value.shape)) for value in (state_D, prompt_C))
    columns = {STATES: states, "time_T": np.zeros(draws, np.float32), "prompt_TC": prompts}
    return Row(columns, np.ones(draws, bool), dict(fields))


def noise_key(text: str) -> float:
    """A row's field ``noise_key``, of which its times and noise are a function (24 bits, which float32 holds)."""
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=3).digest(), "little"))


def values_of(picture: NDArray[Any]) -> FloatArray:
    """A picture as a denoiser reads it: float32 ``[C, H, W]`` from -1 (black) to 1. Raises DataError for other arrays."""
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
        raise DataError(f"a picture is uint8 [height, width] or [height, width, channels], not {picture.dtype} {picture.shape}")
    whole = picture[..., None] if picture.ndim == 2 else picture
    return np.ascontiguousarray(whole.transpose(2, 0, 1), np.float32) / 127.5 - 1


def picture_of(sample: Any) -> NDArray[np.uint8]:
    """The picture that a trajectory of a denoiser ended with, ``[H, W, C]``, for rewards and for people; of latents, what their
    decoder makes of them."""
    if PICTURE in sample.extras:
        decoded: NDArray[np.uint8] = sample.extras[PICTURE]
        return decoded
    last = sample.columns[STATES][-1]
    return ((np.clip(last, -1, 1) + 1) * 127.5).round().astype(np.uint8).transpose(1, 2, 0)


def flow_grpo(**fields: Any) -> GRPO:
    """Flow-GRPO (Liu et al. 2025, arXiv 2505.05470): rewards centred in their group and divided by the batch's deviation; with
    ``kl=exact_kl(0.04)`` as in the paper. Use ``Denoising(kernel="flow")``."""
    return GRPO(**{"scale": "batch", "clip": (1e-3, 1e-3), "aggregate": "sequence", **fields})


def ddpo(**fields: Any) -> GRPO:
    """DDPO-IS (Black et al. 2023, arXiv 2305.13301), with the statistics of a prompt's group. Use ``kernel="ddim"``."""
    return GRPO(**{"clip": (1e-4, 1e-4), "aggregate": "sequence", **fields})


def ddpo_sf(**fields: Any) -> GRPO:
    """DDPO-SF: the plain policy gradient, one update a batch."""
    return ddpo(**{"objective": PolicyGradient(), "clip": None, **fields})


def exact_kl(coefficient: float) -> KLPenalty:
    """The KL of each transition to the reference's, which two Gaussians have in closed form (DPOK, arXiv 2305.16381)."""
    return KLPenalty(place="loss", estimator="full", coefficient=coefficient)
