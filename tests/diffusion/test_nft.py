"""DiffusionNFT: its loss by hand, what the slow copy does, and that pictures are drawn with it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from denoiser_examples import DDIM, KINDS, drawn, request, scored, tiny
from training import accumulated, kept_state, losses, steps

from penstock.algos import denoising_losses
from penstock.algos.nft import DiffusionNFT
from penstock.config.learner import LearnerSpec
from penstock.config.run import DataSpec, ModelSpec, Online, RewardSpec
from penstock.core.errors import DataError, SpecError
from penstock.core.types import Sampling, WeightUpdate
from penstock.engine.denoising import DenoisingGenerator
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.diffusion.policy import DiffusionPolicy, times_and_noise
from penstock.models.files import load_model, save_model
from penstock.train.learner import DeviceLearner, LearnerPlan

FLOW = KINDS["flow"]


def one(*values):
    return torch.tensor([values], dtype=torch.float64)


def test_the_implicit_velocities_by_hand():
    """Of v = 3 and v_old = 1 with β = 0.5: half way towards it, and as far on the other side."""
    good, bad = denoising_losses.implicit_velocities(one(3.0), one(1.0), 0.5)
    assert (good.item(), bad.item()) == (2.0, 0.0)


def test_the_normalised_error_by_hand():
    """At time 0.5 errors of 2 and 4 in velocity are 1 and 2 in the picture: (1 + 4) / 2 over 3 / 2."""
    found = denoising_losses.normalised_error(one(1.0, 0.0), one(3.0, 4.0), torch.tensor([0.5], dtype=torch.float64))
    assert found.item() == pytest.approx(2.5 / 1.5)


def test_the_contrast_by_hand():
    """v = 3, v_old = 1, wanted 2, β = 1: v⁺ = 3 and v⁻ = -1 are off by 1 and 3, each error over its size is 1 and 3 times t."""
    time = torch.tensor([0.5], dtype=torch.float64)
    found = denoising_losses.contrasted(one(3.0), one(1.0), one(2.0), time, torch.tensor([0.75]), 1.0)
    assert found.item() == pytest.approx(0.75 * 0.5 + 0.25 * 1.5)


def test_with_half_optimality_the_slow_copys_own_velocity_is_a_stationary_point():
    velocity = one(1.0, -2.0).requires_grad_()
    time, half = torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    denoising_losses.contrasted(velocity, velocity.detach(), one(0.5, 0.0), time, half, 0.7).sum().backward()
    assert velocity.grad.abs().max().item() < 1e-12


@pytest.mark.parametrize(("optimality", "towards"), [(1.0, True), (0.0, False)])
def test_a_step_goes_towards_a_good_picture_and_away_from_a_bad_one(optimality, towards):
    velocity = one(1.0).requires_grad_()
    time = torch.tensor([0.3], dtype=torch.float64)
    denoising_losses.contrasted(velocity, one(1.0), one(2.0), time, torch.tensor([optimality]), 1.0).sum().backward()
    assert (velocity.grad.item() < 0) == towards


def labelled(algorithm, model=None):
    """Units of two prompts with samples of rewards 0 to 3, drawn without noise."""
    model = model or tiny()
    groups = [scored(model, [0.0, 1.0, 2.0, 3.0], n, prompt, temperature=0.0) for n, prompt in enumerate(("cat", "a dog"))]
    return algorithm.label(groups, {}, {})


def test_optimality_by_hand():
    """Rewards 0 to 3 in both groups: centred by 1.5, over the batch's deviation of √(10 / 7), clipped at 1, put into 0 to 1."""
    units = labelled(DiffusionNFT(clip=1.0, draws=3))
    found = [row.fields["optimality"] for row in units[0]]
    inner = 0.5 / np.sqrt(10 / 7) / 2
    assert found == pytest.approx([0.0, 0.5 - inner, 0.5 + inner, 1.0], abs=1e-5)
    assert all(row.columns["state_TD"].shape == (3, 1, 4, 4) and row.action_T.sum() == 3 for row in units[0])


def learner_of(algorithm, seed=0):
    model = tiny(seed=seed)
    model.add_heads(algorithm.heads)
    return DeviceLearner(DiffusionPolicy(model), LearnerSpec(learning_rate=1e-3, token_budget=10**6), LearnerPlan(50))


@pytest.mark.parametrize("budget", [1, 5, 17])
def test_a_gradient_does_not_depend_on_how_pictures_are_split(budget):
    algorithm = DiffusionNFT(draws=4)
    units = labelled(algorithm)
    gradients = [accumulated(learner_of(algorithm), algorithm, units, size) for size in (10**6, budget)]
    assert gradients[0].abs().max() > 1e-3
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)


