"""Every causal language model of the installed transformers, small: from its own configuration class, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import engine_examples
import naive
import tiny_models
from penstock.config.learner import LearnerSpec
from penstock.core.contracts import Denominator
from penstock.core.errors import ModelError
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.attention import AttentionPlan, LayerAttention, quiet_transformers, single_row_plan
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.text import Text
from penstock.train.learner import DeviceLearner, LearnerPlan, Scoring

TYPES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
WINDOW = 6
"""Shorter than the rows of the tests, so that what a window hides shows."""

LARGEST, TOLERANCE = 100_000_000, 1e-4

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "d_model": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_ctx": 128, "n_inner": 48, "d_ff": 48,
    "ffn_dim": 48, "num_layers": 2, "num_heads": 4, "word_embed_proj_dim": 32, "is_decoder": True, "use_cache": False,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "encoder_layers": 1, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "embedding_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "moe_topk": 2, "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1, "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_head_dim": 16,
    "index_head_dim": 8, "index_n_heads": 2, "index_topk": WINDOW, "num_nextn_predict_layers": 0, "use_sliding_window": True,
    "global_head_dim": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "swa_head_dim": 8,
    "swa_v_head_dim": 12,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "kv_channels": 8, "num_key_value_heads_per_layer": None,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "state_size": 8, "conv_kernel": 4,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
    "image_token_id": 290, "image_token_index": 290, "audio_token_id": 291, "video_token_id": 292, "boi_token_id": 293,
    "eoi_token_id": 294, "vision_start_token_id": 295, "vision_end_token_id": 296,
    "attention_dropout": 0.1, "dropout": 0.1, "hidden_dropout": 0.1, "activation_dropout": 0.1, "resid_pdrop": 0.1,
    "embd_pdrop": 0.1, "attn_pdrop": 0.1, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "router_jitter_noise": 0.1,
}  # fmt: skip
"""What a configuration is shrunk to, where it has the field. There is dropout and jitter, which must not act."""


def config_of(model_type: str, **changes: Any) -> Any:
    """A small configuration of a type; its windows and chunks are shorter than the tests' rows."""
    kind = CONFIG_MAPPING[model_type]
    with quiet_transformers():
        return kind(**(_shrunk(kind) | OWN.get(model_type, {}) | changes))


def _shrunk(kind: Any) -> dict[str, Any]:
    """What a configuration class is given, and likewise the configurations within it."""
    try:
        default = kind()
    except Exception:
        return dict(SMALL)
    known = default.to_dict()
    found = {name: value for name, value in SMALL.items() if name in known}
    if "sliding_attention" in (known.get("layer_types") or ()):
        found["layer_types"] = ["sliding_attention", "full_attention"]
    for name in kind.sub_configs or {}:
        inner = getattr(default, name, None)
        if inner is not None:
            found[name] = _shrunk(type(inner)) | OWN.get(inner.model_type, {}) | {"model_type": inner.model_type}
    return found


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_MLA = {"num_key_value_heads": 4}
_NO_DROPOUT = {"attention_dropout": 0.0}
_MARKS = {"bos_token_id": 2}
OWN: dict[str, dict[str, Any]] = {
    "axk1": _MLA, "axk2": _MLA, "deepseek_v2": _MLA, "deepseek_v3": _MLA, "deepseek_v32": _MLA,
        "dots3_note_text": _MLA, "diffllama": _NO_DROPOUT, "cwm": _MARKS, "glm4_moe_lite": _MLA,
    "glm_moe_dsa": _MLA, "minicpm3": _MLA, "youtu": _MLA, "kimi_linear": _MLA, "bailing_hybrid": _MLA,
    "hy_v4": _MLA,
    "lfm2": {"layer_types": ["conv", "full_attention"]}, "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
    "mpt": {"attn_config": {"attn_pdrop": 0}, "n_layers": 2, "n_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0]},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "modernbert-decoder": _MARKS, "mllama_text_model": _MARKS, "emu3_text_model": _MARKS,
    "reformer": {"axial_pos_embds": False}, "xlm": {"emb_dim": 32, "n_heads": 4, "n_layers": 2, "n_words": 300},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20},
    "zamba": {"layer_types": ["mamba", "hybrid"]}, "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1}, "mamba2": {"num_heads": 8, "head_dim": 8},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_expand": 2},
    "longcat_flash": _MLA | {"ffn_hidden_size": 48, "expert_ffn_hidden_size": 16},
}  # fmt: skip
"""What a type needs besides to be built small."""


def built(model_type: str, text: Text, **changes: Any) -> LanguageModel:
    """A peaked random model of a type."""
    config = config_of(model_type, **changes)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > LARGEST:
            raise ValueError(f"{model_type}: {size} parameters are too many for a test; shrink its configuration")
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tiny_models.randomise(network)
    return LanguageModel(network.eval(), text)


