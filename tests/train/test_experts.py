"""The load-balancing loss of a mixture of experts is that of its type in transformers, over real tokens."""

import numpy as np
import pytest
import torch

import architectures
import naive
import tiny_models
from learner_examples import WeightedLoss, gradients, learner_of
from penstock.config.learner import LearnerSpec
from penstock.config.strategies import FSDP2
from penstock.core.contracts import Denominator
from penstock.core.errors import ModelError, SpecError

TYPES = ("mixtral", "qwen3_moe", "gpt_oss", "olmoe", "granitemoe", "jetmoe")


def one_row():
    rng = np.random.default_rng(0)
    return tiny_models.row(tiny_models.tokens(rng, 9, 280), tiny_models.tokens(rng, 12, 280), weight=np.zeros(12, np.float32))


def both(model, checkpointing=False):
    """Gradients of the balance alone, weight 0.5, by transformers and by a learner, and both values."""
    network, row = naive.plain(model), one_row()
    aux = network(input_ids=torch.from_numpy(row.tokens_T.astype(np.int64))[None], output_router_logits=True).aux_loss
    (0.5 * aux).backward()
    learner = learner_of(model, router_loss=0.5, gradient_checkpointing=checkpointing)
    (batch,) = learner.policy.lay_out([(row,)], 100)
    learner.accumulate(batch, WeightedLoss(), Denominator.of([(row,)]))
    return gradients(network), gradients(model.network), float(aux.detach()), learner.flush()["router_balance"]


@pytest.mark.parametrize("model_type", TYPES)
def test_the_balance_and_its_gradients_are_those_of_transformers(model_type, text):
    expected, found, aux, balance = both(architectures.built(model_type, text))
    assert balance == pytest.approx(aux, rel=1e-4)
    moved = {name: gradient for name, gradient in expected.items() if gradient.abs().max() > 1e-7}
    assert any("router" in name or "gate" in name for name in moved)
    for name, gradient in moved.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3, msg=name)


def test_the_balance_is_the_same_with_gradient_checkpointing(text):
    _, plain, *_ = both(architectures.built("mixtral", text))
    _, again, *_ = both(architectures.built("mixtral", text), checkpointing=True)
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, msg=name)


def unweighted(row):
    return tiny_models.row(row.tokens_T[:9], row.tokens_T[9:], weight=np.zeros(len(row.tokens_T) - 9, np.float32))


def test_micro_batches_are_weighted_by_their_rows(text):
    learner = learner_of(architectures.built("mixtral", text), router_loss=1.0)
    units = [tuple(map(unweighted, architectures.rows())), (one_row(),)]
    batches = learner.policy.lay_out(units, 60)
    assert [len(batch.unit_B) for batch in batches] == [3, 1]

    def balances(of):
        found = []
        for index, batch in enumerate(batches):
            learner.accumulate(batch, WeightedLoss(), of(index))
            found.append(learner.flush()["router_balance"])
        return found

    alone = balances(lambda index: Denominator.of([units[index]]))
    np.testing.assert_allclose(balances(lambda _: Denominator.of(units)), [alone[0] * 3 / 4, alone[1] / 4], rtol=1e-6)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("llama", "has no experts to balance"), ("deepseek_v3", "no load-balancing loss of its own in transformers")],
)
def test_a_model_without_such_a_loss_is_refused(model_type, reason, text):
    with pytest.raises(ModelError, match=reason):
        learner_of(architectures.built(model_type, text), router_loss=0.1)


def test_a_micro_batch_that_is_split_over_ranks_cannot_be_balanced():
    with pytest.raises(SpecError, match="router_loss balances the tokens of a whole micro-batch"):
        LearnerSpec(router_loss=0.1, strategy=FSDP2(ranks=2, sequence_parallel=2))
