"""Classifier-free guidance: what it is by hand, the same for generator and learner, and how an empty prompt is trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from denoiser_examples import KINDS, assert_log_probs_are_the_learners, drawn, request, tiny, units_of
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.denoising import Denoise
from penstock.config.denoising import Denoising
from penstock.config.learner import LearnerSpec
from penstock.core.contracts import Denominator
from penstock.core.errors import SpecError
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.models.files import load_model, save_model
from penstock.train.learner import DeviceLearner, LearnerPlan

PROMPTS = ("cat", "a dog", "seven")


def guided(kind=KINDS["flow"], **fields):
    return tiny(replace(kind, **{"guidance": 3.0, **fields}))


def of_each_prompt(model):
    return drawn(model, [request(model, n, prompt) for n, prompt in enumerate(PROMPTS)])


def inputs(model, count=2):
    state_AD = torch.randn(count, *model.shape, generator=torch.Generator().manual_seed(0))
    return state_AD, torch.full((count,), 0.5), torch.tensor([model.text.prompt("cat")] * count)


@pytest.mark.parametrize(("negative", "without", "expected"), [("", 0.2, 1.1), ("a dog", 0.3, 0.9)])
def test_by_hand_it_is_the_prediction_for_no_prompt_or_the_negative_one_plus_w_times_what_the_prompt_adds(
    negative, without, expected, monkeypatch
):
    """0.5 for the prompt at w = 3: 0.2 + 3 · 0.3 = 1.1, and 0.3 + 3 · 0.2 = 0.9."""
    model = guided(negative=negative)
    away = model.text.prompt(negative)
    monkeypatch.setattr(
        model.network, "forward", lambda x, t, prompt: torch.full_like(x, without if prompt[0].tolist() == away else 0.5)
    )
    assert torch.allclose(model.predicted(*inputs(model)), torch.tensor(expected))


@given(w=st.floats(0.1, 20))
def test_where_the_prompt_is_empty_guidance_changes_nothing(w):
    model, plain = guided(guidance=w), tiny()
    state_AD, time_A, _ = inputs(model)
    empty = model.prompts("", 2, 5)
    assert torch.allclose(model.predicted(state_AD, time_A, empty), plain.predicted(state_AD, time_A, empty), atol=1e-6)


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("kind", ["flow", "dance", "ddim"])
def test_the_ratio_before_the_first_update_is_1(kind, through):
    model = guided(KINDS[kind], guidance_gradient=through)
    samples = of_each_prompt(model)
    assert_log_probs_are_the_learners(model, samples, budget=7)
    (other,) = drawn(tiny(KINDS[kind]), [request(model, 0, PROMPTS[0])])
    assert np.abs(other.columns["state_TD"] - samples[0].columns["state_TD"]).max() > 1e-3, "guidance moves what is drawn"


def test_the_gradient_of_the_empty_prompt_is_left_out_unless_it_is_asked_for():
    """Without it the gradient is w times that of the prediction for the prompt."""
    found = {}
    for through in (False, True):
        model = guided(guidance_gradient=through)
        model.predicted(*inputs(model)).sum().backward()
        found[through] = model.network.leave[1].weight.grad.clone()
    plain = tiny()
    plain.predicted(*inputs(plain)).sum().backward()
    assert torch.allclose(found[False], 3.0 * plain.network.leave[1].weight.grad, atol=1e-5)
    assert not torch.allclose(found[True], found[False], atol=1e-3)


def test_guidance_is_kept_in_the_folder(tmp_path):
    save_model(guided(), tmp_path / "model")
    assert load_model(str(tmp_path / "model")).denoising.guidance == 3.0


def test_a_micro_batch_holds_half_as_many_transitions():
    sizes = []
    for model in (tiny(), guided()):
        batches = DiffusionPolicy(model).lay_out(units_of(of_each_prompt(model)), 10, coupled=False)
        sizes.append([len(batch.time_A) for batch in batches])
    assert sizes == [[10, 5], [5, 5, 5]]


def test_pre_training_drops_prompts_in_their_share_and_held_out_errors_drop_none(monkeypatch):
    model, algorithm = tiny(), Denoise(drop=0.25)
    unit = algorithm.rows({"prompt": "seven", "picture": np.zeros((4, 4), np.uint8)}, model.text)
    learner = DeviceLearner(DiffusionPolicy(model), LearnerSpec(token_budget=4000), LearnerPlan(1))
    seen, forward = [], model.network.forward
    monkeypatch.setattr(model.network, "forward", lambda x, t, prompt: seen.append(prompt) or forward(x, t, prompt))
    units = [unit] * 4000
    (batch,) = learner.lay_out(units, coupled=False)
    learner.accumulate(batch, algorithm.loss(), Denominator.of(units))
    learner.score(units, frozenset({"denoising_error"}))
    empty = model.prompts("", 1, seen[0].shape[1])
    shares = [float((prompt_AC == empty).all(1).float().mean()) for prompt_AC in seen]
    assert shares == [pytest.approx(0.25, abs=0.03), 0.0]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Denoising(guidance=0.0), "guidance=0.0 must be above 0"),
        (lambda: Denoising(size=-1), "size=-1 must be 0 or more"),
        (lambda: Denoising(negative="cat"), "negative is for guidance; set"),
        (lambda: Denoising(slide=25), "slide=25 moves a window; set"),
        (lambda: Denoise(drop=1.0), r"drop=1.0 is outside \[0, 1\)"),
        (lambda: tiny(Denoising(size=16)), "this denoiser draws .* alone; leave it at 0"),
    ],
)
def test_what_is_impossible_is_refused(made, says):
    with pytest.raises(SpecError, match=says):
        made()
