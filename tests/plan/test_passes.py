"""What a pass keeps for its backward pass: by hand, and as torch itself keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen2Config

from penstock.config.denoising import Pictures
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.run import ModelSpec
from penstock.core.types import Row
from penstock.models.families import built
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.presets import Shape
from penstock.plan.passes import block_bytes, head_bytes, kept_bytes, step_bytes
from penstock.plan.pictures import denoiser_kept, denoiser_numbers, picture_process
from penstock.recipes.digits import digits

HAND = Shape(width=8, hidden=10, layers=3, heads=2, key_value_heads=1, vocabulary=20)
"""Queries 8 wide, keys 4."""


def test_what_a_block_keeps_of_a_token_by_hand() -> None:
    """Norms: two inputs, roots, normalised. 2·8 + 2·4 + 3·10 inside, 8 + 10 and 2·8 that matrices read, a sum a head."""
    inside, read, heads = 4 * (2 * 8 + 2 * 4 + 3 * 10), 4 * (8 + 10 + 2 * 8), 4 * 2
    assert block_bytes(HAND, LearnerSpec()) == 2 * (4 * 8 + 4 + 4 * 8) + inside + read + heads
    assert block_bytes(HAND, LearnerSpec(dtype="bfloat16")) == 2 * (4 * 8 + 4 + 2 * 8) + inside / 2 + read / 2 + heads
    adapted = 2 * (4 * 8 + 4) + inside + read + heads + 4 * 7 * 16
    assert block_bytes(HAND, LearnerSpec(lora=LoRA())) == adapted


def test_logits_are_there_twice_and_bounded_by_a_chunk() -> None:
    few = LearnerSpec(token_budget=100)
    assert head_bytes(HAND, few) == 2 * 4 * 100 * 20
    assert head_bytes(HAND, few, warm=True) == 3 * 4 * 100 * 20
    many = Shape(width=8, hidden=10, layers=3, heads=2, key_value_heads=1, vocabulary=1 << 20)
    rows = 16  # of 2^24 numbers
    assert head_bytes(many, few) == 2 * 4 * rows * (1 << 20)


def test_a_plain_8_bit_step_takes_its_largest_tensor_many_times_and_a_compiled_one_nothing() -> None:
    assert step_bytes(HAND, True, False, 1512) == 53 * 8 * 20
    assert step_bytes(HAND, True, True, 1512) == step_bytes(HAND, False, False, 1512) == 0


def kept_by_torch(module: torch.nn.Module, compute: Any) -> int:
    """Bytes that a pass keeps for its backward pass, besides what the module holds."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        held = compute()
    assert held is not None
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize(
    "learner",
    [
        LearnerSpec(token_budget=256),
        LearnerSpec(token_budget=256, dtype="bfloat16"),
        LearnerSpec(token_budget=256, dtype="mixed"),
        LearnerSpec(token_budget=256, lora=LoRA(rank=4)),
        LearnerSpec(token_budget=256, gradient_checkpointing=True),
        LearnerSpec(token_budget=256, unfrozen_layers=1),
    ],
    ids=["float32", "bfloat16", "mixed", "adapters", "computed again", "one layer unfrozen"],
)
def test_blocks_keep_what_is_computed(learner: LearnerSpec, text: Any) -> None:
    if learner.lora is not None:
        pytest.importorskip("peft")
    shape = Shape(width=64, hidden=160, layers=3, heads=4, key_value_heads=2, vocabulary=len(text))
    config = Qwen2Config(
        vocab_size=shape.vocabulary, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = LanguageModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), text)
    policy = LanguagePolicy(model)
    policy.prepare(learner, 0)
    units = [(Row({"tokens_T": np.full(64, 5, np.int32)}, np.arange(64) > 0),) for _ in range(4)]
    (batch,) = policy.lay_out(units, 256, False)
    found = kept_by_torch(model, lambda: policy.outputs(batch, frozenset({"logp"})))
    logits = 4 * 252 * shape.vocabulary
    again = block_bytes(shape, learner) * 256 if learner.gradient_checkpointing else 0  # of one block, in the backward pass
    assert kept_bytes(shape, learner) == pytest.approx(found - logits + again, rel=0.03)


def test_a_denoiser_is_counted_as_it_is() -> None:
    spec = ModelSpec(preset="1m", vocabulary=300, context=16, denoiser=Pictures())
    model = built(spec, ["a digit"] * 3, 0)
    spec = ModelSpec(preset="1m", vocabulary=len(model.text), context=16, denoiser=Pictures())
    assert denoiser_numbers(spec) == sum(parameter.numel() for parameter in model.parameters())
    given = torch.randn(64, 1, 8, 8), torch.rand(64), torch.ones(64, 4)
    found = kept_by_torch(model, lambda: model.network(*given))
    assert denoiser_kept(spec, LearnerSpec(token_budget=64)) == pytest.approx(found, rel=0.15)


def test_a_pipeline_is_counted_by_the_headers_of_its_parts(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    parts = {"unet": {"block.one.weight": torch.zeros(6, 4), "enter.bias": torch.zeros(6)}, "vae": {"out": torch.zeros(10)}}
    for name, tensors in parts.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        save_file(tensors, tmp_path / name / "model.fp16.safetensors")
    index = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet"], "vae": ["diffusers", "VAE"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    run = digits()
    stage = replace(run.stages[-1], model=ModelSpec(path=str(tmp_path)))
    found = {item.what: item.bytes for item in picture_process(stage, run).items}
    assert (found["network"], found["vae, frozen"], found["gradients"], found["moments"]) == (120, 40, 120, 240)
    assert found["activations"] is None
    adapted = picture_process(replace(stage, learner=LearnerSpec(lora=LoRA(rank=2))), run)
    assert {item.what: item.bytes for item in adapted.items}["gradients"] == 4 * 2 * (6 + 4), "of the one matrix of a block"
