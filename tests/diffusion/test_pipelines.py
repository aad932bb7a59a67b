"""Published pipelines: what diffusers draws with them is drawn here, trained here, saved here and loaded there again."""

import functools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from denoiser_examples import assert_log_probs_are_the_learners, drawn, labelled, logps, request, units_of
from tiny_pipelines import SIDE, saved, unet
from tiny_pipelines import sd as tiny_sd
from training import accumulated, steps

from penstock.algos.denoising import Denoise, exact_kl, flow_grpo, picture_of
from penstock.algos.diffusion_dpo import DiffusionDPO
from penstock.algos.draft import DRaFT
from penstock.config.denoising import Denoising
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.errors import ModelError, SpecError
from penstock.core.types import Group, Prompt, PromptKey
from penstock.models.diffusion.policy import AdapterOffDiffusion, DiffusionPolicy
from penstock.models.files import load_model, save_model
from penstock.runtime.check import check_model
from penstock.train.learner import DeviceLearner, LearnerPlan

diffusers = pytest.importorskip("diffusers")

PROMPT = "a photo of a cat"
KINDS = ("sd", "sdxl", "sd3", "flux")
STEPS = 5


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A folder of each kind."""
    return {kind: saved(kind, tmp_path_factory.mktemp(kind) / "pipeline") for kind in KINDS}


def draws(kind, **fields):
    """How a kind draws in these tests."""
    if kind == "flux":
        fields = {"size": SIDE, **fields}
    usual = {"kernel": "ddim", "noise": 1.0} if kind in ("sd", "sdxl") else {}
    return Denoising(**{**usual, "steps": STEPS, **fields})


def loaded(folder, kind, **fields):
    model = load_model(folder)
    model.draw(draws(kind, **fields))
    return model


def quiet(model, prompt=PROMPT):
    """The sample of a prompt without noise, and its states."""
    (sample,) = drawn(model, [request(model, prompt=prompt, temperature=0.0)])
    return sample, sample.columns["state_TD"]


def two_samples(model):
    return drawn(model, [request(model, n, PROMPT) for n in range(2)])


@functools.cache
def pipeline_of(folder):
    """As diffusers loads it and these tests leave it, where a part that is not there has to be named."""
    index = json.loads((Path(folder) / "model_index.json").read_text())
    absent = {name: None for name, said in index.items() if said == [None, None]}
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, **absent)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def theirs(folder, kind, first_D, guidance, output, side=SIDE, **more):
    """What diffusers' own pipeline draws from the same first latents, without noise."""
    pipeline, first = pipeline_of(folder), torch.from_numpy(first_D)[None]
    high = side // 2
    if kind == "flux":
        first = pipeline._pack_latents(first, 1, 4, high, high)
    asked = {"guidance_scale": guidance, "latents": first, "output_type": output, "height": side, "width": side, **more}
    found = pipeline(PROMPT, num_inference_steps=STEPS, **asked).images
    if kind == "flux" and output == "latent":
        found = pipeline._unpack_latents(found, side, side, 2)
    return found[0].numpy() if output == "latent" else (found[0] * 255).round()


def gap(states, folder, kind, guidance, **more):
    """How far the last latents are from those of diffusers."""
    return np.abs(states[-1] - theirs(folder, kind, states[0], guidance, "latent", **more)).max()


@pytest.mark.parametrize(
    ("kind", "guidance", "side"),
    [*((kind, guidance, SIDE) for kind in KINDS for guidance in (1.0, 4.5)), ("sd3", 2.0, 2 * SIDE), ("flux", 2.0, 2 * SIDE)],
)
def test_without_noise_a_trajectory_and_its_picture_are_those_of_diffusers_whatever_its_size(kind, guidance, side, folders):
    size = {} if side == SIDE else {"size": side}
    sample, states = quiet(loaded(folders[kind], kind, guidance=guidance, **size))
    assert gap(states, folders[kind], kind, guidance, side=side) < 1e-4
    assert np.array_equal(picture_of(sample), theirs(folders[kind], kind, states[0], guidance, "np", side))


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3"])
def test_a_negative_prompt_is_that_of_diffusers(kind, folders):
    _, states = quiet(loaded(folders[kind], kind, guidance=4.5, negative="two dogs"))
    assert gap(states, folders[kind], kind, 4.5, negative_prompt="two dogs") < 1e-4
    assert gap(states, folders[kind], kind, 4.5) > 1e-3


