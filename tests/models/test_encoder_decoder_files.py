"""Encoder-decoders on disk and from scratch: what is saved loads again, here and in transformers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import tiny_models
import tiny_t5
from penstock.config.run import ModelSpec
from penstock.core.errors import SpecError
from penstock.models.encoder_decoder import EncoderDecoderModel
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy
from penstock.models.presets import preset_shape, shape_of
from penstock.models.scratch import build_model
from penstock.train.learner import Scoring
from tiny_models import row

SCRATCH = ModelSpec(architecture="encoder-decoder", vocabulary=300, context=64)


def units():
    rng = np.random.default_rng(0)
    return [(row(tiny_models.tokens(rng, n), tiny_models.tokens(rng, m)),) for n, m in ((3, 5), (9, 2))]


def scored(model, name="logp"):
    return Scoring(LanguagePolicy(model)).score(units(), frozenset({name}))[name]


@pytest.mark.parametrize("architecture", tiny_t5.ARCHITECTURES)
def test_a_saved_model_loads_again_as_what_it_was(architecture, text, tmp_path):
    model = tiny_t5.build(text, architecture)
    loaded = load_model(str(save_model(model, tmp_path / "model")))
    assert isinstance(loaded, EncoderDecoderModel)
    assert (loaded.context, loaded.start) == (model.context, model.start)
    for ours, theirs in zip(scored(loaded), scored(model), strict=True):
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_loads_with_transformers(tied, text, tmp_path):
    model = tiny_t5.build(text, tie_word_embeddings=tied)
    folder = save_model(model, tmp_path / "model")
    network = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert "penstock" not in json.dumps(json.loads((folder / "config.json").read_text()))
    rows = [one for (one,) in units()]
    for ours, theirs in zip(scored(model), tiny_t5.outputs_of(network, rows, model.start)[0], strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), atol=1e-4)
    assert AutoTokenizer.from_pretrained(folder).encode("12 - 5") == model.text.encode("12 - 5")


def test_value_and_score_heads_are_saved_beside_the_network(text, tmp_path):
    model = tiny_t5.build(text, head="score")
    model.add_critic("shared")
    with torch.no_grad():
        model.score_head.weight.mul_(-2)
        model.value_head.linear.bias.fill_(3.0)
    folder = save_model(model, tmp_path / "model")
    loaded = load_model(str(folder), "score")
    assert scored(loaded, "score") == scored(model, "score")
    assert [v.tolist() for v in scored(loaded, "value")] == [v.tolist() for v in scored(model, "value")]
    assert AutoModelForSeq2SeqLM.from_pretrained(folder) is not None


def test_a_new_score_head_is_the_same_every_time(text, tmp_path):
    folder = str(save_model(tiny_t5.build(text), tmp_path / "model"))
    one, other = load_model(folder, "score"), load_model(folder, "score")
    assert one.score_head.weight.abs().min() > 0
    assert torch.equal(one.score_head.weight, other.score_head.weight)


def test_a_model_from_scratch_is_a_function_of_its_seed(text):
    one, same, other = (build_model(SCRATCH, (), seed, text=text) for seed in (1, 1, 2))
    assert isinstance(one, EncoderDecoderModel)
    assert all(torch.equal(tensor, dict(same.policy_weights())[name]) for name, tensor in one.policy_weights())
    assert not torch.equal(one.network.shared.weight, other.network.shared.weight)
    assert one.context == 64


def test_a_model_from_scratch_saves_and_loads(text, tmp_path):
    model = build_model(SCRATCH, (), 0, text=text)
    loaded = load_model(str(save_model(model, tmp_path / "model")))
    assert loaded.context == 64
    assert [x.tolist() for x in scored(loaded)] == [x.tolist() for x in scored(model)]


@pytest.mark.parametrize("preset", ["1m", "3m"])
def test_a_preset_has_about_its_size_in_both_shapes(preset, text):
    sizes = []
    for architecture in ("decoder", "encoder-decoder"):
        model = build_model(ModelSpec(preset=preset, architecture=architecture), (), 0, text=text)
        sizes.append(sum(tensor.numel() for _, tensor in model.policy_weights()))
    assert 0.75 < sizes[1] / sizes[0] < 1.35


def test_relative_biases_start_large_enough_to_tell_positions_apart(text):
    model = build_model(SCRATCH, (), 0, text=text)
    for stack in (model.network.encoder, model.network.decoder):
        assert stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.std() > 2


def test_layers_are_those_of_each_half(text):
    model = build_model(ModelSpec(architecture="encoder-decoder", layers=3), (), 0, text=text)
    assert (len(model.network.encoder.block), len(model.network.decoder.block)) == (3, 3)


@pytest.mark.parametrize("layers", [0, 3])
def test_the_computed_size_is_that_of_the_model(layers, text, tmp_path):
    spec = ModelSpec(architecture="encoder-decoder", layers=layers, vocabulary=300)
    model = build_model(spec, (), 0, text=text)
    counted = sum(tensor.numel() for _, tensor in model.policy_weights())
    planned = replace(preset_shape("1m", layers, encoder=True), vocabulary=len(text))
    for shape in (planned, shape_of(save_model(model, tmp_path / "model"))):
        assert shape.parameters == pytest.approx(counted, rel=1e-3)  # but for the relative biases


def test_a_range_of_first_weights_is_refused_for_encoder_decoders():
    with pytest.raises(SpecError, match="leave initializer_range=0"):
        ModelSpec(architecture="encoder-decoder", initializer_range=0.02)
