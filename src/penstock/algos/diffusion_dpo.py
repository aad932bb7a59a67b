"""Diffusion-DPO (Wallace et al. 2023, arXiv 2311.12908): which of two pictures people prefer, without samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.algos.denoising import data_row, noise_key
from penstock.algos.distillation import Divergence
from penstock.config.spec import Count, Positive, spec
from penstock.core.algorithm import Encoder, FromData
from penstock.core.contracts import Denominator, LossOutput, Outputs, Scores
from penstock.core.errors import DataError
from penstock.core.types import Metrics, Row, Unit


@spec
class DiffusionDPO(FromData):
    """The chosen of two pictures should be denoised better than by the frozen reference, the rejected one worse (Wallace et al.
    2023, arXiv 2311.12908). Reads the columns ``chosen`` and ``rejected``: uint8 ``[H, W]`` or ``[H, W, C]`` of one prompt.

    Both pictures of a pair are given the same noise at the same time. The error is a mean over a picture's values, and ``beta``
    has the number of steps in it, as in the paper's code. Denoisers of noise and of velocities learn from it alike.
    """

    beta: Positive = 5000.0
    """What a difference of errors counts; the paper uses 2,000 to 5,000."""
    draws: Count = 1
    """Times at which each pair is given noise in a step."""

    coupled: ClassVar[bool] = True
    denoises: ClassVar[bool] = True
    data = "prompts"

    @property
    def loss_reads(self) -> frozenset[str]:
        return frozenset({"prediction"})

    @property
    def assessed_by(self) -> frozenset[str]:
        return frozenset({"denoising_error"})

    @property
    def teacher(self) -> Divergence:
        """The frozen reference, asked within the loss's own pass, since its noise is another in each step."""
        return Divergence()

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """The chosen row, then the rejected one. Raises DataError where a picture is missing, is none or has another size."""
        pictures = [example.get(column) for column in ("chosen", "rejected")]
        key = noise_key(repr((example["prompt"], *(np.asarray(picture).tobytes() for picture in pictures))))
        made = [
            data_row(example, column, tokenizer, draws=self.draws, noise_key=key, preferred=float(column == "chosen"))
            for column in ("chosen", "rejected")
        ]
        return _same_size(made)

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The mean over pairs and their times of :func:`~penstock.algos.denoising_losses.preferred`."""
        from penstock.algos import denoising_losses as losses

        wanted_AD, chosen_A = outputs["prediction/wanted"], fields["preferred"][batch.row_A] == 1
        error_A = losses.squared_distance(outputs["prediction"], wanted_AD)
        reference_A = losses.squared_distance(outputs["prediction/reference"], wanted_AD)
        gain_A = reference_A - error_A
        pairs = denominator.tokens / 2
        loss = losses.preferred(gain_A[chosen_A], gain_A[~chosen_A], self.beta).sum() / pairs
        gain_A = gain_A.detach()
        metrics = {
            "loss": loss.detach(),
            "preference/accuracy": (gain_A[chosen_A] > gain_A[~chosen_A]).float().sum() / pairs,
            "denoising_error/chosen": error_A.detach()[chosen_A].sum() / pairs,
            "denoising_error/rejected": error_A.detach()[~chosen_A].sum() / pairs,
        }
        return loss, metrics

    def assess(self, units: Sequence[Unit], scores: Scores) -> Metrics:
        """Held-out ``denoising_error`` of chosen and of rejected pictures."""
        means = np.array([np.mean(error_A) for error_A in scores["denoising_error"]])
        return {"denoising_error/chosen": float(means[::2].mean()), "denoising_error/rejected": float(means[1::2].mean())}


def _same_size(rows: Sequence[Row]) -> Unit:
    shapes = [row.columns["state_TD"].shape[1:] for row in rows]
    if shapes[0] != shapes[1]:
        raise DataError(f"the chosen picture is {list(shapes[0])} and the rejected one {list(shapes[1])}; resize one of them")
    return tuple(rows)
