"""Four ranks that split tokens, matrices and data at once give the losses and weights of one device, in float64."""

import pytest
from rank_examples import LOSSES, assert_alike, batches_for, doubled, learners, ranks_of, train, units_for, widest_gap

import tiny_models
from learner_examples import saved
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.strategies import FSDP2, OneDevice
from penstock.core.errors import ModelError
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import LearnerPlan
from penstock.train.ranks import learner_of

STRATEGIES = {
    "2 copies of 2 token splits": FSDP2(ranks=4, sequence_parallel=2),
    "2 copies of 2 matrix splits": FSDP2(ranks=4, tensor_parallel=2),
    "tokens and matrices": FSDP2(ranks=4, sequence_parallel=2, tensor_parallel=2),
    "more token splits than key-value heads": FSDP2(ranks=4, sequence_parallel=4),
}


four_ranks = ranks_of(4)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_losses_and_weights_over_8_steps(strategy, tiny):
    with learners(lambda: doubled(tiny("llama")), [OneDevice(), strategy], optimizer=AdamW(weight_decay=0.01)) as (one, other):
        assert_alike(one, other, batches_for("DPO", range(8), tiny("llama")), LOSSES["DPO"], within=1e-10)
        assert widest_gap(other.weights(), one.weights()) < 1e-10


def test_all_splits_at_once_resume_on_one_device(tiny):
    loss, strategy = LOSSES["SFT"], FSDP2(ranks=4, sequence_parallel=2, tensor_parallel=2)
    with learners(lambda: tiny("llama"), [strategy, OneDevice()]) as (four, one):
        train(four, units_for("SFT", 0, tiny("llama")), loss)
        one.load_state(saved(four))
        units = units_for("SFT", 1, tiny("llama"))
        assert train(four, units, loss)["loss"] == pytest.approx(train(one, units, loss)["loss"], abs=1e-5)


def test_heads_that_the_ranks_do_not_divide_are_refused_and_the_ranks_go_on(tiny, text):
    three_heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48}
    with pytest.raises(ModelError, match=r"3 attention heads; set one of 1, 3"):
        learner_of(
            LanguagePolicy(tiny_models.build("llama", text, **three_heads)),
            LearnerSpec(strategy=FSDP2(ranks=4, sequence_parallel=2)),
            LearnerPlan(total_steps=1),
        )
    with learners(tiny, [FSDP2(ranks=4, sequence_parallel=2)]) as (learner,):
        assert train(learner, units_for("SFT", 0, tiny()), LOSSES["SFT"])["loss"] > 0
