"""Transitions of denoising: by hand, against diffusers, and the marginals that they are to keep."""

import itertools
import math

import pytest
import torch
from denoiser_examples import KINDS

from penstock.config.denoising import Denoising
from penstock.core.errors import SpecError
from penstock.models.diffusion import kernels


def one(value):
    return torch.tensor([value], dtype=torch.float64)


def moved(kernel, state, velocity, times, noise):
    """Mean and deviation of a step of every row between two times."""
    columns = [torch.full((len(state),), value, dtype=state.dtype) for value in (*times, noise)]
    return kernels.KERNELS[kernel](state, velocity, *columns)


def test_a_flow_step_by_hand():
    """σ² = 0.49 · 0.5 / 0.5, Δ = -0.1: the state keeps 1 - 0.049, the velocity moves it by (1 + 0.245) · -0.1."""
    mean, deviation = kernels.flow(one([2.0]), one([1.0]), one(0.5), one(0.4), one(0.7))
    assert mean.item() == pytest.approx(2 * (1 - 0.49 * 0.1 / (2 * 0.5)) - 0.1 * (1 + 0.49 * 0.5 / (2 * 0.5)))
    assert deviation.item() == pytest.approx(0.7 * math.sqrt(0.1))


def test_the_first_flow_step_has_the_noise_of_the_time_that_it_reaches():
    _, deviation = kernels.flow(one([2.0]), one([1.0]), one(1.0), one(0.9), one(0.7))
    assert deviation.item() == pytest.approx(0.7 * math.sqrt(0.9 / 0.1) * math.sqrt(0.1))


def test_a_dance_step_by_hand():
    """x̂ = 2 - 0.5 = 1.5, score = -(2 - 0.75) / 0.25 = -5, so the mean is 2 - 0.1 + 0.5 · 0.09 · 0.1 · -5."""
    mean, deviation = kernels.dance(one([2.0]), one([1.0]), one(0.5), one(0.4), one(0.3))
    assert mean.item() == pytest.approx(2 - 0.1 - 0.5 * 0.09 * 0.1 * 5)
    assert deviation.item() == pytest.approx(0.3 * math.sqrt(0.1))


def test_a_log_prob_by_hand_is_the_mean_over_dimensions():
    found = kernels.log_prob(one([1.0, 4.0]), one([0.0, 0.0]), one(2.0))
    assert found.item() == pytest.approx(-0.5 * (0.25 + 4.0) / 2 - math.log(2) - 0.5 * math.log(2 * math.pi))


def test_a_log_prob_is_that_of_torch():
    torch.manual_seed(0)
    state, mean, deviation = torch.randn(5, 1, 3, 3), torch.randn(5, 1, 3, 3), torch.rand(5) + 0.1
    expected = torch.distributions.Normal(mean, kernels.like(deviation, mean)).log_prob(state).flatten(1).mean(1)
    assert torch.allclose(kernels.log_prob(state, mean, deviation), expected, atol=1e-6)


def test_the_divergence_is_that_of_two_gaussians():
    torch.manual_seed(0)
    mean, other, deviation = torch.randn(5, 4), torch.randn(5, 4), torch.rand(5) + 0.1
    of = [torch.distributions.Normal(m, deviation[:, None]) for m in (mean, other)]
    expected = torch.distributions.kl_divergence(*of).mean(1)
    assert torch.allclose(kernels.divergence(mean, other, deviation), expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["flow", "dance"])
def test_without_noise_a_step_of_a_flow_is_that_of_diffusers_euler_scheduler(kernel):
    schedulers = pytest.importorskip("diffusers").schedulers
    euler = schedulers.FlowMatchEulerDiscreteScheduler()
    times = Denoising(steps=8).times(quiet=False)
    euler.set_timesteps(sigmas=times[:-1])
    torch.manual_seed(0)
    state = torch.randn(2, 1, 4, 4)
    for index, step in enumerate(euler.timesteps):
        velocity = torch.randn(state.shape)
        mean, deviation = moved(kernel, state, velocity, times[index : index + 2], 0.0)
        expected = euler.step(velocity, step, state).prev_sample
        assert torch.allclose(mean, expected, atol=1e-6)
        assert deviation.eq(0).all()
        state = expected


@pytest.mark.parametrize(("noise", "clip"), [(0.0, False), (1.0, False), (0.4, True)])
def test_a_ddim_step_is_that_of_diffusers(noise, clip):
    """With the shares of signal that diffusers' scheduler has at its times, and variances of its own."""
    schedulers = pytest.importorskip("diffusers").schedulers
    scheduler = schedulers.DDIMScheduler(clip_sample=clip, set_alpha_to_one=True)
    scheduler.set_timesteps(10)
    torch.manual_seed(0)
    state, predicted = torch.randn(3, 1, 4, 4, dtype=torch.float64), torch.randn(3, 1, 4, 4, dtype=torch.float64)
    step = scheduler.timesteps[4]
    kept, later = scheduler.alphas_cumprod[step], scheduler.alphas_cumprod[step - 100]
    times = [torch.full((3,), time_of(float(share)), dtype=torch.float64) for share in (kept, later)]
    mean, deviation = kernels.ddim(state, predicted, *times, torch.full((3,), noise, dtype=torch.float64), clip)
    expected = scheduler.step(predicted, step, state, eta=noise, variance_noise=torch.zeros_like(state)).prev_sample
    assert torch.allclose(mean, expected, atol=1e-5)
    assert deviation[0].item() == pytest.approx(noise * scheduler._get_variance(step, step - 100).sqrt().item(), abs=1e-6)


def time_of(share):
    """The time at which so much of a picture's variance is left."""
    return math.acos(math.sqrt((share - kernels.LEAST_SIGNAL) / (1 - kernels.LEAST_SIGNAL))) / (math.pi / 2)


@pytest.mark.parametrize("kernel", ["flow", "dance"])
def test_noise_keeps_the_marginals_of_a_flow(kernel):
    """Pictures are Gaussian of deviation 0.5, for which the velocity is known; many short steps end with that deviation."""
    torch.manual_seed(0)
    state = torch.randn(20_000, 1, dtype=torch.float64)
    for at, after in itertools.pairwise(Denoising(steps=400).times(quiet=False)):
        variance = (1 - at) ** 2 * 0.25 + at**2
        velocity = state * (at - (1 - at) * 0.25) / variance
        mean, deviation = moved(kernel, state, velocity, (at, after), 0.7 if kernel == "flow" else 0.3)
        state = mean + deviation[:, None] * torch.randn_like(mean)
    assert state.std().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_step_but_the_last_has_noise(kind):
    times = kind.times(quiet=False)
    assert (times[0], times[-1]) == (1.0, 0.0)
    for pair in itertools.pairwise(times[:-1]):
        _, deviation = moved(kind.kernel, torch.ones(1, 2), torch.ones(1, 2), pair, kind.noise)
        assert deviation.item() > 0


def test_a_shift_of_three_stays_longer_in_noise():
    assert Denoising(steps=2, shift=3.0).times(quiet=False) == [1.0, 0.75, 0.0]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"steps": 1}, "at least 2"),
        ({"noise": 0.0}, "noise=0.0 must be above 0"),
        ({"kernel": "ddim", "noise": 1.5}, "at most 1"),
        ({"window": 10}, "use at most 9"),
        ({"clip": True}, 'is for kernel="ddim"'),
        ({"shift": 0.0}, "shift=0.0 must be above 0"),
        ({"quiet_steps": -1}, "must be 0 or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(fields, problem):
    with pytest.raises(SpecError, match=problem):
        Denoising(**fields)
