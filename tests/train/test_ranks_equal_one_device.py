"""A learner on several ranks gives the losses and weights of one device, whatever its strategy and the split."""

import numpy as np
import pytest
import torch
from rank_examples import BUDGET, LOSSES, learners, ranks_of, train, units_for, widest_gap

import tiny_models
from penstock.config.optimizers import AdamW, AdamW8bit
from penstock.config.strategies import DDP, FSDP2, OneDevice
from penstock.core.contracts import Denominator
from penstock.models.language_model import LanguageModel
from penstock.models.packing import lay_out

pytestmark = pytest.mark.slow

SCHEDULE = {"optimizer": AdamW(weight_decay=0.01), "schedule": "cosine", "warmup": 3}
STRATEGIES = {
    "DDP": DDP(),
    "FSDP2": FSDP2(),
    "FSDP2 that keeps what it gathered": FSDP2(reshard=False),
    "tensor parallel": FSDP2(ranks=2, tensor_parallel=2),
    "sequence parallel": FSDP2(ranks=2, sequence_parallel=2),
}


two_ranks = ranks_of(2)


@pytest.mark.parametrize("algorithm", LOSSES)
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_losses_and_weights_over_20_steps(strategy, algorithm, tiny):
    loss = LOSSES[algorithm]
    batches = [units_for(algorithm, seed, tiny()) for seed in range(20)]
    counts = {len(lay_out(units, BUDGET, True)) % 2 for units in batches}
    assert counts == {0, 1}, "both even and uneven counts of micro-batches"
    with learners(tiny, [OneDevice(), strategy], **SCHEDULE) as (one, other):
        for units in batches:
            expected, found = train(one, units, loss), train(other, units, loss)
            assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
            assert found == {name: pytest.approx(value, abs=1e-5, rel=1e-4) for name, value in expected.items()}
        split = (
            isinstance(strategy, FSDP2) and strategy.tensor_parallel > 1
        )  # sums of products come in another order, which Adam magnifies
        assert widest_gap(other.weights(), one.weights()) < (5e-5 if split else 1e-5)


@pytest.mark.parametrize("strategy", [DDP(), FSDP2(), FSDP2(tensor_parallel=2), FSDP2(sequence_parallel=2)], ids=repr)
@pytest.mark.parametrize("critic", ["shared", "separate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_critics_and_bfloat16(strategy, critic, dtype, tiny):
    from learner_examples import WeightedLoss, some_units

    loss = WeightedLoss(frozenset({"logp", "entropy", "value"}))
    architecture = "gpt2" if strategy.span == 1 else "llama"
    with learners(lambda: tiny(architecture), [OneDevice(), strategy], critic=critic, dtype=dtype) as (one, other):
        for seed in range(4):
            expected, found = (train(learner, some_units(seed, (3, 1, 2)), loss) for learner in (one, other))
            close = 1e-4 if dtype == "float32" else 0.05
            assert found == {name: pytest.approx(value, abs=close, rel=close) for name, value in expected.items()}
        assert [t.dtype for _, t in other.weights()] == [t.dtype for _, t in one.weights()]
        values = [learner.score(some_units(9), frozenset({"value"}))["value"] for learner in (one, other)]
        assert all(abs(a - b).max() < close for a, b in zip(*values, strict=True))


@pytest.mark.parametrize("strategy", [FSDP2(), FSDP2(sequence_parallel=2)], ids=repr)
def test_checkpointed_activations_change_nothing_on_shards(strategy, tiny):
    loss = LOSSES["SFT"]
    with learners(tiny, [strategy, strategy]) as (plain, _):
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


@pytest.mark.parametrize("spec", [{"unfrozen_layers": 1}, {"optimizer": AdamW8bit()}, {"lora": 4}], ids=str)
def test_data_parallel_copies_train_what_one_device_trains(spec, tiny):
    from penstock.config.learner import LoRA

    if "lora" in spec:
        pytest.importorskip("peft")
        spec = {"lora": LoRA(rank=spec["lora"])}
    if "optimizer" in spec:
        pytest.importorskip("torchao")
    with learners(lambda: tiny("llama"), [OneDevice(), DDP()], **spec) as (one, other):
        for seed in range(3):
            batch = units_for("SFT", seed, tiny("llama"))
            expected, found = train(one, batch, LOSSES["SFT"]), train(other, batch, LOSSES["SFT"])
            assert found == {name: pytest.approx(value, abs=1e-4, rel=1e-4) for name, value in expected.items()}


def test_an_encoder_decoder_trains_on_copies_and_is_refused_as_shards(text):
    import tiny_t5
    from penstock.core.errors import ModelError

    def model():
        return tiny_t5.build(text, "t5")

    with learners(model, [OneDevice(), DDP()]) as (one, other):
        batch = units_for("SFT", 0, model())
        assert train(other, batch, LOSSES["SFT"])["loss"] == pytest.approx(train(one, batch, LOSSES["SFT"])["loss"], abs=1e-5)
    with pytest.raises(ModelError, match="strategy=DDP"), learners(model, [FSDP2()]):
        pass


@pytest.mark.parametrize("strategy", [FSDP2(sequence_parallel=2), FSDP2(tensor_parallel=2)], ids=repr)
def test_reward_models(strategy, text):
    from learner_examples import WeightedLoss, some_units
    from transformers import AutoModelForSequenceClassification

    def model():
        config = tiny_models.config_of("llama", len(text), num_labels=1)
        network = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        tiny_models.randomise(network)
        return LanguageModel(network.eval(), text, "score")

    loss = WeightedLoss(frozenset({"score"}))
    with learners(model, [OneDevice(), strategy]) as (one, other):
        for seed in range(3):
            expected, found = (train(learner, some_units(seed), loss) for learner in (one, other))
            assert found == {name: pytest.approx(value, abs=1e-5, rel=1e-4) for name, value in expected.items()}
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
