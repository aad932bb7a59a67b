"""A diffusion policy's generator and learner: one set of numbers, whoever shares a pass, whatever is loaded meanwhile."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from denoiser_examples import (
    KINDS,
    aborted_and_resumed,
    assert_log_probs_are_the_learners,
    begun,
    drawn,
    labelled,
    logps,
    request,
    tiny,
    units_of,
)
from training import accumulated, kept_state, losses

from penstock.algos.denoising import Denoise, exact_kl, flow_grpo
from penstock.config.denoising import Denoising
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.errors import DataError, GenerationError, ModelError, SpecError, WeightError
from penstock.core.types import WeightUpdate
from penstock.engine.denoising import DenoisingGenerator, stream_of
from penstock.models.diffusion.policy import DiffusionPolicy
from penstock.models.files import load_model, save_model
from penstock.train.learner import DeviceLearner, LearnerPlan

PROMPTS = ("cat", "a dog", "seven", "a")


def of_each_prompt(model):
    return drawn(model, [request(model, n, prompt) for n, prompt in enumerate(PROMPTS)])


def tensors_of(model):
    return [(name, tensor.detach().clone()) for name, tensor in model.policy_weights()]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_learner_gives_every_transition_the_log_prob_that_the_generator_gave_it(kind):
    model = tiny(kind)
    samples = of_each_prompt(model)
    assert [sample.action_T.tolist() for sample in samples] == [[False, *[True] * 5, False]] * 4
    assert_log_probs_are_the_learners(model, samples, budget=7)


def test_who_shares_a_pass_changes_nothing():
    model = tiny()
    for n, together in enumerate(of_each_prompt(model)):
        (alone,) = drawn(model, [request(model, n, PROMPTS[n])])
        assert np.allclose(together.columns["state_TD"], alone.columns["state_TD"], atol=1e-6)


def test_at_temperature_0_a_draw_has_no_noise_but_the_first_and_every_step_counts():
    model = tiny(replace(KINDS["flow"], quiet_steps=9))
    (sample,) = drawn(model, [request(model, temperature=0.0)])
    assert sample.action_T.tolist() == [False, *[True] * 9]
    assert not sample.logp_T.any()


def test_a_window_has_the_noise_and_is_the_same_for_the_samples_of_a_prompt():
    model = tiny(Denoising(steps=6, window=2))
    siblings = [request(model, sample=n) for n in range(3)]
    samples = drawn(model, [*siblings, *(request(model, n) for n in range(1, 20))])
    windows = [np.flatnonzero(sample.action_T).tolist() for sample in samples]
    assert windows[0] == windows[1] == windows[2]
    assert {tuple(window) for window in windows} == {(1, 2), (2, 3), (3, 4), (4, 5)}
    assert_log_probs_are_the_learners(model, samples)


def test_a_trajectory_that_was_aborted_goes_on_to_what_it_would_have_been():
    model = tiny()
    (whole,) = drawn(model, [request(model)])
    part, resumed = asyncio.run(aborted_and_resumed(DenoisingGenerator(model), model, 3))
    assert len(part.action_T) == 4
    assert np.array_equal(resumed.columns["state_TD"], whole.columns["state_TD"])
    assert np.array_equal(resumed.logp_T, whole.logp_T)


def test_weights_that_are_loaded_between_two_steps_mark_the_steps_after_them():
    model, newer = tiny(), tiny(seed=1)

    async def drawing():
        generator = DenoisingGenerator(model)
        waiting = await begun(generator, request(model), 2)
        before = tensors_of(model)
        await generator.load(WeightUpdate(1, tensors_of(newer)))
        return before, await waiting

    before, sample = asyncio.run(drawing())
    assert sample.version_T.tolist() == [-1, 0, 0, 1, 1, 1, -1]
    (after,) = logps(DiffusionPolicy(newer), [sample])
    old = tiny()
    old.load_state_dict({f"network.{name}": tensor for name, tensor in before})
    (earlier,) = logps(DiffusionPolicy(old), [sample])
    logp_A = sample.logp_T[sample.action_T]
    assert np.abs(np.concatenate([earlier[:2], after[2:]]) - logp_A).max() < 1e-5, "each step under its own version"
    assert np.abs(after[:2] - logp_A[:2]).max() > 1e-4


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay():
    model = tiny()
    kept = dict(tensors_of(model))
    broken = [(name, torch.full_like(tensor, float("nan"))) for name, tensor in model.policy_weights()]
    with pytest.raises(WeightError, match="not finite"):
        asyncio.run(DenoisingGenerator(model).load(WeightUpdate(1, broken)))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.policy_weights())


@pytest.mark.parametrize(
    ("asked", "message"), [({"prompt": "a" * 40}, "reads 1 to 15"), ({"temperature": 0.7}, r"set denoising\.noise for less")]
)
def test_a_prompt_that_is_too_long_and_a_temperature_between_are_refused(asked, message):
    model = tiny()
    with pytest.raises(GenerationError, match=message):
        drawn(model, [request(model, **asked)])


@pytest.mark.parametrize("budget", [1, 5, 11, 10**6])
def test_a_gradient_does_not_depend_on_how_rows_are_split(budget):
    model = tiny()
    units, algorithm = labelled(of_each_prompt(model)), flow_grpo(kl=exact_kl(0.0))
    found = []
    for size in (10**6, budget):
        learner = DeviceLearner(DiffusionPolicy(tiny()), LearnerSpec(), LearnerPlan(1))
        found.append(accumulated(learner, algorithm, units, size))
    assert torch.allclose(found[0], found[1], atol=1e-7)


def test_the_divergence_from_a_reference_is_0_at_first_and_grows_with_the_distance():
    model, other = tiny(), tiny(seed=1)
    (sample,) = drawn(model, [request(model)])
    policy = DiffusionPolicy(model)
    for reference, zero in ((tiny(), True), (other, False)):
        policy.teacher = DiffusionPolicy(reference).teaching(None)
        (batch,) = policy.lay_out(units_of([sample]), 100)
        found = policy.outputs(batch, frozenset({"divergence"}))["divergence"]
        assert (found.detach().abs().max().item() < 1e-9) == zero


def test_a_denoiser_survives_its_folder(tmp_path):
    model = tiny(replace(KINDS["ddim"], steps=4))
    save_model(model, tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"))
    assert loaded.denoising == model.denoising
    first, second = (drawn(one, [request(one)])[0] for one in (model, loaded))
    assert np.array_equal(first.columns["state_TD"], second.columns["state_TD"])


def test_a_kernel_for_another_prediction_is_refused():
    with pytest.raises(SpecError, match="predict noise, and this one predicts velocity; use flow or dance"):
        tiny().draw(Denoising(kernel="ddim"))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"lora": LoRA(rank=2)}, "lora"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"router_loss": 0.01}, "router_loss"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing"),
    ],
)
def test_what_denoisers_have_not_is_refused_by_name(fields, name):
    with pytest.raises(SpecError, match=f"learner.{name}"):
        DeviceLearner(DiffusionPolicy(tiny()), LearnerSpec(**fields), LearnerPlan(1))


def test_a_row_without_a_picture_is_refused():
    with pytest.raises(DataError, match='no column "picture"'):
        Denoise().rows({"prompt": "cat"}, tiny().text)


def test_pre_training_brings_the_error_down_and_resumes_bit_for_bit():
    """One picture a prompt: the noise of each step comes from the learner's stream, which its state holds."""
    model, algorithm = tiny(), Denoise()
    pictures = [np.full((4, 4), value, np.uint8) for value in (0, 255)]
    units = [algorithm.rows({"prompt": word, "picture": p}, model.text) for word, p in zip(PROMPTS, pictures, strict=False)] * 8
    learner = DeviceLearner(DiffusionPolicy(model), LearnerSpec(learning_rate=3e-3, token_budget=100), LearnerPlan(60))
    first = losses(learner, algorithm, units, 40)
    assert np.mean(first[-5:]) < 0.5 * np.mean(first[:5])
    kept = kept_state(learner)
    went_on = losses(learner, algorithm, units, 3)
    learner.load_state(kept)
    assert losses(learner, algorithm, units, 3) == went_on


