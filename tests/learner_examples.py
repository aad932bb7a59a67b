"""Labelled units and losses that the tests of the learner share."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import tiny_models
from penstock.config.run import LearnerSpec
from penstock.core.contracts import Denominator, LossOutput, Outputs, State
from penstock.core.types import Row, Sample, Unit
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import DeviceLearner, LearnerPlan


@dataclass(frozen=True)
class WeightedLoss:
    """``sum(weight * (logp + entropy + (value - 1)²)) / tokens + sum(score) / rows`` over the outputs asked for, scaled."""

    needs: frozenset[str] = field(default=frozenset({"logp"}))
    scale: float = 1.0

    def __call__(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        total = torch.zeros(())
        for name in sorted(self.needs & {"logp", "entropy"}, reverse=True):
            total = total + (fields["weight"] * outputs[name]).sum() / denominator.tokens
        if "value" in outputs:
            total = total + (fields["weight"] * (outputs["value"] - 1).square()).sum() / denominator.tokens
        if "score" in outputs:
            total = total + outputs["score"].sum() / denominator.rows
        return self.scale * total, {"seen": torch.tensor(len(batch.unit_B) / denominator.rows)}


def weighted(rng: np.random.Generator, length: int) -> dict[str, Any]:
    return {"weight": rng.normal(size=length).astype(np.float32)}


def evenly(rng: np.random.Generator, length: int) -> dict[str, Any]:
    return {"weight": np.ones(length, np.float32)}


def some_units(
    seed: int = 0, groups: Sequence[int] = (3, 1, 2), fields: Callable[[np.random.Generator, int], dict[str, Any]] = weighted
) -> list[Unit]:
    """Groups of rows with a common prompt, of ragged lengths; ``fields`` gives those of a row with so many actions."""
    rng = np.random.default_rng(seed)

    def labelled(prompt: np.ndarray) -> Row:
        length = int(rng.integers(1, 12))
        return tiny_models.row(prompt, tiny_models.tokens(rng, length), **fields(rng, length))

    units = []
    for size in groups:
        prompt = tiny_models.tokens(rng, int(rng.integers(1, 9)))
        units.append(tuple(labelled(prompt) for _ in range(size)))
    return units


def rows_of(units: Sequence[Unit]) -> list[Row]:
    return [row for unit in units for row in unit]


def learner_of(model: LanguageModel, *, total_steps: int = 10, temperature: float = 1.0, **spec: Any) -> DeviceLearner:
    return DeviceLearner(LanguagePolicy(model, temperature), LearnerSpec(**spec), LearnerPlan(total_steps=total_steps))


def accumulate(
    learner: DeviceLearner,
    units: Sequence[Unit],
    loss: Any = None,
    budget: int = 4096,
    share: bool = True,
    coupled: bool = True,
    of: Sequence[Unit] | None = None,
) -> float:
    """Accumulate all micro-batches; gives the summed loss. ``of``: the units of all ranks, where ``units`` are a rank's."""
    denominator = Denominator.of(of or units)
    batches = lay_out(units, budget, share, coupled=coupled)
    for batch in batches:
        learner.accumulate(batch, loss or WeightedLoss(), denominator)
    return learner.flush()["loss"]


def train(learner: DeviceLearner, seeds: Sequence[int], loss: Any = None) -> list[float]:
    """An optimizer step on the units of each seed; gives the losses."""
    found = []
    for seed in seeds:
        found.append(accumulate(learner, some_units(seed), loss))
        learner.step()
    return found


def trained(model: LanguageModel, steps: int = 2, loss: Any = None, **spec: Any) -> DeviceLearner:
    """A learner after a few steps at a high rate."""
    learner = learner_of(model, **({"learning_rate": 1e-2} | spec))
    train(learner, range(steps), loss)
    return learner


def saved(learner: DeviceLearner) -> State:
    """What a checkpoint would hold: a copy of the state."""
    state = learner.state()
    arrays = {name: torch.as_tensor(array).detach().clone() for name, array in state.arrays.items()}
    return State(arrays, copy.deepcopy(state.values))


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_equal_bits(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def assert_resumes_bit_by_bit(
    make: Callable[[], DeviceLearner], loss: Any = None, advance: Callable[..., Any] = train
) -> State:
    """A learner that loads another's state after two steps goes on as that one does; gives the state."""
    whole, resumed = make(), make()
    advance(whole, range(2), loss)
    state = saved(whole)
    resumed.load_state(state)
    assert advance(resumed, range(2, 4), loss) == advance(whole, range(2, 4), loss)
    assert_equal_bits(weights_of(resumed.policy.module), weights_of(whole.policy.module))
    assert_equal_bits(saved(resumed).arrays, saved(whole).arrays)
    assert resumed.state().values == whole.state().values
    return state


LAYOUTS = st.fixed_dictionaries(
    {"budget": st.integers(16, 120), "share": st.booleans(), "coupled": st.booleans(), "order": st.permutations(range(4))}
)
"""Ways to lay out four units: the arguments of :func:`assert_layout_changes_nothing`."""


def assert_layout_changes_nothing(
    make: Callable[[], DeviceLearner],
    units: Sequence[Unit],
    loss: Any = None,
    within: float = 1e-5,
    order: Sequence[int] | None = None,
    **layout: Any,
) -> None:
    """Loss and gradients are those of one micro-batch without shared prefixes."""
    one, whole = make(), make()
    found = accumulate(one, [units[place] for place in order or range(len(units))], loss, **layout)
    assert found == pytest.approx(accumulate(whole, units, loss, budget=100_000, share=False), abs=within)
    assert_same_gradients(gradients(one.policy.module), gradients(whole.policy.module), within)


def assert_ranks_add_up(
    make: Callable[[], DeviceLearner], units: Sequence[Unit], loss: Any = None, within: float = 1e-5
) -> None:
    """Gradients of two ranks that share the units add up to those of one device that has them all."""
    ranks = []
    for part in (units[:1], units[1:], units):
        learner = make()
        accumulate(learner, part, loss, of=units)
        ranks.append(gradients(learner.policy.module))
    one, other, whole = ranks
    assert_same_gradients({name: one[name] + other[name] for name in one}, whole, within)


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


def assert_draws_are_the_learners(
    learner: DeviceLearner, between: Callable[[list[Unit]], object] = lambda units: None, within: float = 1e-4
) -> None:
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
            assert np.allclose(sample.logp_T[sample.action_T], logp, atol=within)
        train(learner, [9])
