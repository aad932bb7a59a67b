"""DRaFT: the picture that is judged, the gradient through the last transitions alone, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from denoiser_examples import KINDS, drawn, request, tiny
from training import digits_run, metrics_of, steps

from penstock.algos import DRaFT
from penstock.config.learner import LearnerSpec
from penstock.core.errors import SpecError, TrainingError
from penstock.core.types import Group, Prompt
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring
from tiers import LANGUAGE

PROMPTS = ("cat", "a dog", "seven")
QUIET = {kind: replace(KINDS[kind], steps=4) for kind in ("flow", "ddim")}


def brightness(picture_BD, prompts):
    """The mean of a picture's values, and more for longer prompts."""
    longer = picture_BD.new_tensor([len(prompt) for prompt in prompts])
    return picture_BD.flatten(1).mean(1) * longer


def policy_of(model, judge=brightness):
    policy = DiffusionPolicy(model)
    policy.judge = judge
    return policy


def units_of(model, last, temperature=0.0):
    samples = drawn(model, [request(model, n, prompt, temperature) for n, prompt in enumerate(PROMPTS)])
    groups = [Group(Prompt(s.key.prompt, prompt), (s.scored(1.0),)) for s, prompt in zip(samples, PROMPTS, strict=True)]
    return samples, DRaFT(judge="m:f", last=last).label(groups, {}, {})


def brightness_of(samples):
    """By hand, of what was drawn."""
    return [sample.columns["state_TD"][-1].mean() * len(prompt) for sample, prompt in zip(samples, PROMPTS, strict=True)]


@pytest.mark.parametrize("last", [1, 4])
@pytest.mark.parametrize("kind", QUIET)
def test_what_is_judged_is_the_picture_that_was_drawn(kind, last):
    model = tiny(QUIET[kind])
    samples, units = units_of(model, last)
    found = Scoring(policy_of(model), budget=2 * last).score(units, frozenset({"judged"}))["judged"]
    assert found == pytest.approx(brightness_of(samples), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("last", [1, 2, 4])
def test_the_gradient_is_that_of_the_last_transitions_by_hand(last):
    """A flow without noise: x moves by Δ · v, four times by -1/4, and what came before the last ones is given."""
    model = tiny(QUIET["flow"])
    samples, units = units_of(model, last)
    (batch,) = policy_of(model).lay_out(units, 100, coupled=False)
    policy_of(model).outputs(batch, frozenset({"judged"}))["judged"].sum().backward()
    found = torch.cat([p.grad.flatten() for p in model.network.parameters() if p.grad is not None])
    model.zero_grad()
    for sample, prompt in zip(samples, PROMPTS, strict=True):
        state = torch.from_numpy(sample.columns["state_TD"][4 - last])[None]
        tokens = torch.tensor([model.text.prompt(prompt)])
        for step in range(4 - last, 4):
            state = state - 0.25 * model.network(state, torch.tensor([1 - step / 4]), tokens)
        brightness(state, [prompt]).sum().backward()
    wanted = torch.cat([p.grad.flatten() for p in model.network.parameters() if p.grad is not None])
    assert wanted.abs().max() > 1e-3
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("budget", [2, 5, 100])
def test_steps_raise_what_the_judge_says_however_rows_are_split(budget):
    model, algorithm = tiny(QUIET["flow"]), DRaFT(judge="m:f", last=2)
    _, units = units_of(model, 2)
    learner = DeviceLearner(policy_of(model), LearnerSpec(learning_rate=1e-3), LearnerPlan(9))
    found = [metrics["policy/judged"] for metrics in steps(learner, algorithm, units, 9, budget)]
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.1


def test_of_samples_with_noise_the_last_transitions_are_made_again_without():
    model = tiny(QUIET["flow"])
    samples, units = units_of(model, 1, temperature=1.0)
    found = Scoring(policy_of(model)).score(units, frozenset({"judged"}))["judged"]
    assert found == pytest.approx(brightness_of(samples), abs=1e-5)


def test_more_transitions_than_there_are_are_refused():
    with pytest.raises(TrainingError, match=r"last=5 of 4 transitions; raise denoising\.steps"):
        units_of(tiny(QUIET["flow"]), 5)


def test_a_judge_of_another_shape_is_refused():
    model = tiny(QUIET["flow"])
    _, units = units_of(model, 1)
    with pytest.raises(TrainingError, match=r"the judge gives \[\] for 3 pictures; give one number a picture"):
        Scoring(policy_of(model, lambda picture, prompts: picture.mean())).score(units, frozenset({"judged"}))


def test_without_a_judge_it_is_refused():
    with pytest.raises(SpecError, match='judge=""; name a differentiable reward'):
        DRaFT()


@pytest.mark.learning(*LANGUAGE)
def test_a_short_run_raises_the_probability_of_what_was_asked_for(tmp_path):
    from penstock.runtime import launch

    launch(digits_run("draft", 200, every=10, steps=10), tmp_path / "run")
    found = [values["reward/mean"] for values in metrics_of(tmp_path / "run") if "policy/judged" in values]
    assert np.mean(found[-2:]) > np.mean(found[:2]) + 0.05