def test_every_step_gives_pictures_other_noise():
    keys, rows, stream = np.array([1.0, 2.0, 1.0], np.float32), np.array([0, 0, 1, 1, 2, 2], np.int32), torch.Generator()
    time_A, noise_A = times_and_noise(keys, rows, (2,), stream)
    assert np.array_equal(noise_A[:2], noise_A[4:])
    assert not np.array_equal(noise_A[:2], noise_A[2:4])
    assert np.array_equal(time_A >= 0.5, [False, True] * 3), "spread over each row"
    assert np.array_equal(times_and_noise(keys, rows, (2,), stream)[1], noise_A)
    algorithm = DiffusionNFT()
    learner = learner_of(algorithm)
    units = labelled(algorithm)
    states = [learner.noise.get_state()]
    for _ in range(2):
        steps(learner, algorithm, units, 1)
        states.append(learner.noise.get_state())
    assert not any(torch.equal(*pair) for pair in ((states[0], states[1]), (states[1], states[2])))


def test_the_slow_copy_by_hand():
    """It keeps nothing at its first move, then 0.25 and, at most, 0.4; every second step is a move."""
    model = tiny()
    model.add_heads({"slow": {"rise": 0.25, "most": 0.4, "every": 2}})
    (_, fast), *_ = model.policy_weights()
    (_, slow), *_ = model.slow.weights()
    found = []
    for update in range(1, 7):
        with torch.no_grad():
            fast.fill_(float(update))
        model.slow.follow(update, model)
        found.append(slow.flatten()[0].item())
    third = 0.25 * 2 + 0.75 * 4
    assert found[1:] == pytest.approx([2.0, 2.0, third, third, 0.4 * third + 0.6 * 6])


def test_pictures_are_drawn_published_and_saved_by_the_slow_copy(tmp_path):
    model = tiny()
    model.add_heads(DiffusionNFT().heads)
    first = drawn(model, [request(model)])[0]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(0.1)

    async def again():
        return await embedded_generator(model, max_running=4).generate(request(model))

    assert np.array_equal(asyncio.run(again()).columns["state_TD"], first.columns["state_TD"])
    published = tiny(seed=1)
    update = WeightUpdate(1, [(name, tensor.clone()) for name, tensor in DiffusionPolicy(model).weights()])
    asyncio.run(DenoisingGenerator(published).load(update))
    loaded = load_model(str(save_model(model, tmp_path / "model")))
    for other in (published, loaded):
        assert np.array_equal(drawn(other, [request(other)])[0].columns["state_TD"], first.columns["state_TD"])


def test_training_resumes_bit_for_bit_with_its_slow_copy():
    algorithm = DiffusionNFT(rise=0.2, every=2)
    learner = learner_of(algorithm)
    units = labelled(algorithm)
    steps(learner, algorithm, units, 5)
    kept = kept_state(learner)
    went_on = losses(learner, algorithm, units, 5)
    other = learner_of(algorithm, seed=1)
    other.load_state(kept)
    assert losses(other, algorithm, units, 5) == went_on
    slow = [dict(one.policy.slow()) for one in (learner, other)]
    assert all(torch.equal(slow[0][name], slow[1][name]) for name in slow[0])


def test_the_pull_is_0_at_the_reference_and_grows_with_the_distance():
    algorithm = DiffusionNFT(pull=0.1)
    learner = learner_of(algorithm)
    learner.policy.teacher = DiffusionPolicy(tiny()).teaching(None)
    units = labelled(algorithm)
    first, second = (metrics["policy/pulled"] for metrics in steps(learner, algorithm, units, 2))
    assert first == 0.0
    assert second > 0


def test_a_denoiser_that_predicts_noise_is_refused():
    with pytest.raises(SpecError, match=r'DiffusionNFT contrasts velocities, and this denoiser predicts noise; .*"velocity"'):
        tiny(DDIM).add_heads(DiffusionNFT().heads)


def test_samples_without_pictures_are_refused():
    from penstock.algos.denoising import picture_row

    sample = replace(drawn(tiny(), [request(tiny())])[0], columns={})
    with pytest.raises(DataError, match="learns from samples of denoisers"):
        picture_row(sample, {})


def test_samples_without_noise_are_for_algorithms_that_need_none():
    from penstock.algos.denoising import flow_grpo

    rest = {"model": ModelSpec(path="x"), "data": DataSpec(source="x"), "rewards": (RewardSpec(function="m:f"),), "max_lag": 2}
    online = Online(name="draw", algorithm=DiffusionNFT(), sampling=Sampling(temperature=0.0), **rest)
    assert online.sampling.temperature == 0
    with pytest.raises(SpecError, match="explores nothing"):
        replace(online, algorithm=flow_grpo())


def test_with_guidance_the_guided_velocity_is_what_is_trained():
    model = tiny(replace(FLOW, guidance=3.0))
    model.add_heads(DiffusionNFT().heads)
    policy, units = DiffusionPolicy(model), labelled(DiffusionNFT(), model)
    (batch,) = policy.lay_out(units, 10**6, coupled=False)
    guided = policy.outputs(batch, frozenset({"prediction"}))
    assert torch.equal(guided["prediction"], guided["prediction/old"])
    model.denoising = model.slow.model.denoising = FLOW
    assert not torch.allclose(policy.outputs(batch, frozenset({"prediction"}))["prediction"], guided["prediction"])
