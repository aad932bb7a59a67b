"""Adapters: they start as nothing, train alone, can be switched off, merge exactly and travel in peft's format."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("peft")

from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import tiny_models
import tiny_t5
from learner_examples import (
    accumulate,
    assert_draws_are_the_learners,
    assert_resumes_bit_by_bit,
    learner_of,
    some_units,
    train,
    trained,
)
from penstock.config.learner import LearnerSpec, LoRA
from penstock.core.errors import ModelError, SpecError
from penstock.models.attention import single_row_plan
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import AdapterOffPolicy, LanguagePolicy
from penstock.models.lora import adapted_layers, adapter_off
from penstock.models.restrict import restrict
from penstock.train.learner import Scoring

SPEC = LoRA(rank=2, alpha=8.0)
LOGP = frozenset({"logp"})
each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
PLACE = (torch.arange(3, 12)[None], torch.arange(9)[None], single_row_plan(9))


def logits(model):
    with torch.no_grad():
        return model.logits(model.hidden(*PLACE)[0])


@each_architecture
def test_adapters_start_as_nothing_train_alone_and_off_they_leave_the_model_as_it_was(architecture, tiny):
    model = tiny(architecture)
    before = logits(model)
    learner = learner_of(model, lora=SPEC, learning_rate=1e-2)
    assert torch.equal(logits(model), before)
    train(learner, range(2))
    assert {name.split(".")[0] for name in learner.state().arrays} == {"master", "step", "exp_avg", "exp_avg_sq", "noise"}
    assert all(".lora_" in name for name in learner.masters.parameters)
    assert len(learner.masters.parameters) == 2 * len(list(adapted_layers(model.network)))
    assert not torch.equal(logits(model), before)
    with adapter_off(model.network):
        assert torch.equal(logits(model), before)
    assert not torch.equal(logits(model), before)
    assert all(p.requires_grad == (".lora_" in name) for name, p in model.network.named_parameters())


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        ((), {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        (("q_proj", "v_proj"), {"q_proj", "v_proj"}),
    ],
    ids=["all", "some"],
)
def test_the_targets_alone_are_adapted_or_every_linear_layer_of_the_blocks_and_no_head(targets, adapted, tiny):
    model = tiny("llama")
    learner_of(model, lora=LoRA(targets=targets))
    assert {name.rpartition(".")[2] for name, _ in adapted_layers(model.network)} == adapted


@pytest.mark.parametrize("target", ["query", "lm_head"])
def test_a_target_that_is_no_linear_layer_of_a_block_is_refused(target, tiny):
    with pytest.raises(ModelError, match=f'no linear layer named "{target}"; it has down_proj, gate_proj'):
        learner_of(tiny("llama"), lora=LoRA(targets=(target,)))


def test_the_update_is_alpha_over_rank_times_the_product(tiny):
    model = tiny()
    trained(model, lora=SPEC)
    name, layer = next(adapted_layers(model.network))
    a, b = (dict(model.network.named_parameters())[f"{name}.lora_{which}.default.weight"] for which in "AB")
    expected = layer.base_layer.weight + 8.0 / 2 * b @ a
    assert torch.allclose(dict(model.plain_weights())[f"{name}.weight"], expected, atol=1e-6)


def test_the_first_weights_are_a_function_of_the_seed(tiny):
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(found))
        model = tiny()
        restrict(model, LearnerSpec(lora=SPEC), seed)
        found.append(next(p for n, p in model.network.named_parameters() if "lora_A" in n))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_the_reference_is_the_model_without_adapters(architecture, tiny):
    model = tiny(architecture)
    start = copy.deepcopy(model)
    reference = Scoring(AdapterOffPolicy(model))
    learner = trained(model, lora=SPEC)
    units = some_units(7)
    expected = Scoring(LanguagePolicy(start)).score(units, LOGP)["logp"]
    assert all(map(np.array_equal, reference.score(units, LOGP)["logp"], expected))
    assert not any(map(np.array_equal, learner.score(units, LOGP)["logp"], expected))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scoring_with_the_reference_between_micro_batches_loses_no_gradient(dtype, tiny):
    found = []
    for between in (False, True):
        model = tiny()
        learner = trained(model, lora=SPEC, dtype=dtype)
        for seed in (3, 4):
            accumulate(learner, some_units(seed))
            if between:
                Scoring(AdapterOffPolicy(model)).score(some_units(7), LOGP)
        learner.step()
        found.append({name: p for name, p in model.named_parameters() if ".lora_" in name})
    assert all(torch.equal(p, found[1][name]) for name, p in found[0].items())


@each_architecture
def test_generated_log_probs_are_the_learners_with_adapters_on(architecture, tiny):
    """The recorded decode step reads the adapters that train, before and after a step, and after the reference has scored."""
    model = tiny(architecture)
    reference = Scoring(AdapterOffPolicy(model))
    assert_draws_are_the_learners(trained(model, lora=SPEC), lambda units: reference.score(units, LOGP))


@each_architecture
def test_the_saved_model_is_merged_and_loads_as_a_plain_one(architecture, tiny, tmp_path):
    model = tiny(architecture)
    trained(model, lora=SPEC)
    names = {name for name, _ in tiny(architecture).network.named_parameters()}
    again = load_model(str(save_model(model, tmp_path / "model")))
    assert {name for name, _ in again.network.named_parameters()} == names
    assert torch.allclose(logits(again), logits(model), atol=1e-4)
    assert any(".lora_" in name for name, _ in model.network.named_parameters())  # saving leaves the trained model alone


@each_architecture
def test_the_saved_adapter_loads_with_peft_beside_the_first_model(architecture, tiny, tmp_path):
    model = tiny(architecture)
    base = save_model(model, tmp_path / "base")
    trained(model, lora=SPEC)
    expected = logits(model)
    folder = save_model(model, tmp_path / "model")
    network = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "adapter")
    assert torch.allclose(network(input_ids=PLACE[0]).logits[0], expected, atol=1e-4)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 8.0, "LORA")


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_the_learners_weights_are_those_of_the_plain_model_merged(architecture, tiny):
    model = tiny(architecture)
    learner = trained(model, lora=SPEC)
    plain = tiny(architecture)
    sent = dict(learner.weights())
    assert sent.keys() == dict(plain.policy_weights()).keys()
    plain.network.load_state_dict(sent, strict=False)
    assert torch.allclose(logits(plain), logits(model), atol=1e-4)


def test_a_resumed_learner_goes_on_bit_for_bit_from_the_adapters_alone(tiny):
    state = assert_resumes_bit_by_bit(lambda: learner_of(tiny(), lora=SPEC, learning_rate=1e-2))
    assert not any("base_layer" in name for name in state.arrays)


def test_dropout_of_adapters_draws_from_the_learners_stream_and_acts_on_them_alone(tiny):
    spec = LoRA(rank=2, dropout=0.5)
    first, second, plain = (trained(tiny(), lora=lora) for lora in (spec, spec, LoRA(rank=2)))
    found = [[p for n, p in each.policy.model.named_parameters() if "lora_B" in n] for each in (first, second, plain)]
    assert all(map(torch.equal, found[0], found[1]))
    assert not any(map(torch.equal, found[0], found[2]))
    untouched = tiny()
    assert accumulate(learner_of(untouched, lora=spec), some_units()) == accumulate(learner_of(tiny()), some_units())


@pytest.mark.parametrize("critic", ["none", "shared"])
def test_a_value_head_trains_beside_adapters(critic, tiny):
    learner = learner_of(tiny(), lora=SPEC, critic=critic)
    heads = [name for name in learner.masters.parameters if ".lora_" not in name]
    assert heads == {"none": [], "shared": ["value_head.linear.weight", "value_head.linear.bias"]}[critic]


def test_a_new_score_head_trains_beside_adapters(tiny, tmp_path):
    scorer = load_model(str(save_model(tiny(), tmp_path / "base")), "score")
    names = learner_of(scorer, lora=SPEC).masters.parameters
    assert [name for name in names if ".lora_" not in name] == ["network.score.weight"]


def test_an_encoder_decoder_takes_adapters(text, tmp_path):
    model = tiny_t5.build(text)
    trained(model, lora=SPEC)
    again = load_model(str(save_model(model, tmp_path / "t5")))
    scores = [Scoring(LanguagePolicy(each)).score(some_units(7), LOGP)["logp"] for each in (model, again)]
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(*scores, strict=True))
    assert load_file(tmp_path / "t5" / "adapter" / "adapter_model.safetensors")


def test_without_the_package_the_error_names_the_extra(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install penstock\[lora\]"):
        learner_of(tiny(), lora=SPEC)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"lora": SPEC, "unfrozen_layers": 2}, "leave unfrozen_layers=-1"),
        ({"lora": SPEC, "critic": "separate"}, "use critic=shared"),
        ({"lora": LoRA(dropout=0.1), "gradient_checkpointing": True}, "set lora.dropout=0"),
    ],
)
def test_combinations_that_cannot_be_are_refused(fields, problem):
    with pytest.raises(SpecError, match=problem):
        LearnerSpec(**fields)


@pytest.mark.parametrize(("field", "value"), [("rank", 0), ("alpha", 0.0), ("dropout", 1.0)])
def test_impossible_adapters_are_refused(field, value):
    with pytest.raises(SpecError, match=f"lora.{field}={value}"):
        LoRA(**{field: value})
