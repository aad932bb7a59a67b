"""A state of a learner on ranks resumes on any other number of ranks, and through the checkpoint store."""

import pytest
import torch
from rank_examples import LOSSES, assert_alike, batches_for, learners, train, units_for, widest_gap

from learner_examples import saved
from penstock.ckpt.store import CheckpointStore, Position
from penstock.config.strategies import DDP, FSDP2, OneDevice

SHARDED = [DDP(), FSDP2(), FSDP2(tensor_parallel=2), FSDP2(sequence_parallel=2)]


@pytest.mark.parametrize("strategy", SHARDED, ids=repr)
@pytest.mark.parametrize("resumed", [OneDevice(), "1 rank", "3 ranks"], ids=str)
def test_a_checkpoint_of_2_ranks_resumes_on_another_number(strategy, resumed, tiny):
    loss = LOSSES["SFT"]
    if isinstance(resumed, str):
        resumed = type(strategy)(ranks=int(resumed[0]))
    batches = batches_for("SFT", range(4), tiny())
    with learners(tiny, [strategy]) as (two,):
        for units in batches[:2]:
            train(two, units, loss)
        state = saved(two)
        expected = [train(two, units, loss) for units in batches[2:]]
        weights = {name: tensor.clone() for name, tensor in two.weights()}
    with learners(tiny, [resumed]) as (other,):
        other.load_state(state)
        for units, metrics in zip(batches[2:], expected, strict=True):
            found = train(other, units, loss)
            assert found == {name: pytest.approx(value, abs=1e-5, rel=1e-5) for name, value in metrics.items()}
        assert widest_gap(other.weights(), weights.items()) < 5e-5


@pytest.mark.parametrize("strategy", [FSDP2(), FSDP2(sequence_parallel=2)], ids=repr)
def test_one_device_resumes_on_shards(strategy, tiny):
    loss = LOSSES["SFT"]
    with learners(tiny, [OneDevice(), strategy]) as (one, two):
        train(one, units_for("SFT", 0, tiny()), loss)
        two.load_state(saved(one))
        assert_alike(one, two, batches_for("SFT", range(1, 4), tiny()), loss)
        assert widest_gap(two.weights(), one.weights()) < 1e-5


def test_the_store_writes_shards_array_by_array_and_gives_them_back(tiny, tmp_path):
    store = CheckpointStore(tmp_path)
    with learners(tiny, [FSDP2(), OneDevice()]) as (learner, one):
        for each in (learner, one):
            train(each, units_for("SFT", 0, tiny()), LOSSES["SFT"])
        store.save(Position(0, "sft", 1), {"learner": learner.state()})
        store.save(Position(0, "sft", 2), {"learner": one.state()})
        newest = store.load_newest()
        older = CheckpointStore(tmp_path)
        found = {entry.position.step: entry for entry in older.entries()}
        assert newest is not None
        assert set(found) == {1, 2}
        assert newest.states["learner"].arrays.keys() == learner.state().arrays.keys()
        one.load_state(saved(learner))
        assert widest_gap(learner.weights(), one.weights()) == 0.0
    assert torch.is_tensor(newest.states["learner"].arrays["noise"])
