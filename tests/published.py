"""Tiny checkpoints in the shapes in which families of models are published: their special tokens, what their tokenizers put
before a text, the end tokens that each of their files names, and chat templates that write what their documentation shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Phi3Config, PreTrainedTokenizerFast, Qwen3Config

import tiny_models

CONTEXT = 128


LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN_3 = (
    "{% set last = namespace(user=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ (tool | tojson) + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% set answer = m.content.split('</think>')[-1].lstrip('\n') if m.content else '' %}"
    "{% set thought = m.reasoning_content or (m.content.split('</think>')[0].split('<think>')[-1].strip('\n') "
    "if m.content and '</think>' in m.content else '') %}"
    "{% if loop.index0 > last.user and (loop.last or thought) %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ answer }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>\n' + (call | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
GEMMA_3 = (
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (first if loop.first else '') }}"
    "{{ m.content | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI_4 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)

SHAPE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What a family's files say. ``ends`` are those of generation_config.json, ``eos`` the tokenizer's."""

    config: Any
    special: tuple[str, ...]
    template: str
    eos: str
    ends: tuple[str, ...]
    bos: str | None = None
    pieces: bool = False
    """Whether it is a SentencePiece vocabulary, in which ``▁`` stands for spaces."""
    more: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "llama-3": Family(
        LlamaConfig,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
        LLAMA_3, "<|eot_id|>", ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), "<|begin_of_text|>",
    ),
    "qwen-3": Family(
        Qwen3Config, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), QWEN_3, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"),
        more={"head_dim": 16},
    ),
    "gemma-3": Family(
        Gemma3TextConfig, ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), GEMMA_3, "<eos>",
        ("<eos>", "<end_of_turn>"), "<bos>", True, more={"head_dim": 16, "sliding_window": CONTEXT},
    ),
    "phi-4": Family(
        Phi3Config, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"), PHI_4, "<|endoftext|>",
        ("<|endoftext|>", "<|im_end|>"),
    ),
}  # fmt: skip


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """A tokenizer of 320 pieces with a family's special tokens, which puts before a text what the family's does."""
    made = Tokenizer(models.BPE(byte_fallback=family.pieces, unk_token=None))
    alphabet: list[str] = [] if family.pieces else pre_tokenizers.ByteLevel.alphabet()
    if family.pieces:
        made.normalizer = normalizers.Replace(" ", "▁")
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = ["▁", "\n"]
    else:
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if family.pieces else []
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[*family.special, *fallback], show_progress=False
    )
    made.train_from_iterator(tiny_models.CORPUS, trainer)
    if family.bos:
        made.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, made.token_to_id(family.bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=family.bos, eos_token=family.eos, pad_token=family.special[0],
        additional_special_tokens=list(family.special), chat_template=family.template,
    )  # fmt: skip


def publish(name: str, folder: Path, **changes: Any) -> Path:
    """A tiny peaked model of a family in a folder, as it would be published."""
    family = FAMILIES[name]
    tokenizer = tokenizer_of(family)
    ends = tokenizer.convert_tokens_to_ids(list(family.ends))
    marks = {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = family.config(**(SHAPE | family.more | marks | {"pad_token_id": tokenizer.pad_token_id} | changes))
    with torch.random.fork_rng(devices=[]):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tiny_models.randomise(network)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    said = {"eos_token_id": ends, "bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(said))
    return folder