def test_a_negative_prompt_of_a_pipeline_that_reads_its_guidance_is_refused(folders):
    with pytest.raises(SpecError, match="reads its guidance as a number, and leads away from nothing; leave it out"):
        loaded(folders["flux"], "flux", guidance=3.5, negative="two dogs")


def test_a_third_encoder_that_is_missing_is_done_without(tmp_path):
    folder = saved("sd3", tmp_path / "pipeline", third=False)
    _, states = quiet(loaded(folder, "sd3", guidance=3.0))
    assert gap(states, folder, "sd3", 3.0) < 1e-4


@pytest.mark.parametrize("scheduler", ["PNDMScheduler", "EulerDiscreteScheduler"])
def test_the_times_and_the_noise_of_another_scheduler_are_those_of_ddim_with_its_settings(scheduler, tmp_path):
    """Stable Diffusion 1.5 comes with PNDM, SDXL with Euler's: their betas, and 1 as the last training step."""
    pipeline = tiny_sd()
    settings = {"skip_prk_steps": True} if scheduler == "PNDMScheduler" else {"timestep_spacing": "leading"}
    made = getattr(diffusers, scheduler)
    pipeline.scheduler = made(steps_offset=1, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", **settings)
    pipeline.save_pretrained(tmp_path / "pipeline")
    model = loaded(str(tmp_path / "pipeline"), "sd")
    assert model.times(False) == pytest.approx([0.802, 0.602, 0.402, 0.202, 0.002, 0.0])
    alphas = pipeline.scheduler.alphas_cumprod
    assert torch.allclose(model.signal(torch.tensor([0.802, 0.002])), alphas[[801, 1]])


def test_the_noise_of_ddim_is_that_of_diffusers_at_the_published_times(folders):
    """Mean and deviation of the step from training step 401 to 201, with all noise (DDPM), against diffusers' own scheduler."""
    model = loaded(folders["sd"], "sd")
    scheduler = diffusers.DDIMScheduler.from_config(model.frozen.settings)
    scheduler.set_timesteps(STEPS)
    assert scheduler.timesteps.tolist() == [801, 601, 401, 201, 1]
    assert model.times(False) == pytest.approx([0.802, 0.602, 0.402, 0.202, 0.002, 0.0])
    from penstock.models.diffusion import kernels

    state, predicted, noise = torch.randn(3, 1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    time_A, next_A, all_of_it = (torch.tensor([value]) for value in (0.402, 0.202, 1.0))
    mean, deviation = kernels.ddim(state, predicted, time_A, next_A, all_of_it, signal=model.signal)
    wanted = scheduler.step(predicted, 401, state, eta=1.0, variance_noise=noise).prev_sample
    assert torch.allclose(mean + deviation * noise, wanted, atol=1e-5)


@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_gives_every_transition_the_log_prob_of_the_generator(kind, guidance, folders):
    model = loaded(folders[kind], kind, guidance=guidance)
    samples = drawn(model, [request(model, n, prompt) for n, prompt in enumerate((PROMPT, "two dogs", PROMPT))])
    assert all(sample.columns["state_TD"].dtype == sample.logp_T.dtype == np.float32 for sample in samples)
    assert_log_probs_are_the_learners(model, samples, budget=5)


def step_of(model, samples, spec):
    """A learner after one step of Flow-GRPO."""
    learner = DeviceLearner(DiffusionPolicy(model), spec, LearnerPlan(1))
    steps(learner, flow_grpo(kl=exact_kl(0.0)), labelled(samples), 1)
    return learner


def values_of(module):
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_changes_the_network_and_nothing_else(kind, folders):
    model = loaded(folders[kind], kind, guidance=2.0)
    frozen = {name: part for name, part in model.frozen.pipeline.components.items() if isinstance(part, torch.nn.Module)}
    before, others = values_of(model.network), {name: values_of(part) for name, part in frozen.items()}
    samples = two_samples(model)
    step_of(model, samples, LearnerSpec(learning_rate=1e-3))
    changed = [name for name, tensor in values_of(model.network).items() if not torch.equal(tensor, before[name])]
    assert len(changed) > 0.8 * len(before)
    for name in frozen.keys() - {model.frozen.family.component}:
        assert all(torch.equal(tensor, others[name][part]) for part, tensor in values_of(frozen[name]).items())


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_alone_are_trained_and_diffusers_loads_them(kind, folders, tmp_path):
    model = loaded(folders[kind], kind, guidance=2.0)
    samples = two_samples(model)
    learner = step_of(model, samples, LearnerSpec(learning_rate=1e-2, lora=LoRA(rank=2, alpha=8.0)))
    assert learner.masters.parameters
    assert all(".lora_" in name for name in learner.masters.parameters)
    plain = dict(load_model(folders[kind]).network.named_parameters())
    kept = [n for n, p in model.network.named_parameters() if not p.requires_grad]
    assert all(torch.equal(dict(model.network.named_parameters())[n], plain[n.replace(".base_layer", "")]) for n in kept)
    model.draw(draws(kind, guidance=2.0))
    _, states = quiet(model)
    folder = save_model(model, tmp_path / "model")
    assert gap(states, folders[kind], kind, 2.0) > 1e-3, "the step moved it"
    assert gap(states, folder, kind, 2.0) < 1e-4, "merged"
    pipeline = pipeline_of.__wrapped__(folders[kind])
    pipeline.load_lora_weights(folder / "adapter")
    network = getattr(pipeline, model.frozen.family.component)
    ours = dict(model.network.inner.named_parameters())
    found = {n.replace(".default_0.", ".default."): p for n, p in network.named_parameters() if ".lora_" in n}
    assert found.keys() == {name for name in ours if ".lora_" in name}
    assert all(torch.equal(tensor, ours[name]) for name, tensor in found.items())
    layer = next(part for part in network.modules() if hasattr(part, "lora_A"))
    assert layer.scaling == {"default_0": 4.0}


def test_the_reference_of_adapters_is_the_model_without_them(folders):
    model = loaded(folders["sd3"], "sd3", guidance=2.0)
    samples = two_samples(model)
    step_of(model, samples, LearnerSpec(learning_rate=1e-2, lora=LoRA(rank=2)))
    found, now = (logps(scorer, samples) for scorer in (AdapterOffDiffusion(model), DiffusionPolicy(model)))
    old = [sample.logp_T[sample.action_T] for sample in samples]
    assert max(np.abs(one - two).max() for one, two in zip(found, old, strict=True)) < 1e-5
    assert max(np.abs(one - two).max() for one, two in zip(now, old, strict=True)) > 1e-4
    policy = DiffusionPolicy(model)
    policy.teacher = AdapterOffDiffusion(model).teaching(None)
    (batch,) = policy.lay_out(units_of(samples), 100, coupled=False)
    divergence_A = policy.outputs(batch, frozenset({"divergence"}))["divergence"]
    assert divergence_A.min() > 0
    divergence_A.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters()), "the adapters are on again"


def test_weights_for_other_processes_are_those_of_the_plain_model(folders):
    model = loaded(folders["sd3"], "sd3")
    samples = two_samples(model)
    policy = step_of(model, samples, LearnerSpec(learning_rate=1e-2, lora=LoRA(rank=2, targets=("to_q", "to_out.0")))).policy
    other = load_model(folders["sd3"])
    assert [name for name, _ in policy.weights()] == [name for name, _ in other.policy_weights()]
    with torch.no_grad():
        for (_, tensor), (_, own) in zip(policy.weights(), other.policy_weights(), strict=True):
            own.copy_(tensor)
    other.draw(model.denoising)
    first, second = (drawn(one, [request(one, prompt=PROMPT)])[0] for one in (model, other))
    assert np.abs(first.columns["state_TD"] - second.columns["state_TD"]).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_folder_is_whole_for_diffusers_and_draws_here_as_it_did(kind, folders, tmp_path):
    model = loaded(folders[kind], kind, guidance=3.0)
    _, states = quiet(model)
    folder = save_model(model, tmp_path / "model")
    assert gap(states, folder, kind, 3.0) < 1e-4
    again = load_model(str(folder))
    assert again.denoising == model.denoising
    assert np.array_equal(quiet(again)[1], states)


def test_a_prompt_is_encoded_once(folders, monkeypatch):
    model = loaded(folders["sd3"], "sd3", guidance=2.0)
    asked, encode = [], model.frozen.pipeline.encode_prompt
    monkeypatch.setattr(
        model.frozen.pipeline, "encode_prompt", lambda prompt, **more: asked.append(prompt) or encode(prompt, **more)
    )
    drawn(model, [request(model, n, prompt) for n, prompt in enumerate((PROMPT, "two dogs", PROMPT, "ein Käfer 猫"))])
    assert sorted(asked) == ["", PROMPT, "ein Käfer 猫", "two dogs"]


def test_blocks_may_be_computed_again_and_the_gradient_is_the_same(folders):
    found = []
    for again in (False, True):
        model = loaded(folders["sd3"], "sd3")
        samples = two_samples(model)
        learner = DeviceLearner(DiffusionPolicy(model), LearnerSpec(gradient_checkpointing=again), LearnerPlan(1))
        assert model.network.inner.gradient_checkpointing == again
        found.append(accumulated(learner, flow_grpo(), labelled(samples)))
    assert torch.allclose(found[0], found[1], atol=1e-7)


def test_a_pipeline_learns_from_pictures_of_its_size_and_refuses_others(folders):
    model, algorithm = loaded(folders["sd"], "sd"), Denoise(drop=0.5)
    picture = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    unit = algorithm.rows({"prompt": PROMPT, "picture": picture}, model.text)
    learner = DeviceLearner(DiffusionPolicy(model), LearnerSpec(learning_rate=3e-3), LearnerPlan(10))
    losses = [metrics["loss"] for metrics in steps(learner, algorithm, [unit] * 8, 10)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    small = algorithm.rows({"prompt": PROMPT, "picture": picture[:8]}, model.text)
    with pytest.raises(SpecError, match=r"learns from \[16, 16\] in 3"):
        learner.score([small], frozenset({"denoising_error"}))


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("sd", {"kernel": "flow"}, "predict velocity, and this one predicts noise; use ddim"),
        ("sd3", {"kernel": "ddim", "noise": 1.0}, "predict noise, and this one predicts velocity; use flow or dance"),
        ("sd3", {"shift": 3.0}, "scheduler says its shift; leave it at 1"),
        ("sd3", {"size": 18}, "multiples of 4 pixels"),
        ("sd", {"clip": True}, "for pictures, and a pipeline's states are latents"),
    ],
)
def test_what_a_pipeline_cannot_draw_is_refused(kind, fields, says, folders):
    with pytest.raises(SpecError, match=says):
        load_model(folders[kind]).draw(draws(kind, **fields))


