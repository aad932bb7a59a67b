"""Where routes cannot be replayed, a run is refused before it begins, and the message says what to set."""

from dataclasses import replace

import pytest

from penstock.algos import GRPO, SFT
from penstock.config.engines import VLLM, Embedded, Served, SGLang
from penstock.config.keeping import RolesSpec
from penstock.config.learner import LearnerSpec
from penstock.config.run import DataSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.config.strategies import FSDP2
from penstock.core.errors import SpecError

DATA = DataSpec(source="rows.jsonl")
REPLAY = LearnerSpec(replay_routes=True)
STAGE = Online(
    name="grpo", model=ModelSpec(), data=DATA, rewards=(RewardSpec(function="exact_match"),), algorithm=GRPO(), learner=REPLAY
)


@pytest.mark.parametrize("engine", [VLLM(), SGLang(), Served()], ids=lambda engine: type(engine).__name__)
def test_an_engine_that_does_not_say_its_routes_is_refused(engine):
    def run_of(stage):
        return Run(name="run", stages=(stage,), runtime="procs", roles=RolesSpec(engine=engine))

    assert run_of(replace(STAGE, learner=LearnerSpec())).stages
    with pytest.raises(
        SpecError,
        match=rf"^grpo: {type(engine).__name__} does not say which experts it chose; set roles\.engine=Embedded, or "
        r"learner\.replay_routes=false$",
    ):
        run_of(STAGE)


def test_the_embedded_engine_says_them():
    assert Run(name="run", stages=(STAGE,), roles=RolesSpec(engine=Embedded())).stages[0].replays_routes


def test_an_offline_stage_has_none():
    with pytest.raises(SpecError, match=r"^sft: nobody recorded the routes of given texts; set learner\.replay_routes=false"):
        Offline(name="sft", model=ModelSpec(), data=DATA, algorithm=SFT(), learner=REPLAY)


@pytest.mark.parametrize("split", [{"tensor_parallel": 2}, {"sequence_parallel": 2}], ids=str)
def test_a_split_micro_batch_is_refused(split):
    with pytest.raises(SpecError, match=r"^replay_routes names the experts of all tokens .* or replay_routes=false$"):
        LearnerSpec(replay_routes=True, strategy=FSDP2(**split))


def test_frozen_blocks_are_refused():
    with pytest.raises(SpecError, match=r"^replay_routes: .* on the frozen blocks .*; set unfrozen_layers=-1$"):
        LearnerSpec(replay_routes=True, unfrozen_layers=1)
