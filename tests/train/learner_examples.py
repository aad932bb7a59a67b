"""Labelled units and losses that the tests of the learner share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import tiny_models
from penstock.config.run import LearnerSpec
from penstock.core.contracts import Denominator, LossOutput, Outputs
from penstock.core.types import Row, Sample, Unit
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import DeviceLearner, LearnerPlan


@dataclass(frozen=True)
class WeightedLoss:
    """``sum(weight * (logp + entropy + (value - 1)²)) / tokens + sum(score) / rows`` over the outputs asked for."""

    needs: frozenset[str] = field(default=frozenset({"logp"}))

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        total = torch.zeros(())
        for name in sorted(self.needs & {"logp", "entropy"}, reverse=True):
            total = total + (fields["weight"] * outputs[name]).sum() / denominator.tokens
        if "value" in outputs:
            total = total + (fields["weight"] * (outputs["value"] - 1).square()).sum() / denominator.tokens
        if "score" in outputs:
            total = total + outputs["score"].sum() / denominator.rows
        return total, {"seen": torch.tensor(len(batch.unit_B) / denominator.rows)}


def some_units(seed: int = 0, groups: Sequence[int] = (3, 1, 2)) -> list[Unit]:
    """Groups of rows with a common prompt, of ragged lengths."""
    rng = np.random.default_rng(seed)
    units = []
    for size in groups:
        prompt = tiny_models.tokens(rng, int(rng.integers(1, 9)))
        units.append(tuple(labelled(rng, prompt) for _ in range(size)))
    return units


def labelled(rng: np.random.Generator, prompt: np.ndarray) -> Row:
    length = int(rng.integers(1, 12))
    return tiny_models.row(prompt, tiny_models.tokens(rng, length), weight=rng.normal(size=length).astype(np.float32))


def learner_of(model: LanguageModel, *, total_steps: int = 10, temperature: float = 1.0, **spec: Any) -> DeviceLearner:
    return DeviceLearner(LanguagePolicy(model, temperature), LearnerSpec(**spec), LearnerPlan(total_steps=total_steps))


def accumulate(
    learner: DeviceLearner,
    units: Sequence[Unit],
    loss: Any = None,
    budget: int = 4096,
    share: bool = True,
    coupled: bool = True,
) -> float:
    """Accumulate all micro-batches; gives the summed loss."""
    denominator = Denominator.of(units)
    batches = lay_out(units, budget, share, coupled=coupled)
    for batch in batches:
        learner.accumulate(batch, loss or WeightedLoss(), denominator)
    return learner.flush()["loss"]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], within: float = 1e-5
) -> None:
    """Equal within a share of the largest gradient entry, in every tensor."""
    assert found.keys() == expected.keys()
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    assert scale > 0
    for name, gradient in expected.items():
        gap = float((found[name] - gradient).abs().max())
        assert gap <= within * scale, f"{name}: gap {gap:.2g} where the largest gradient is {scale:.2g}"


def assert_draws_are_the_learners(learner: DeviceLearner, between: Callable[[list[Unit]], object] = lambda units: None) -> None:
    """A generator over the learner's model draws with the log-probs that the learner gives, before a step and after it;
    ``between``: what happens to the samples before they are scored."""
    generator = EmbeddedGenerator(learner.policy.model, max_running=4)

    async def draw(ordinal: int) -> list[Sample]:
        prompt = tiny_models.tokens(np.random.default_rng(ordinal), 6)
        requests = [tiny_models.request(prompt, ordinal, sample, max_new_tokens=8) for sample in range(3)]
        return await asyncio.gather(*(generator.generate(request) for request in requests))

    for ordinal in range(2):
        samples = asyncio.run(draw(ordinal))
        units = [tuple(tiny_models.row(s.tokens_T[~s.action_T], s.tokens_T[s.action_T]) for s in samples)]
        between(units)
        for sample, logp in zip(samples, learner.score(units, frozenset({"logp"}))["logp"], strict=True):
            assert np.allclose(sample.logp_T[sample.action_T], logp, atol=1e-4)
        accumulate(learner, some_units(9))
        learner.step()
