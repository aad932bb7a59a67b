"""A learner on several ranks is one on one device, whatever is trained; losses and weights: test_ranks_in_double.py."""

import numpy as np
import pytest
import torch
from rank_examples import BUDGET, LOSSES, SCHEDULE, STRATEGIES, assert_alike, batches_for, learners, ranks_of, train, units_for
from transformers import AutoModelForSequenceClassification

import tiny_models
import tiny_t5
from learner_examples import WeightedLoss, some_units
from penstock.config.learner import LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.strategies import DDP, FSDP2, OneDevice
from penstock.core.contracts import Denominator
from penstock.core.errors import ModelError
from penstock.models.language_model import LanguageModel
from penstock.models.packing import lay_out

two_ranks = ranks_of(2)


@pytest.mark.parametrize(
    ("strategy", "critic", "dtype"),
    [
        (DDP(), "shared", "float32"),
        (DDP(), "separate", "bfloat16"),
        (FSDP2(), "shared", "bfloat16"),
        (FSDP2(), "separate", "float32"),
        (FSDP2(tensor_parallel=2), "shared", "float32"),
        (FSDP2(tensor_parallel=2), "separate", "bfloat16"),
        (FSDP2(sequence_parallel=2), "shared", "bfloat16"),
        (FSDP2(sequence_parallel=2), "separate", "float32"),
    ],
    ids=str,
)
def test_critics_and_bfloat16(strategy, critic, dtype, tiny):
    """Each pair of strategy, critic and type occurs."""
    loss = WeightedLoss(frozenset({"logp", "entropy", "value"}))
    architecture = "gpt2" if strategy.span == 1 else "llama"
    with learners(lambda: tiny(architecture), [OneDevice(), strategy], critic=critic, dtype=dtype) as (one, other):
        for seed in range(4):
            expected, found = (train(learner, some_units(seed), loss) for learner in (one, other))
            close = 1e-4 if dtype == "float32" else 0.05
            assert found == {name: pytest.approx(value, abs=close, rel=close) for name, value in expected.items()}
        assert [t.dtype for _, t in other.weights()] == [t.dtype for _, t in one.weights()]
        values = [learner.score(some_units(9), frozenset({"value"}))["value"] for learner in (one, other)]
        assert all(abs(a - b).max() < close for a, b in zip(*values, strict=True))


@pytest.mark.parametrize("strategy", [FSDP2(), FSDP2(sequence_parallel=2)], ids=repr)
def test_checkpointed_activations_change_nothing_on_shards(strategy, tiny):
    loss = LOSSES["SFT"]
    with learners(tiny, [strategy]) as (plain,):
        units = units_for("SFT", 0, tiny())
        expected = train(plain, units, loss)
    with learners(tiny, [strategy], gradient_checkpointing=True) as (again,):
        assert train(again, units, loss) == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_size_of_a_step_is_that_of_one_device_as_far_as_a_sample_shows(strategy, tiny):
    loss = LOSSES["SFT"]
    with learners(tiny, [OneDevice(), strategy], **SCHEDULE) as pair:
        for seed in range(4):
            units, sizes = units_for("SFT", seed, tiny()), []
            for learner in pair:
                for batch in lay_out(units, BUDGET, True):
                    learner.accumulate(batch, loss, Denominator.of(units))
                sizes.append(learner.step()["update_size"])
            assert sizes[1] == pytest.approx(sizes[0], rel=0.1)


@pytest.mark.parametrize(
    "spec", [{"unfrozen_layers": 1}, {"optimizer": AdamW8bit()}, {"lora": LoRA(rank=4)}], ids=["unfrozen", "8-bit", "adapters"]
)
def test_data_parallel_copies_train_what_one_device_trains(spec, tiny):
    pytest.importorskip("peft" if "lora" in spec else "torchao")
    with learners(lambda: tiny("llama"), [OneDevice(), DDP()], **spec) as (one, other):
        assert_alike(one, other, batches_for("SFT", range(3), tiny("llama")), LOSSES["SFT"], within=1e-4)


def test_an_encoder_decoder_trains_on_copies_and_is_refused_as_shards(text):
    def model():
        return tiny_t5.build(text, "t5")

    with learners(model, [OneDevice(), DDP()]) as (one, other):
        batch = units_for("SFT", 0, model())
        assert train(other, batch, LOSSES["SFT"])["loss"] == pytest.approx(train(one, batch, LOSSES["SFT"])["loss"], abs=1e-5)
    with pytest.raises(ModelError, match="strategy=DDP"), learners(model, [FSDP2()]):
        pass


@pytest.mark.parametrize("strategy", [FSDP2(sequence_parallel=2), FSDP2(tensor_parallel=2)], ids=repr)
def test_reward_models(strategy, text):
    def model():
        config = tiny_models.config_of("llama", len(text), num_labels=1)
        network = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        tiny_models.randomise(network)
        return LanguageModel(network.eval(), text, "score")

    loss = WeightedLoss(frozenset({"score"}))
    with learners(model, [OneDevice(), strategy]) as (one, other):
        assert_alike(one, other, [some_units(seed) for seed in range(3)], loss)
        scores = [learner.score(some_units(9), frozenset({"score", "step"})) for learner in (one, other)]
        assert scores[1]["score"] == pytest.approx(scores[0]["score"], abs=1e-4)
        assert all(abs(a - b).max() < 1e-4 for a, b in zip(scores[0]["step"], scores[1]["step"], strict=True))


def kept_for_the_backward_pass(learner, tokens):
    """Bytes that this rank keeps from the forward pass of one row."""
    rng = np.random.default_rng(0)
    unit = (tiny_models.row(tiny_models.tokens(rng, 1), tiny_models.tokens(rng, tokens - 1), weight=np.ones(tokens - 1)),)
    held = {}

    def keep(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        kept.append(tensor)  # alive, so that no other gets its memory
        return tensor

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for _ in range(learner.copies):
            learner.accumulate(lay_out([unit], tokens, True)[0], LOSSES["SFT"], Denominator.of([unit] * learner.copies))
        learner.flush()
    return sum(held.values())


def test_ranks_that_split_tokens_keep_half_of_a_rows_activations(text):
    def model():
        return tiny_models.build("llama", text, max_position_embeddings=1024)

    grown = []
    for strategy in (FSDP2(), FSDP2(sequence_parallel=2)):
        with learners(model, [strategy]) as (learner,):
            short, long = (kept_for_the_backward_pass(learner, tokens) for tokens in (64, 1024))
            grown.append(long - short)
    assert grown[1] / grown[0] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("strategy", [FSDP2(), FSDP2(sequence_parallel=2), FSDP2(tensor_parallel=2)], ids=repr)
def test_shards_are_what_a_rank_holds(strategy, tiny):
    with learners(tiny, [strategy]) as (learner,):
        held = sum(master.numel() for master in learner._part.masters.masters)
        whole = sum(p.numel() for p in tiny().parameters())
        assert held <= whole / 2 + 200, "half, but for rows that do not divide and norms"
        assert torch.is_tensor(next(learner.weights())[1])
