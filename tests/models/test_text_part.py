"""Models that also see load for their text part; others that cannot be used say of which type they are and why."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DeepseekV3Config,
    Gemma3Config,
    Llama4Config,
    Mistral3Config,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
)

import published
import tiny_models
from penstock.core.errors import ModelError
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring

TOKENIZER = published.tokenizer_of(published.FAMILIES["llama-3"])
MARKS = {"vocab_size": len(TOKENIZER), "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 5}
TEXT = published.SHAPE | MARKS | {"head_dim": 8}
SIGHT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN_SIGHT = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
QWEN = {"image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 9}
TURNS = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}


CONFIGS = {
    "Gemma3ForCausalLM": lambda: Gemma3Config(
        text_config=TEXT | {"sliding_window": 128}, vision_config=SIGHT, mm_tokens_per_image=4, image_token_index=7
    ),
    "MistralForCausalLM": lambda: Mistral3Config(
        text_config=TEXT | {"model_type": "mistral"},
        vision_config=SIGHT | {"model_type": "pixtral", "head_dim": 16},
        image_token_index=7,
    ),
    "Qwen2ForCausalLM": lambda: Qwen2_5_VLConfig(
        text_config=TEXT | {"rope_parameters": TURNS}, vision_config=QWEN_SIGHT, **QWEN
    ),
    "Qwen3ForCausalLM": lambda: Qwen3VLConfig(
        text_config=TEXT | {"rope_parameters": TURNS | {"mrope_interleaved": True}},
        vision_config=QWEN_SIGHT | {"deepstack_visual_indexes": [0]},
        **QWEN,
    ),
}
"""Models that also see, by the class of their part for text."""


def saved(config, folder, factory=AutoModelForImageTextToText):
    with torch.random.fork_rng(devices=[]):
        network = factory.from_config(config, dtype=torch.float32)
    tiny_models.randomise(network)
    network.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return network.eval()


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_that_also_sees_is_loaded_for_its_text(kind, tmp_path):
    """Its log-probs of text are those of the whole model; saved, anybody reads it as the causal language model that it is."""
    whole = saved(CONFIGS[kind](), tmp_path / "whole")
    model = load_model(str(tmp_path / "whole"))
    assert type(model.network).__name__ == kind
    tokens = TOKENIZER("the quick brown fox jumps")["input_ids"]
    theirs = whole(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = theirs[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].detach().numpy()
    row = tiny_models.row(np.array(tokens[:1]), np.array(tokens[1:]))
    found = Scoring(LanguagePolicy(model)).score([(row,)], frozenset({"logp"}))["logp"][0]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    plain = AutoModelForCausalLM.from_pretrained(save_model(model, tmp_path / "text"))
    again = plain(torch.tensor([tokens])).logits[0].log_softmax(-1)
    np.testing.assert_allclose(again.detach(), theirs.detach(), atol=1e-4)


def test_a_reward_model_starts_from_the_text_part(tmp_path):
    saved(CONFIGS["Gemma3ForCausalLM"](), tmp_path)
    ours, lm = load_model(str(tmp_path), "score"), dict(load_model(str(tmp_path)).policy_weights())
    assert {name for name, _ in ours.policy_weights()} - set(lm) == {"score.weight"}
    assert all(torch.equal(tensor, lm[name]) for name, tensor in ours.policy_weights() if name in lm)


def test_a_text_part_that_is_not_supported_is_refused_by_its_type(tmp_path):
    text = TEXT | {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 64}
    saved(Llama4Config(text_config=text, vision_config=SIGHT), tmp_path)
    with pytest.raises(ModelError, match=r"(?i)llama_?4"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("head", ["lm", "score"])
def test_what_stops_an_architecture_is_said_with_its_type(head, tmp_path, monkeypatch):
    """Whatever transformers or torch raise on the way, it is an error of the model's that names type and reason."""
    config = DeepseekV3Config(
        **published.SHAPE | MARKS, n_routed_experts=4, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, v_head_dim=8,
        qk_nope_head_dim=4, n_group=2, topk_group=1, num_experts_per_tok=2, first_k_dense_replace=1, moe_intermediate_size=16,
    )  # fmt: skip
    saved(config, tmp_path, AutoModelForCausalLM)
    monkeypatch.setattr("penstock.models.language_model.LanguageModel.check", lambda model: model.nothing)
    with pytest.raises(ModelError, match='a model of type "deepseek_v3" is not supported: AttributeError'):
        load_model(str(tmp_path), head)
