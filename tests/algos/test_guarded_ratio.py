"""GRPO-Guard's ratio: by hand, centred whatever the noise, and refused where nothing would bound it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos import GuardedRatio, flow_grpo
from penstock.algos.objectives import SurrogateInputs
from penstock.algos.surrogates import guarded
from penstock.config.denoising import Denoising, Pictures
from penstock.config.learner import LearnerSpec
from penstock.config.run import DataSpec, ModelSpec, Online, RewardSpec
from penstock.core.contracts import Denominator
from penstock.core.errors import SpecError
from penstock.core.types import Group, Prompt, PromptKey, Request, SampleKey, Sampling
from penstock.engine.denoising import DenoisingGenerator
from penstock.loops.learn import Labeller
from penstock.models.diffusion.kernels import log_prob
from penstock.models.diffusion.model import build_denoiser
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.train.learner import DeviceLearner, LearnerPlan


def two(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_the_guarded_log_ratio_by_hand():
    """Two values, means (1, 0) that were (0, 0), deviation 2: moved by 1/2 in the mean, 1/16 over 2 s²; with a log-ratio of 0.1
    that is 2 · (0.1 + 0.0625)."""
    found = guarded(torch.tensor([0.1]), two([1.0, 0.0]), two([0.0, 0.0]), torch.tensor([2.0]))
    assert found.item() == pytest.approx(0.325)


@given(st.integers(0, 10**6), st.floats(0.01, 3))
def test_it_is_the_mean_of_the_noise_times_how_far_the_mean_has_moved(seed, deviation):
    draw = torch.Generator().manual_seed(seed)
    start, moved, noise = torch.randn(3, 2, 5, generator=draw, dtype=torch.float64)
    mean, deviation_A = start + 0.01 * moved, torch.full((2,), deviation, dtype=torch.float64)
    reached = start + deviation * noise
    gap_A = log_prob(reached, mean, deviation_A) - log_prob(reached, start, deviation_A)
    found = guarded(gap_A, mean, start, deviation_A)
    assert torch.allclose(found, (noise * (mean - start)).mean(1), atol=1e-9)


def test_the_gain_by_hand():
    """Advantages 2 and -1 at ratios e^0.2 and 1, clipped at 1.1, over spans of 0.5 and 0.1."""
    mean, start = two([1.0], [0.0]), two([0.0], [0.0])
    deviation_A, gap_A = two([1.0, 1.0])[0], two([-0.3, 0.0])[0]
    outputs = {"transition": mean, "transition/deviation": deviation_A, "transition/span": two([0.5, 0.1])[0]}
    inputs = SurrogateInputs(gap_A, gap_A, two([2.0, -1.0])[0], None, None, {"transition": start}, 0.1, 0.1, outputs)
    gain_A, cut_A = GuardedRatio().surrogate(inputs)
    assert gain_A.tolist() == pytest.approx([1.1 * 2 / 0.5, -1 / 0.1])
    assert cut_A.tolist() == [True, False]


ALGORITHM = flow_grpo(objective=GuardedRatio(), clip=(2e-6, 2e-6))


def denoiser():
    model = build_denoiser(ModelSpec(denoiser=Pictures(shape=(1, 4, 4)), vocabulary=259, context=16, layers=1), ["cat"], 0)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if "down" in name:
                parameter.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
    model.draw(Denoising(steps=6))
    return model


def labelled(model, algorithm):
    """The units of two prompts with two samples each, by a learner of the model; and that learner."""

    async def drawn(ordinal):
        generator, key = DenoisingGenerator(model), PromptKey("p", 0, ordinal)
        tokens = np.asarray(model.text.prompt("cat"), np.int32)
        asked = [Request(SampleKey(key, n), tokens, Sampling(seed=3)) for n in range(2)]
        samples = await asyncio.gather(*(generator.generate(one) for one in asked))
        return Group(Prompt(key, "cat"), tuple(s.scored(float(n)) for n, s in enumerate(samples)))

    learner = DeviceLearner(DiffusionPolicy(model), LearnerSpec(learning_rate=1e-3, token_budget=10**6), LearnerPlan(9))
    groups = [asyncio.run(drawn(ordinal)) for ordinal in range(2)]
    return learner, Labeller(algorithm, learner, None).label(groups)


@pytest.mark.parametrize("budget", [5, 10**6])
def test_the_gradient_before_the_first_update_is_that_of_the_noise_over_the_span(budget):
    """All ratios are 1, so that of a gain is the advantage times the gradient of mean(ε μ), over the span."""
    model = denoiser()
    learner, units = labelled(model, ALGORITHM)
    for batch in learner.policy.lay_out(units, budget, coupled=False):
        learner.accumulate(batch, ALGORITHM.loss(), Denominator.of(units))
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert learner.flush()["policy/clip_fraction"] == 0
    model.zero_grad()
    (batch,) = learner.policy.lay_out(units, 10**6, coupled=False)
    mean, deviation_A = learner.policy.gaussian(batch)
    noise = (torch.from_numpy(batch.reached_AD) - mean.detach()) / deviation_A.reshape(-1, 1, 1, 1)
    weight_A = torch.from_numpy(batch.fields["advantage"] / (batch.time_A - batch.next_A) / 5 / 4)
    (-(weight_A * (noise * mean).flatten(1).mean(1)).sum()).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert wanted.abs().max() > 1e-3
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_ratios_move_by_as_much_at_every_noise():
    """The learner's weights move; the spread of plain log-ratios over transitions differs several times more."""
    model = denoiser()
    learner, units = labelled(model, ALGORITHM)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    (batch,) = learner.policy.lay_out(units, 10**6, coupled=False)
    found = learner.policy.outputs(batch, frozenset({"logp", "transition"}))
    gap_A = found["logp"].detach() - torch.from_numpy(batch.fields["proximal_logp"])
    start = torch.from_numpy(batch.fields["transition"])
    guarded_A = guarded(gap_A, found["transition"].detach(), start, found["transition/deviation"])
    plain, ours = (value_A.reshape(4, 5).abs().mean(0) for value_A in (gap_A, guarded_A))
    assert plain.max() / plain.min() > 2 * ours.max() / ours.min()


def test_samples_of_older_weights_are_refused_unless_they_are_weighed():
    rest = {"model": ModelSpec(path="x"), "data": DataSpec(source="x"), "rewards": (RewardSpec(function="m:f"),)}
    online = Online(name="draw", algorithm=flow_grpo(objective=GuardedRatio()), **rest)
    with pytest.raises(SpecError, match="max_lag=2 needs a clipped loss"):
        replace(online, max_lag=2)
