"""Every causal language model of transformers is computed as transformers computes it, by learner and generator, or refused."""

import copy
import importlib.util
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

import architectures
import naive
import tiny_models
from penstock.config.learner import LearnerSpec
from penstock.core.errors import ModelError, TrainingError
from penstock.models.attention import LayerAttention, PackedPlan, quiet_transformers
from penstock.models.branches import reference_branch
from penstock.models.freezing import freeze_below
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.models.restrict import prepare
from penstock.train.learner import Scoring

FEW = (
    "llama",
    "mistral",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "qwen3_moe",
    "phi3",
    "deepseek_v3",
    "diffllama",
    "hrm_text",
    "jetmoe",
)
IGNORING = ("gptj", "codegen", "gpt_neox_japanese", "bloom", "falcon")
"""Types that attend without the registry, so that plans of ours never see their keys."""


ROOT = Path(__file__).resolve().parents[2]


def tool():
    spec = importlib.util.spec_from_file_location("models_table", ROOT / "tools/models_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scored(model, units):
    return Scoring(LanguagePolicy(model)).score(units, frozenset({"logp"}))["logp"]


def largest_gap(model):
    model.check()
    return max(architectures.learner_gap(model), architectures.generator_gap(model))


@pytest.mark.parametrize("model_type", FEW)
def test_learner_and_generator_equal_transformers_beyond_windows(model_type, text):
    assert largest_gap(architectures.built(model_type, text)) < architectures.TOLERANCE


@pytest.mark.parametrize("model_type", architectures.TYPES)
def test_every_type_is_right_or_refused_as_the_page_says(model_type, text):
    verdict, page = architectures.verdict(model_type, text), (ROOT / "docs/models.md").read_text()
    assert verdict.right or verdict.reason
    if f"transformers {transformers.__version__}," in page:
        assert tool().line(model_type, verdict) in page


@pytest.mark.parametrize(("model_type", "head"), [*((one, "lm") for one in IGNORING), ("gptj", "score"), ("falcon", "score")])
def test_a_type_that_ignores_the_attention_registry_is_refused(model_type, head, text):
    model = architectures.built(model_type, text)
    if head == "score":
        model = as_reward_model(model)
    with pytest.raises(ModelError, match=r"not supported"):
        model.check()


def as_reward_model(model):
    config = copy.deepcopy(model.network.config)
    config.num_labels = 1
    with quiet_transformers():
        network = AutoModelForSequenceClassification.from_config(config)
    tiny_models.randomise(network)
    return LanguageModel(network.eval(), model.text, "score")


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt_oss"])
def test_a_reward_model_is_checked_as_well(model_type, text):
    scorer = as_reward_model(architectures.built(model_type, text))
    assert scorer.check() is None
    inner = scorer.network.forward
    scorer.network.forward = lambda **given: SimpleNamespace(logits=inner(**given).logits * 1.01)
    with pytest.raises(ModelError, match="gives other logits"):
        scorer.check()


def test_a_window_that_a_module_does_not_pass_on_is_refused(text):
    model = architectures.built("mistral", text)
    for block in model.network.model.layers:
        block.self_attn.config = copy.deepcopy(model.config)
        block.self_attn.config.sliding_window = None
    with pytest.raises(ModelError, match=r"names layer 0 sliding_attention, but attends there with the window None"):
        model.check()


@pytest.mark.parametrize(
    ("window", "cap", "sinks"), [(None, None, False), (50, None, False), (3, None, False), (None, 2.0, True), (140, 2.0, True)]
)
def test_packed_attention_by_its_definition(window, cap, sinks):
    """Rows with a shared prefix, of more tokens than a band has, with grouped queries, against whole matrices of scores."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(10, 90, 100)
    unit = tuple(tiny_models.row(prompt, rng.integers(10, 90, length)) for length in (300, 17, 161))
    (batch,) = lay_out([unit], 10_000, share_prefix=True)
    count, generator = len(batch.tokens_N), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, count, width, generator=generator) for heads, width in ((4, 8), (2, 8), (2, 6)))
    sink_H = torch.randn(4, generator=generator) if sinks else None
    plan = PackedPlan(batch.gather_BT, batch.scatter_N, batch.length_B)
    ours_NHE = plan.attend(query, key, value, LayerAttention(0.3, window, cap, sink_H))[0]
    for row, length in enumerate(batch.length_B):
        at = torch.from_numpy(batch.gather_BT[row, :length]).long()
        scores_HTT = query[0][:, at] @ key[0][:, at].repeat_interleave(2, 0).transpose(1, 2) * 0.3
        if cap:
            scores_HTT = cap * torch.tanh(scores_HTT / cap)
        place = torch.arange(length)
        back = place[:, None] - place
        scores_HTT = scores_HTT.masked_fill((back < 0) | (back >= (window or length)), float("-inf"))
        weight = scores_HTT.exp()
        total = weight.sum(-1, keepdim=True) + (sink_H.exp()[:, None, None] if sinks else 0)
        expected = (weight / total) @ value[0][:, at].repeat_interleave(2, 0)
        torch.testing.assert_close(ours_NHE[at], expected.transpose(0, 1), atol=1e-5, rtol=1e-4)


def test_a_window_costs_no_more_keys_than_its_bands_see():
    length, window = 4096, 128
    index = np.arange(length)
    plan = PackedPlan(index[None], index, np.array([length]))
    cells = sum(rows * asked * seen for rows, asked, seen in (bucket.shape for bucket in plan.segments(window).buckets))
    assert cells <= length * 2 * window


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "gpt_oss"])
def test_gradients_through_windows_caps_and_sinks_equal_those_of_transformers(model_type, text):
    model = architectures.built(model_type, text)
    plain, rows = naive.plain(model), architectures.rows()
    torch.cat(naive.token_outputs(plain, rows)[0]).sum().backward()
    (batch,) = LanguagePolicy(model).lay_out([tuple(rows)], 1000)
    LanguagePolicy(model).outputs(batch, frozenset({"logp"}))["logp"].sum().backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in model.network.named_parameters():
        torch.testing.assert_close(
            parameter.grad, theirs[name].grad, atol=1e-3, rtol=1e-3, msg=lambda said, name=name: f"{name}: {said}"
        )


# ---- rotary embeddings that change with the longest position of a pass


CHANGING = {
    "longrope": {"rope_parameters": architectures.LONGROPE, "original_max_position_embeddings": 64},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
}


@pytest.mark.parametrize("kind", CHANGING)
def test_the_context_ends_where_a_rotary_embedding_begins_to_change(kind, text):
    model = architectures.built("phi3" if kind == "longrope" else "llama", text, **CHANGING[kind])
    end = 64 if kind == "longrope" else 128
    assert model.context == end
    assert largest_gap(model) < architectures.TOLERANCE
    short, longest, longer = (architectures.rows((length,), seed=length)[0] for length in (20, end, end + 1))
    alone = scored(model, [(short,)])[0]
    np.testing.assert_allclose(scored(model, [(short,), (longest,)])[0], alone, atol=1e-5)
    with pytest.raises(TrainingError, match=f"row 1 has {end + 1} tokens, and the model's context is {end}"):
        scored(model, [(short,), (longer,)])


# ---- what acts in training only


@pytest.mark.parametrize("model_type", ["opt", "biogpt", "mixtral", "phimoe", "gpt_oss"])
def test_gradient_checkpointing_switches_no_noise_on(model_type, text):
    model = architectures.built(model_type, text)
    rows = [tuple(architectures.rows())]
    before = scored(model, rows)
    prepare(model, LearnerSpec(gradient_checkpointing=True), seed=0)
    for found in (scored(model, rows), scored(model, rows)):
        for ours, expected in zip(found, before, strict=True):
            np.testing.assert_array_equal(ours, expected)


# ---- one trunk in two threads


def test_a_thread_does_not_read_what_another_keeps_at_the_border(text):
    model = tiny_models.build("qwen2", text, num_hidden_layers=3)
    freeze_below(model, 1)
    scorer = reference_branch(model)
    row, other = (architectures.rows((20,), seed=seed)[0] for seed in (1, 2))
    expected = scored(scorer, [(row,)])[0]
    found = []
    with torch.no_grad(), model.once():
        scored(model, [(other,)])
        beside = threading.Thread(target=lambda: found.append(scored(scorer, [(row,)])[0]))
        beside.start()
        beside.join()
    np.testing.assert_array_equal(found[0], expected)
