"""Scoring with a reference that shares the policy's weights: no second model stands in memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from penstock.core.contracts import Outputs
from penstock.models.language_model import LanguageModel
from penstock.models.lora import adapter_off
from penstock.train.learner import LayOut, Scoring, forward


class SharedTrunkScoring(Scoring):
    """Scores with a reference whose lower blocks are the policy's frozen ones.

    Asked for values as well, it gives those of the policy's critic from the same pass, in which the frozen blocks run once.
    """

    gives_values = True

    def __init__(self, policy: LanguageModel, reference: LanguageModel, lay_out: LayOut, token_budget: int = 8192) -> None:
        super().__init__(reference, lay_out, token_budget)
        self.policy = policy

    def outputs(self, tensors: Any, needs: frozenset[str], temperature: float) -> Outputs:
        """Log-probs, entropies and scores of the reference, values of the policy's critic."""
        if "value" not in needs:
            return super().outputs(tensors, needs, temperature)
        with self.policy.once():  # the policy first, because its own frozen blocks always run
            value_A = forward(self.policy, tensors, frozenset({"value"}), temperature)["value"]
            return {**forward(self.model, tensors, needs - {"value"}, temperature), "value": value_A}


class AdapterOffScoring(Scoring):
    """Scores with the model as it was before its low-rank adapters: the reference of a policy that trains them."""

    def source_hidden(self, tensors: Any) -> Tensor:
        """Hidden states ``[A, H]`` without the adapters."""
        with adapter_off(self.model.network):
            return super().source_hidden(tensors)

    def outputs(self, tensors: Any, needs: frozenset[str], temperature: float) -> Outputs:
        with adapter_off(self.model.network):
            return super().outputs(tensors, needs, temperature)