def test_guidance_of_a_pipeline_that_has_none_is_refused(tmp_path):
    with pytest.raises(SpecError, match="distilled without guidance; set it to 1"):
        loaded(saved("flux", tmp_path / "pipeline", guided=False), "flux", guidance=3.5)


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        ({"prediction_type": "v_prediction"}, 'prediction_type="v_prediction"; only "epsilon" and flows'),
        ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr: noise says nothing"),
        ({"timestep_spacing": "linspace"}, "denoising.steps=10 does not divide the 1000 steps of a scheduler with"),
    ],
)
def test_a_scheduler_of_another_kind_is_refused(scheduler, says, tmp_path):
    tiny_sd(**scheduler).save_pretrained(tmp_path / "pipeline")
    with pytest.raises((ModelError, SpecError), match=says):
        load_model(str(tmp_path / "pipeline"))


def test_a_consistency_model_is_refused(tmp_path):
    pipeline = tiny_sd()
    pipeline.unet = unet(16, time_cond_proj_dim=4)
    pipeline.save_pretrained(tmp_path / "pipeline")
    with pytest.raises(ModelError, match="takes guidance as an input"):
        load_model(str(tmp_path / "pipeline"))


def test_a_pipeline_of_another_class_is_refused_before_the_run(tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "PixArtAlphaPipeline"}))
    for look in (check_model, load_model):
        with pytest.raises(ModelError, match="class PixArtAlphaPipeline, which is not known here; known are StableDiffusion"):
            look(str(tmp_path))


