"""The text part of a model that also sees or hears, as the causal language model (or reward model) that it is."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSequenceClassification,
)

from penstock.core.errors import ModelError
from penstock.models.language_model import Head

ALIKE = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe"}
"""Text types that no class of their own computes, and the type that is the same for text: the three positions of their rotary
embeddings (time, height, width; Qwen2-VL, arXiv 2409.12191) are then one."""


def has_text_part(config: Any) -> bool:
    """Whether a configuration is that of a model of several kinds of input, of which text is one."""
    return config.get_text_config() is not config and not config.is_encoder_decoder


def text_config_of(config: Any) -> Any:
    """The configuration of the causal language model that the text part is.

    Raises:
        ModelError: transformers has no such class.
    """
    text = copy.deepcopy(config.get_text_config())
    if text.model_type in ALIKE:
        values = {name: value for name, value in text.to_dict().items() if name != "model_type"}
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": text.rope_parameters["rope_theta"]}
        text = CONFIG_MAPPING[ALIKE[text.model_type]](**values)
    if type(text) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f'its text part is of type "{text.model_type}", which is no causal language model of transformers')
    text.tie_word_embeddings = config.tie_word_embeddings
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        if config.to_dict().get(name) is not None:
            setattr(text, name, config.to_dict()[name])
    return text


def load_text_part(path: str, config: Any, head: Head, **options: Any) -> Any:
    """The text part of a model folder or hub name, loaded with the whole model's weights, whose other parts are let go.

    Raises:
        ModelError: the text part is no causal language model, or gives other logits than the whole model does for text.
    """
    text = text_config_of(config)
    whole = AutoModelForMultimodalLM.from_pretrained(path, config=config, **options)
    factory: Any = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    text.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a new score head is the same every time
        network = factory.from_config(text, dtype=whole.dtype)
    trunk = whole.get_decoder().base_model.state_dict()
    state = {f"{network.base_model_prefix}.{name}": tensor for name, tensor in trunk.items()}
    if head == "lm":
        state |= {f"lm_head.{name}": tensor for name, tensor in whole.get_output_embeddings().state_dict().items()}
    missing, unexpected = network.load_state_dict(state, strict=False, assign=True)
    odd = [name for name in (*missing, *unexpected) if not name.startswith("score.")]
    if odd:
        raise ModelError(f"the weights of its text part are not those of {type(network).__name__} ({odd[0]})")
    network.tie_weights()
    if head == "lm":
        _require_alike(network, whole)
    return network


@torch.no_grad()
def _require_alike(network: Any, whole: Any) -> None:
    """Refuse a text part that reads a short text in another way than the whole model. Raises ModelError."""
    tokens = torch.arange(1, 9)[None]
    ours, theirs = (model.eval()(input_ids=tokens, use_cache=False).logits.float() for model in (network, whole))
    allowed = 1e-3 * max(1.0, float(theirs.abs().max())) * (1 if whole.dtype == torch.float32 else 100)
    if not float((ours - theirs).abs().max()) <= allowed:
        raise ModelError(f"{type(network).__name__} gives other logits for text than {type(whole).__name__}")
