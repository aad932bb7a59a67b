"""The ranks of a learner as processes: what they say to each other, how they fail, and that they end with their learner."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
import torch
from rank_examples import LOSSES, learners, train, units_for

import tiny_models
from penstock.algos.grpo import GRPO
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.strategies import DDP, FSDP2, DeepSpeed
from penstock.core.contracts import Denominator
from penstock.core.errors import ModelError, NonFiniteError, RoleError, SpecError, TrainingError
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import idle_batch, lay_out
from penstock.models.presets import preset_shape
from penstock.net.blocking import BlockingLink
from penstock.plan.memory import footprint, rank_footprint
from penstock.train import fleet as fleets
from penstock.train.fsdp import check_plan
from penstock.train.launcher import Launcher
from penstock.train.learner import LearnerPlan
from penstock.train.ranks import learner_of


@dataclass(frozen=True)
class Loss:
    """A loss of the tests; ``fails`` on batches of as many rows."""

    needs: frozenset = frozenset({"logp"})
    scale: float = 1.0
    fails: int = 0
    kills: bool = False

    def __call__(self, outputs, fields, batch, denominator):
        if self.kills and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(batch.unit_B) == self.fails:
            raise TrainingError(f"{self.fails} rows are one too many")
        loss = self.scale * outputs["logp"].sum() / denominator.tokens
        return loss, {"rows": torch.tensor(float(len(batch.unit_B)))}


@pytest.fixture
def units(tiny):
    return units_for("SFT", 0, tiny())


@pytest.mark.parametrize(
    "value",
    [GRPO().loss(), LearnerSpec(strategy=FSDP2()), idle_batch, frozenset({"x", "y"})],
    ids=lambda value: type(value).__name__,
)
def test_what_ranks_are_asked_with_travels_and_comes_back_as_it_was(value):
    assert there_and_back(value) == value


def test_a_batch_travels():
    found = there_and_back(idle_batch())
    assert found.gather_BT.tolist() == [[0, 1]]
    assert found.row_ids == (0,)


def there_and_back(value):
    here, there = (BlockingLink(end, "rank") for end in socket.socketpair())
    here.send(value)
    found = there.receive(5.0)
    here.close()
    there.close()
    return found


@pytest.mark.parametrize(
    ("strategy", "spec", "fix"),
    [
        (DDP(), {"dropout": 0.1}, "OneDevice"),
        (FSDP2(), {"token_dropout": 0.1}, "OneDevice"),
        (FSDP2(), {"lora": LoRA()}, "strategy=DDP"),
        (DeepSpeed(), {"unfrozen_layers": 1}, "strategy=DDP"),
        (FSDP2(), {"optimizer": AdamW8bit()}, "optimizer=AdamW"),
        (DDP(), {"lora": LoRA(quantize="nf4")}, "quantize=none"),
    ],
)
def test_what_ranks_do_not_compute_is_refused_by_the_spec(strategy, spec, fix):
    with pytest.raises(SpecError, match=fix):
        LearnerSpec(strategy=strategy, **spec)


def test_ranks_that_tensor_does_not_divide_are_refused():
    with pytest.raises(SpecError, match="does not divide"):
        FSDP2(ranks=3, tensor_parallel=2)


def test_threads_are_shared_unless_they_were_set(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert Launcher().threads(4) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert Launcher().threads(4) == 3


def test_micro_batches_wait_until_each_copy_has_one(tiny, units, monkeypatch):
    with learners(tiny, [DDP()]) as (learner,):
        batches, loss = lay_out(units, 24, True)[:3], Loss()
        rows = [len(batch.row_ids) for batch in batches]
        asked, call = [], learner.fleet.call
        monkeypatch.setattr(learner.fleet, "call", lambda verb, *given: asked.append(verb) or call(verb, *given))
        for batch in batches:
            learner.accumulate(batch, loss, Denominator.of(units))
        assert asked == ["accumulate"]
        assert learner.flush()["rows"] == sum(rows)
        assert asked == ["accumulate", "accumulate", "flush"]
        assert learner.flush() == {}


@pytest.mark.parametrize("strategy", [DDP(), FSDP2()], ids=repr)
def test_a_loss_that_one_rank_refuses_is_refused_on_all_and_the_next_step_is_right(strategy, tiny, units):
    batches = lay_out(units, 24, True)
    odd = len(batches[1].row_ids)
    with learners(tiny, [strategy, strategy]) as (learner, other):
        before = {name: tensor.clone() for name, tensor in learner.weights()}
        learner.accumulate(batches[0], Loss(fails=odd), Denominator.of(units))
        learner.accumulate(batches[1], Loss(fails=odd), Denominator.of(units))
        with pytest.raises(TrainingError, match="one too many"):
            learner.flush()
        with pytest.raises(NonFiniteError):
            train(learner, units, Loss(scale=float("inf")))
        learner._waiting.clear()
        assert all(torch.equal(tensor, before[name]) for name, tensor in learner.weights())
        assert train(learner, units, LOSSES["SFT"]) == train(other, units, LOSSES["SFT"])


@pytest.mark.parametrize("strategy", [DDP(), FSDP2()], ids=repr)
def test_a_rank_that_is_killed_in_a_verb_is_named_and_nothing_hangs(strategy, tiny, units):
    with learners(tiny, [strategy]) as (learner,):
        with pytest.raises(RoleError, match=r"rank 1 of 2 is gone .killed by signal 9. in (accumulate|flush)"):
            train(learner, units, Loss(kills=True))
        with pytest.raises(RoleError, match="rank 1 of 2 is gone"):
            learner.step()
    with learners(tiny, [strategy]) as (learner,):
        assert train(learner, units, LOSSES["SFT"])["gradient_norm"] > 0, "new ranks are started for the next learner"


def test_a_fleet_that_is_closed_again_leaves_its_successor_alone():
    first = fleets.Fleet(2, torch.device("cpu"))
    first.close()
    second = fleets.Fleet(2, torch.device("cpu"))
    first.close()
    assert torch.distributed.is_initialized()
    assert second.call("drop", {"learner": 0}) == [None, None]
    second.close()


def test_a_rank_that_is_killed_between_verbs_is_named(tiny, units):
    with learners(tiny, [DDP()]) as (learner,):
        learner.fleet.handles[0].process.kill()
        learner.fleet.handles[0].process.wait()
        with pytest.raises(RoleError, match="rank 1 of 2 is gone"):
            train(learner, units, LOSSES["SFT"])


def test_a_rank_that_stands_still_is_named_at_the_deadline(tiny, units):
    fleet = fleets.Fleet(2, torch.device("cpu"), seconds=3.0)
    fleets._current = fleet
    with learners(tiny, [DDP()]) as (learner,):
        process = fleet.handles[0].process
        process.send_signal(signal.SIGSTOP)
        waker = threading.Timer(8.0, process.send_signal, (signal.SIGCONT,))
        waker.start()
        with pytest.raises(RoleError, match="rank"):
            train(learner, units, LOSSES["SFT"])
        waker.join()
    assert fleet.broken


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_learners_process(number, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, time\n"
        "from penstock.train.fleet import fleet_of\n"
        "if __name__ == '__main__':\n"
        "    fleet = fleet_of(2, torch.device('cpu'))\n"
        "    print(fleet.handles[0].process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        watched = os.pidfd_open(rank)
        process.send_signal(number)
        process.wait(30)
    assert select.select([watched], [], [], 30)[0], "the rank is gone"
    os.close(watched)


def test_an_architecture_without_a_plan_is_refused_by_name(tiny):
    with pytest.raises(ModelError, match="no plan that splits gpt2"):
        check_plan(tiny("gpt2").config, FSDP2(tensor_parallel=2))
    with pytest.raises(ModelError, match="num_key_value_heads=2"):
        check_plan(tiny("llama").config, FSDP2(ranks=4, tensor_parallel=4))
    assert check_plan(tiny("qwen2").config, FSDP2(tensor_parallel=2)) is None


def test_rank_0_keeps_no_whole_model_where_nobody_computes_with_it(tiny, units):
    with learners(tiny, [FSDP2()]) as (keeping,):
        spec = keeping.spec
        giving = learner_of(LanguagePolicy(tiny()), spec, LearnerPlan(total_steps=20, whole=False))
        try:
            for learner in (keeping, giving):
                train(learner, units, LOSSES["SFT"])
            assert {p.device.type for p in giving.model.parameters()} == {"meta"}
            assert {p.device.type for p in keeping.model.parameters()} == {"cpu"}
            expected = {name: tensor.clone() for name, tensor in keeping.weights()}
            assert all(torch.equal(tensor, expected[name]) for name, tensor in giving.weights())
            assert {p.device.type for p in giving.model.parameters()} == {"meta"}, "published tensor by tensor"
            giving.refresh()
            assert all(torch.equal(tensor, expected[name]) for name, tensor in giving.model.policy_weights())
            assert train(giving, units, LOSSES["SFT"]) == train(keeping, units, LOSSES["SFT"])
        finally:
            giving.close()


def test_a_learner_of_another_size_waits_for_the_ranks_to_be_given_up(tiny):
    with learners(tiny, [DDP()]), pytest.raises(TrainingError, match="2 ranks is still in use"):
        learner_of(LanguagePolicy(tiny()), LearnerSpec(strategy=DDP(ranks=3)), LearnerPlan(total_steps=1))


def test_tokens_of_the_empty_micro_batch_are_valid_in_any_vocabulary():
    assert idle_batch().tokens_N.max() < tiny_models.CONTEXT


def test_each_rank_holds_its_share_of_masters_gradients_and_moments():
    shape = preset_shape("1m")
    one, number = footprint(shape, LearnerSpec()), float(shape.parameters)
    assert rank_footprint(shape, LearnerSpec(strategy=DDP(ranks=4))) == one
    for strategy in (FSDP2(ranks=4), DeepSpeed(ranks=4, stage=2), DeepSpeed(ranks=4)):
        each = rank_footprint(shape, LearnerSpec(strategy=strategy))
        assert (each.masters, each.gradients, each.moments) == (number, number, 2 * number), "4, 4 and 8 bytes over 4 ranks"
    shards, rows = (rank_footprint(shape, LearnerSpec(strategy=FSDP2(ranks=4, tensor_parallel=tensor))) for tensor in (1, 2))
    assert rows.weights == shards.weights / 2, "of what is gathered to compute: half of each matrix and of the vocabulary"
    whole, shards = (rank_footprint(shape, LearnerSpec(strategy=DeepSpeed(ranks=4, stage=stage))).weights for stage in (2, 3))
    assert shards < whole == 4 * number