def test_a_folder_that_diffusers_cannot_load_is_refused_in_one_line(folders, tmp_path):
    (tmp_path / "model_index.json").write_text((Path(folders["sd"]) / "model_index.json").read_text())
    check_model(str(tmp_path))
    with pytest.raises(ModelError, match="diffusers cannot load this pipeline") as found:
        load_model(str(tmp_path))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("look", [check_model, load_model], ids=["before the run", "when it is loaded"])
def test_without_diffusers_the_error_names_the_extra(look, folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ModelError, match=r"run: pip install penstock\[diffusers\]"):
        look(folders["sd"])


@pytest.mark.parametrize(
    ("lora", "says"),
    [
        (LoRA(targets=("to_x",)), 'SD3Transformer2DModel has no linear layer named "to_x"'),
        (LoRA(quantize="nf4"), "known to language models alone"),
    ],
)
def test_adapters_that_are_not_possible_are_refused(lora, says, folders):
    with pytest.raises(SpecError, match=says):
        DeviceLearner(DiffusionPolicy(loaded(folders["sd3"], "sd3")), LearnerSpec(lora=lora), LearnerPlan(1))


def test_two_passes_are_two_of_the_budget(folders):
    counts = []
    for guidance in (1.0, 3.0):
        model = loaded(folders["sd3"], "sd3", guidance=guidance)
        samples = drawn(model, [request(model, n, PROMPT) for n in range(4)])
        batches = DiffusionPolicy(model).lay_out(units_of(samples), 16, coupled=False)
        counts.append([len(batch.row_ids) for batch in batches])
    assert counts == [[4], [2, 2]], "of four actions each"
    assert loaded(folders["flux"], "flux", guidance=3.0).passes == 1


