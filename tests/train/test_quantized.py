"""Adapters on matrices in 4 bits: close to the whole model, a fraction of its bytes, the same log-probs everywhere."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import tiny_models
from learner_examples import (
    accumulate,
    assert_draws_are_the_learners,
    assert_resumes_bit_by_bit,
    learner_of,
    some_units,
    train,
    trained,
)
from penstock.config.learner import LoRA
from penstock.core.errors import ModelError
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import AdapterOffPolicy
from penstock.models.lora import linear_layers, quantized_layers
from penstock.train.learner import Scoring

SPEC = LoRA(rank=2, alpha=8.0, quantize="nf4")
LOGP = frozenset({"logp"})
PLAIN = ("qwen2", "qwen3", "llama", "gpt_neox")


@pytest.fixture
def packages():
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")


def at_least_float32(architecture, text):
    """Wide enough that a matrix has more blocks than one."""
    return tiny_models.build(architecture, text, hidden_size=64, intermediate_size=128)


def test_without_the_package_the_error_names_the_extra(tiny, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelError, match=r"does not load here.*pip install penstock\[qlora\], or set lora.quantize=none"):
        learner_of(tiny(), lora=SPEC)


def test_layers_that_are_not_plain_are_refused(tiny, packages):
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel has transformer.h.0.attn.c_attn as Conv1D"):
        learner_of(tiny("gpt2"), lora=SPEC)


@pytest.mark.parametrize("architecture", PLAIN)
def test_the_linear_layers_of_the_blocks_are_in_4_bits_and_nothing_else(architecture, text, packages):
    model = at_least_float32(architecture, text)
    layers = {name: layer.weight.numel() for name, layer in linear_layers(model.network).items()}
    before = tiny_models.bytes_held([model])
    learner_of(model, lora=SPEC)
    found = dict(quantized_layers(model.network))
    assert {name.removesuffix(".base_layer") for name in found} == layers.keys()
    adapters = sum(p.nbytes for name, p in model.network.named_parameters() if ".lora_" in name)
    assert tiny_models.bytes_held([model]) == before + adapters - sum(layers.values()) * 4 + sum(layers.values()) // 2


def test_a_matrix_is_within_the_grid_of_4_bits(text, packages):
    """Values of NF4 are at most 0.304 of a block's largest entry apart, so a rounded one is off by at most half of that."""
    whole, model = at_least_float32("llama", text), at_least_float32("llama", text)
    learner_of(model, lora=SPEC)
    found = dict(model.plain_weights())
    for name, layer in linear_layers(whole.network).items():
        weight_KB = layer.weight.detach().view(-1, 64)
        off_KB = (found[f"{name}.weight"] - layer.weight).detach().abs().view(-1, 64)
        assert (off_KB <= 0.153 * weight_KB.abs().amax(1, keepdim=True)).all()
        assert off_KB.max() > 0


def rounded(model, text, architecture="qwen2"):
    """A plain model whose matrices are those of a model in 4 bits."""
    plain = at_least_float32(architecture, text)
    plain.network.load_state_dict(dict(model.plain_weights()), strict=False)
    return plain


@pytest.mark.parametrize("architecture", PLAIN)
def test_it_computes_what_the_rounded_matrices_would(architecture, text, packages):
    model = at_least_float32(architecture, text)
    learner = learner_of(model, lora=SPEC)
    plain = learner_of(rounded(model, text, architecture))
    found, expected = (np.concatenate(each.score(some_units(3), LOGP)["logp"]) for each in (learner, plain))
    assert np.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("scored", [False, True], ids=["at once", "after scoring"])
def test_gradients_are_those_of_adapters_on_the_rounded_matrices(scored, text, packages):
    """bitsandbytes repacks matrices on some CPUs at their first pass without gradient; gradients were wrong from then on."""
    model = at_least_float32("qwen2", text)
    learner = learner_of(model, lora=SPEC)
    whole = rounded(model, text)
    plain = learner_of(whole, lora=LoRA(rank=2, alpha=8.0))
    own = dict(whole.network.named_parameters())
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if ".lora_" in name:
                parameter.copy_(own[name].normal_(generator=torch.Generator().manual_seed(len(name))))
    if scored:
        learner.score(some_units(3), LOGP)
    for each in (learner, plain):
        accumulate(each, some_units(0))
    scale = max(float(p.grad.abs().max()) for p in own.values() if p.grad is not None)
    for name, parameter in model.network.named_parameters():
        if ".lora_" in name:
            assert torch.allclose(parameter.grad, own[name].grad, atol=1e-4 * scale), name


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_adapters_learn_on_4_bits_and_the_reference_stays(architecture, text, packages):
    model = at_least_float32(architecture, text)
    learner = learner_of(model, lora=SPEC, learning_rate=1e-2)
    reference, units = Scoring(AdapterOffPolicy(model)), some_units(7)
    before = reference.score(units, LOGP)["logp"]
    losses = train(learner, [0] * 4)
    assert losses[-1] < losses[0]
    assert all(map(np.array_equal, reference.score(units, LOGP)["logp"], before))
    assert not any(map(np.array_equal, learner.score(units, LOGP)["logp"], before))


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
def test_generated_log_probs_are_the_learners(architecture, text, packages):
    assert_draws_are_the_learners(trained(at_least_float32(architecture, text), lora=SPEC), within=1e-3)


@pytest.mark.parametrize("targets", [(), ("q_proj",)])
def test_the_saved_model_is_whole_and_merged(targets, text, packages, tmp_path):
    model = at_least_float32("qwen2", text)
    learner = trained(model, lora=LoRA(rank=2, targets=targets, quantize="nf4"))
    again = load_model(str(save_model(model, tmp_path / "model")))
    assert all(p.dtype == torch.float32 for p in again.network.parameters())
    found, expected = (np.concatenate(each.score(some_units(5), LOGP)["logp"]) for each in (learner_of(again), learner))
    assert np.allclose(found, expected, atol=1e-3)


def test_a_resume_is_exact(text, packages):
    assert_resumes_bit_by_bit(lambda: learner_of(at_least_float32("qwen2", text), lora=SPEC, learning_rate=1e-2))
