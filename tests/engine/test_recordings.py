"""A recorded step is the plain one: compared for every type that is recorded, and never made for others."""

import numpy as np
import pytest
from transformers import AutoConfig, AutoModelForCausalLM

import tiny_models
import tiny_t5
from engine_examples import assert_same_draws, learner_logp, ragged, run
from penstock.engine import decode
from penstock.engine.encoder_decoder import embedded_generator
from penstock.engine.graphs import Graphs
from penstock.models import draws
from penstock.models.language_model import LanguageModel
from tiny_models import CONTEXT

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": CONTEXT, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
    "sliding_window": None,
}  # fmt: skip


def built(kind, text, **changes):
    """A tiny model of any type of transformers."""
    if kind in tiny_models.ARCHITECTURES and not changes:
        return tiny_models.build(kind, text)
    if kind in tiny_t5.ARCHITECTURES:
        return tiny_t5.build(text, kind)
    config = AutoConfig.for_model(kind, **(SHAPE | {"vocab_size": len(text)} | changes))
    network = AutoModelForCausalLM.from_config(config)
    tiny_models.randomise(network)
    model = LanguageModel(network.eval(), text)
    model.check()
    return model


def in_two_waves(model):
    """Samples of ragged rows, with a second wave of other sizes than those at which the step was recorded."""
    generator = embedded_generator(model, max_running=5, chunk=32)
    first = run(generator, ragged(4, max_new_tokens=6))
    return first + run(generator, ragged(9, seed=1, longest=70, max_new_tokens=30)), generator


def assert_recorded_is_plain(model, monkeypatch):
    """The samples of a recorded step."""
    recorded, generator = in_two_waves(model)
    assert generator.decode._traced
    monkeypatch.setattr(decode, "RECORDABLE", frozenset())
    plain, generator = in_two_waves(model)
    assert not generator.decode._traced
    assert_same_draws(recorded, plain)
    return recorded


WINDOW = {"sliding_window": 16}
SOME_LAYERS = WINDOW | {"use_sliding_window": True, "max_window_layers": 1}
"""Windows that the test's rows outgrow, where a type has them."""
WINDOWED = dict.fromkeys(("cohere2", "exaone4", "ministral", "mistral", "olmo3", "phi3", "starcoder2"), WINDOW)
WINDOWED |= dict.fromkeys(("gemma2", "gemma3_text"), WINDOW | {"query_pre_attn_scalar": 8})
WINDOWED |= dict.fromkeys(("qwen2", "qwen3"), SOME_LAYERS)
SEEN_OFTEN = {"gemma2", "gemma3_text", "gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "t5"}


@pytest.mark.parametrize("kind", sorted(decode.RECORDABLE))
def test_a_recorded_step_is_the_plain_one(kind, text, monkeypatch):
    model = built(kind, text, **WINDOWED.get(kind, {}))
    recorded = assert_recorded_is_plain(model, monkeypatch)
    if kind not in tiny_t5.ARCHITECTURES:
        for sample in recorded[:6]:
            np.testing.assert_allclose(sample.logp_T[sample.action_T], learner_logp(model, sample), atol=1e-4)


def test_a_recorded_step_over_a_large_vocabulary_is_the_plain_one(text, monkeypatch):
    """There tokens are found block by block."""
    assert_recorded_is_plain(built("qwen2", text, vocab_size=draws.WHOLE + draws.BLOCK + 1), monkeypatch)


ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("llama", {}, True),
        ("llama", {"rope_parameters": ROPE}, False),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, False),
    ],
)
def test_what_looks_at_the_data_is_not_recorded(kind, changes, expected, text):
    assert decode.recordable(AutoConfig.for_model(kind, **(SHAPE | {"vocab_size": len(text)} | changes))) is expected


class Uncaptured(Graphs):
    """Graphs on a device that has none: a captured step runs as it is."""

    def _open(self):
        return 0, self.pools

    def _capture(self, step, moving, pool):
        class Step:
            replay = staticmethod(step)

        return Step()


def with_graphs(model, limit=64, **options):
    """A generator that captures and replays its steps as on CUDA."""
    generator = embedded_generator(model, **options)
    graphs = Uncaptured(limit)
    generator.decode = decode.DecodeStep(model, generator.prefix_cache, generator.own_cache, generator.state, graphs)
    return generator, graphs


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_padded_steps_of_graphs_draw_the_same(kind, text):
    """Idle rows run on beyond their end, where a model with learned positions has none."""
    model = built(kind, text)
    requests = ragged(9, longest=100, max_new_tokens=25)
    generator, graphs = with_graphs(model, max_running=5, chunk=64)
    assert_same_draws(run(generator, requests), run(embedded_generator(model, max_running=5, chunk=64), requests))
    assert graphs.captures > 1


def test_graphs_go_with_caches_that_are_resized(text):
    """Under a budget rows come and go with the room for them, and padded rows with them."""
    model = built("qwen2", text)
    requests = ragged(12, longest=40, max_new_tokens=80)
    generator, graphs = with_graphs(model, max_running=12, chunk=64, cache_gb=500 * 256 / 1e9)
    assert_same_draws(run(generator, requests), run(embedded_generator(model, max_running=12), requests))
    assert generator.preemptions > 0
    assert graphs.pools > 1


@pytest.mark.parametrize("changes", [{"rope_parameters": ROPE}, {}])
def test_graphs_are_captured_only_where_a_recording_holds(text, changes):
    generator, graphs = with_graphs(built("llama", text, **changes), max_running=2)
    run(generator, ragged(3))
    assert (graphs.captures > 0) is (not changes)


def ragged_groups(batch):
    """16 prompts × 8 samples with answers of ragged lengths, as in a run's batch."""
    rng = np.random.default_rng(batch)
    prompts = [tiny_models.tokens(rng, int(n)) for n in rng.integers(5, 60, 16)]
    return [
        tiny_models.request(prompt, 16 * batch + p, g, max_new_tokens=min(60, int(rng.geometric(0.08))))
        for p, prompt in enumerate(prompts)
        for g in range(8)
    ]


def test_a_run_keeps_few_graphs_in_one_pool_of_memory(text):
    generator, graphs = with_graphs(built("qwen2", text), max_running=128)
    captures = []
    for batch in range(6):
        run(generator, ragged_groups(batch))
        captures.append(graphs.captures)
    assert len(graphs) <= 64
    assert captures[0] <= 25
    assert captures[-1] <= 64
    assert graphs.pools <= 2  # the first one went with the caches' first size


def test_the_graph_that_was_not_replayed_for_longest_goes_first(text):
    generator, graphs = with_graphs(built("qwen2", text), limit=3, max_running=8)
    requests = ragged(12, max_new_tokens=20)
    assert_same_draws(run(generator, requests), run(embedded_generator(built("qwen2", text), max_running=8), requests))
    assert len(graphs) == 3
    before = graphs.captures
    run(generator, [tiny_models.request(np.array([20]), 99, max_new_tokens=3)])
    run(generator, [tiny_models.request(np.array([20]), 98, max_new_tokens=3)])
    assert graphs.captures <= before + 1