@pytest.mark.parametrize(("kind", "count"), [("sd", 20), ("sd3", 6)])
def test_pairs_of_pictures_teach_a_pipeline_by_diffusion_dpo(kind, count, folders):
    """Before the first step a pair costs log 2; steps make the chosen picture's error smaller than the rejected one's, against
    the reference, which is the pipeline without its adapters."""
    model, algorithm = loaded(folders[kind], kind), DiffusionDPO(beta=500.0, draws=16)
    chosen, rejected = np.full((SIDE, SIDE, 3), 255, np.uint8), np.zeros((SIDE, SIDE, 3), np.uint8)
    units = [algorithm.rows({"prompt": PROMPT, "chosen": chosen, "rejected": rejected}, model.text)]
    policy = DiffusionPolicy(model)
    policy.teacher = AdapterOffDiffusion(model).teaching(algorithm.teacher)
    learner = DeviceLearner(policy, LearnerSpec(learning_rate=3e-3, lora=LoRA(rank=4)), LearnerPlan(20))
    found = steps(learner, algorithm, units, count)
    assert found[0]["loss"] == pytest.approx(np.log(2), abs=1e-4)
    assert np.mean([one["loss"] for one in found[-5:]]) < 0.95 * np.log(2)
    assert found[-1]["preference/accuracy"] > 0.7


@pytest.mark.parametrize("kind", ["sd", "sd3", "flux"])
def test_draft_raises_a_reward_of_decoded_pictures(kind, folders):
    """What the judge sees is the picture that was drawn; adapters follow its gradient through decoder and two transitions."""
    model = loaded(folders[kind], kind)
    samples = drawn(model, [request(model, n, prompt, temperature=0.0) for n, prompt in enumerate((PROMPT, "two dogs"))])
    key, algorithm = PromptKey("pictures", 0, 0), DRaFT(judge="m:f", last=2)
    units = algorithm.label([Group(Prompt(key, PROMPT), tuple(sample.scored(0.0) for sample in samples))], {}, {})
    policy, seen = DiffusionPolicy(model), []
    policy.judge = lambda picture, prompts: seen.append((picture.detach(), prompts)) or picture.clamp(-1, 1).flatten(1).mean(1)
    learner = DeviceLearner(policy, LearnerSpec(learning_rate=1e-2, lora=LoRA(rank=4)), LearnerPlan(6))
    found = [metrics["policy/judged"] for metrics in steps(learner, algorithm, units, 6)]
    picture, prompts = seen[0]
    values = ((picture.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1).numpy()
    assert prompts == [PROMPT, "two dogs"]
    assert all(np.abs(value - picture_of(sample)).max() <= 1.01 for value, sample in zip(values, samples, strict=True))
    assert found[-1] > found[0] + 1e-3


def test_what_is_drawn_is_copied_with_the_model_but_what_is_frozen_is_not(folders):
    import copy

    model = loaded(folders["sd"], "sd")
    other = copy.deepcopy(model)
    assert other.frozen is model.frozen
    assert next(other.network.parameters()) is not next(model.network.parameters())