def test_what_needs_text_refuses_a_denoiser_by_name(tmp_path):
    from penstock.models.families import language_model
    from penstock.models.files import config_of

    folder = save_model(tiny(), tmp_path / "model")
    with pytest.raises(ModelError, match="which gives pictures"):
        language_model(str(folder))
    with pytest.raises(ModelError, match=r"set roles\.engine=Embedded"):
        config_of(folder)


def test_a_window_that_slides_is_moved_by_the_version_of_the_weights():
    """Every second version, four places of two transitions each, and around again."""
    model, found = tiny(Denoising(steps=6, window=2, slide=2)), []
    for version in range(9):
        (sample,) = drawn(model, [request(model)], version=version)
        found.append(np.flatnonzero(sample.action_T).tolist())
    assert found == [[1, 2]] * 2 + [[2, 3]] * 2 + [[3, 4]] * 2 + [[4, 5]] * 2 + [[1, 2]]


def test_an_aborted_trajectory_keeps_the_actions_that_it_had_when_the_window_has_moved_on():
    model = tiny(Denoising(steps=6, window=2, slide=1))
    part, resumed = asyncio.run(aborted_and_resumed(DenoisingGenerator(model), model, 2, version=1))
    assert np.array_equal(resumed.action_T[:3], part.action_T)
    assert resumed.action_T.tolist() == [False, True, True, True, False, False, False]


def test_a_share_of_the_transitions_is_trained_on_others_in_each_sample():
    model = tiny(Denoising(steps=11, trained=0.6))
    samples = drawn(model, [request(model, n) for n in range(20)])
    chosen = {tuple(np.flatnonzero(sample.action_T)) for sample in samples}
    assert {len(places) for places in chosen} == {6}
    assert len(chosen) > 10
    assert set().union(*chosen) == set(range(1, 11))
    assert_log_probs_are_the_learners(model, samples)
    assert not any(sample.logp_T[~sample.action_T].any() for sample in samples)


def test_the_samples_of_a_prompt_may_have_one_first_noise_and_then_others():
    model = tiny(Denoising(steps=6, same_start=True))
    siblings = [request(model, sample=n) for n in range(2)]
    first, second, other = (s.columns["state_TD"] for s in drawn(model, [*siblings, request(model, 1)]))
    assert np.array_equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1])
    assert not np.array_equal(first[0], other[0])


def test_noise_that_is_sampled_ahead_is_what_would_be_sampled_step_by_step():
    model = tiny()
    (sample,) = drawn(model, [request(model)])
    stream = stream_of(f"3|{request(model).key}")
    states_TD = sample.columns["state_TD"]
    one_by_one = [stream.standard_normal(model.shape, np.float32) for _ in range(6)]
    assert np.array_equal(states_TD[0], one_by_one[0])
    (batch,) = DiffusionPolicy(model).lay_out(units_of([sample]), 100)
    mean, deviation_A = DiffusionPolicy(model).gaussian(batch)
    noise = (torch.from_numpy(states_TD[1:6]) - mean.detach()) / deviation_A.reshape(-1, 1, 1, 1)
    assert np.abs(noise.numpy() - np.stack(one_by_one[1:])).max() < 1e-4
