"""On-policy distillation: a teacher corrects the student's own answers, token by token, with its whole distribution.

Agarwal et al. 2024 (GKD, arXiv 2306.13649), Gu et al. 2024 (MiniLLM, arXiv 2306.08543).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.labels import labelled_row, trajectories
from penstock.config.spec import InnerShare, spec
from penstock.core.algorithm import FromSamples
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.types import Group, Unit


@spec
class Divergence:
    """How far the student's next-token distribution is from the teacher's, over the whole vocabulary."""

    kind: Literal["reverse", "forward", "jensen-shannon"] = "reverse"
    """``KL(student ‖ teacher)``, ``KL(teacher ‖ student)``, or the generalised Jensen-Shannon divergence."""
    mixture: InnerShare = 0.5
    """The teacher's share of the middle distribution; for ``jensen-shannon`` only."""

    def __call__(self, student_AV: Any, teacher_AV: Any) -> Any:
        """The divergence of log-probs ``[A, V]``, as a tensor ``[A]`` in nats."""
        from penstock.algos import divergences

        if self.kind == "jensen-shannon":
            return divergences.jensen_shannon(student_AV, teacher_AV, self.mixture)
        return (divergences.reverse_kl if self.kind == "reverse" else divergences.forward_kl)(student_AV, teacher_AV)


@spec
class Distillation(FromSamples):
    """The student draws, the teacher (the stage's ``reference``) says how it would have gone on at every token.

    Rewards play no part in what is learned; those of the stage measure it. The gradient is that of the divergence at the
    states that the student visits; that it also decides which states it visits is left out, as usual.
    """

    divergence: Divergence = Divergence()

    @property
    def teacher(self) -> Divergence:
        return self.divergence

    named_reference: ClassVar[bool] = True
    """The model that the stage starts from would be no teacher."""
    bounded: ClassVar[bool] = True
    """The loss has no probability ratio, so samples of an older policy do no harm."""

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        """One unit per group with a valid sample; every token of an answer counts alike."""
        found = trajectories(groups, columns)
        return [tuple(labelled_row(t, weight=np.ones(len(t))) for t in group) for group in found]

    loss_reads: ClassVar[frozenset[str]] = frozenset({"divergence"})
    coupled: ClassVar[bool] = False

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        """The mean divergence over the batch's action tokens; reads the per-action field ``weight``."""
        from penstock.algos import losses

        loss = losses.weighted_mean(outputs["divergence"], fields["weight"], denominator=denominator.tokens)
        return loss, {"loss": loss.detach(), "distillation/divergence": loss.detach()}
