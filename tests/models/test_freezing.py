"""Freezing: exactly the top trains, nothing below takes part in a backward pass, and nothing below ever changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tiny_models
import tiny_t5
from penstock.core.errors import ModelError
from penstock.models.attention import single_row_plan
from penstock.models.freezing import blocks_of, freeze_below

EVERY = [(name, layers) for name in tiny_models.ARCHITECTURES for layers in (0, 1, 2)]
TIED = {"qwen2", "gpt2"}
TAIL = {
    "qwen2": {"model.norm.weight"},
    "qwen3": {"model.norm.weight", "lm_head.weight"},
    "llama": {"model.norm.weight", "lm_head.weight"},
    "gpt_neox": {"gpt_neox.final_layer_norm.weight", "gpt_neox.final_layer_norm.bias", "lm_head.weight"},
    "gpt2": {"transformer.ln_f.weight", "transformer.ln_f.bias"},
}


def logits(model, length=9):
    tokens = torch.arange(5, 5 + length)[None]
    return model.logits(model.hidden(tokens, torch.arange(length)[None], single_row_plan(length))[0])


def in_block(name, index):
    return f".layers.{index}." in name or f".h.{index}." in name


@pytest.mark.parametrize(("architecture", "layers"), EVERY)
def test_top_blocks_final_norm_and_untied_head_train_as_in_the_whole_model_and_nothing_else(architecture, layers, tiny):
    whole, model = tiny(architecture), tiny(architecture)
    freeze_below(model, layers)
    for each in (whole, model):
        logits(each).square().mean().backward()
    full = {name: p.grad for name, p in whole.network.named_parameters()}
    for name, parameter in model.network.named_parameters():
        trains = name in TAIL[architecture] or any(in_block(name, index) for index in range(2 - layers, 2))
        assert parameter.requires_grad == trains, name
        assert torch.equal(parameter.grad, full[name]) if trains else parameter.grad is None, name


@pytest.mark.parametrize(("architecture", "layers"), EVERY)
def test_a_head_tied_to_frozen_embeddings_stays_what_it_is(architecture, layers, tiny):
    """trlX's reference drifted through tied embeddings (its issue 517): the head trained and took the input along."""
    model = tiny(architecture)
    before = copy.deepcopy(model)
    freeze_below(model, layers)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        logits(model).logsumexp(-1).mean().backward()
        optimizer.step()
    embeddings, head = model.network.get_input_embeddings().weight, model.network.get_output_embeddings().weight
    assert torch.equal(embeddings, before.network.get_input_embeddings().weight)
    assert (head is embeddings) == (architecture in TIED)
    assert torch.equal(head, before.network.get_output_embeddings().weight) == (architecture in TIED)
    assert not torch.equal(logits(model), logits(before))


def test_more_layers_than_there_are_is_refused(tiny):
    with pytest.raises(ModelError, match="unfrozen_layers=3, but Qwen2Model has 2 blocks; use 0 to 2, or -1"):
        freeze_below(tiny(), 3)


def test_an_encoder_decoder_is_refused(text):
    with pytest.raises(ModelError, match=r"T5ForConditionalGeneration has two stacks of blocks.*unfrozen_layers=-1"):
        freeze_below(tiny_t5.build(text), 1)


class Nested(nn.Module):
    def __init__(self, *lists):
        super().__init__()
        self.config = type("Config", (), {"num_hidden_layers": 2})()
        self.decoder = nn.Module()
        for index, size in enumerate(lists):
            setattr(self.decoder, f"list{index}", nn.ModuleList(nn.Linear(1, 1) for _ in range(size)))


def test_blocks_are_found_below_the_first_level():
    trunk = Nested(3, 2)
    assert blocks_of(trunk) is trunk.decoder.list1


@pytest.mark.parametrize("sizes", [(), (3,), (2, 2)], ids=["no list", "another length", "two of them"])
def test_a_trunk_whose_blocks_cannot_be_told_is_refused(sizes):
    with pytest.raises(ModelError, match=r"Nested: cannot tell which modules are its 2 blocks.*unfrozen_layers=-1"):
        blocks_of(Nested(*sizes))