def rows(lengths: tuple[int, ...] = (21, 17, 26), prefix: int = 9, seed: int = 0) -> list[Any]:
    """Rows with a common prompt, all else their own."""
    rng = np.random.default_rng(seed)
    prompt = tiny_models.tokens(rng, prefix, 280)
    return [tiny_models.row(prompt, tiny_models.tokens(rng, length - prefix, 280)) for length in lengths]


def learner_gap(model: LanguageModel) -> float:
    """The largest difference in log-prob between packed rows of ours and plain transformers, row by row without padding."""
    group, alone = tuple(rows()), tuple(rows((24,), seed=1))
    ours = Scoring(LanguagePolicy(model)).score([group, alone], frozenset({"logp"}))["logp"]
    network = naive.plain(model)
    gaps = [0.0]
    for row, logp_A in zip((*group, *alone), ours, strict=True):
        tokens = torch.from_numpy(row.tokens_T.astype(np.int64))
        with torch.no_grad():
            logp_TV = network(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        theirs = logp_TV[:-1].gather(1, tokens[1:, None])[:, 0].numpy()[row.action_T[1:]]
        gaps.append(float(np.abs(theirs - logp_A).max()))
    return max(gaps)


def generator_gap(model: LanguageModel) -> float:
    """The largest difference between a generator's log-probs and the learner's: two samples of one prompt beside another one's,
    prompts read in chunks, rows longer than a window."""
    prompts = [tiny_models.tokens(np.random.default_rng(length), length, 280) for length in (19, 5)]
    requests = [
        tiny_models.request(prompt, ordinal, sample, max_new_tokens=16)
        for ordinal, (prompt, count) in enumerate(zip(prompts, (2, 1), strict=True))
        for sample in range(count)
    ]
    samples = engine_examples.run(EmbeddedGenerator(model, chunk=8), requests)
    return max(
        float(np.abs(sample.logp_T[sample.action_T] - engine_examples.learner_logp(model, sample)).max()) for sample in samples
    )


@dataclass(frozen=True)
class Verdict:
    """What became of a type: right, refused with a reason, or not built small."""

    right: bool = False
    reason: str = ""
    uses: str = ""
    built: bool = True


def verdict(model_type: str, text: Text) -> Verdict:
    """Build a type, check it and compare its log-probs. Raises AssertionError for one that is accepted and wrong."""
    try:
        model = built(model_type, text)
    except Exception as error:
        return Verdict(reason=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", built=False)
    try:
        model.check()
    except ModelError as error:
        return Verdict(reason=str(error))
    assert learner_gap(model) < TOLERANCE, f"{model_type}: packed rows differ from transformers by {learner_gap(model):.1e}"
    assert generator_gap(model) < TOLERANCE, (
        f"{model_type}: the generator differs from the learner by {generator_gap(model):.1e}"
    )
    losses = trained(model)
    assert losses[-1] < losses[0], f"{model_type}: four steps took the loss from {losses[0]:.3f} to {losses[-1]:.3f}"
    assert generator_gap(model) < TOLERANCE, f"{model_type}: the generator differs from the learner after training"
    return Verdict(right=True, uses=", ".join(sorted(uses(model))))


@dataclass(frozen=True)
class Likelihood:
    """Minus the mean log-prob of the answers."""

    needs: frozenset[str] = frozenset({"logp"})

    def __call__(self, outputs: Any, fields: Any, batch: Any, denominator: Any) -> Any:
        return -outputs["logp"].sum() / denominator.tokens, {}


def trained(model: LanguageModel) -> list[float]:
    """Losses of four steps on a unit with a shared prompt; the model changes."""
    learner = DeviceLearner(LanguagePolicy(model), LearnerSpec(learning_rate=3e-4), LearnerPlan(total_steps=4))
    units, losses = [tuple(rows())], []
    (batch,) = learner.lay_out(units)
    for _ in range(4):
        learner.accumulate(batch, Likelihood(), Denominator.of(units))
        losses.append(learner.step()["loss"])
    return losses


def uses(model: LanguageModel) -> set[str]:
    """What of attention a model asks for besides scores: windows, sinks, soft caps."""
    plan = Using(single_row_plan(2))
    with torch.no_grad():
        model.hidden(torch.ones(1, 2, dtype=torch.int64), torch.arange(2)[None], plan)
    return plan.found


class Using:
    def __init__(self, inner: AttentionPlan) -> None:
        self.inner, self.found = inner, set[str]()

    def attend(self, query: Any, key: Any, value: Any, how: LayerAttention) -> Any:
        named = {"windows": how.window, "soft caps": how.cap, "sinks": how.sink_H}
        self.found |= {name for name, given in named.items() if given is not None}
        return self.inner.attend(query, key, value, how)
