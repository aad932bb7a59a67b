"""What lands where, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.algos import GRPO, BradleyTerry, KLPenalty
from penstock.config.engines import VLLM
from penstock.config.keeping import RolesSpec
from penstock.config.learner import LearnerSpec
from penstock.config.placement import Bundle, Bundles, Colocate, Placed, Resources, Split
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.config.strategies import DDP
from penstock.core.errors import SpecError

DATA = DataSpec(source="rows.jsonl")
SPLIT, ONE = Split(), LearnerSpec()


def bundles(made: Run) -> Bundles:
    return made.roles.placement.bundles(made)


def run(placement: Any = SPLIT, device: str = "cpu", learner: LearnerSpec = ONE, **roles: Any) -> Run:
    model = ModelSpec(preset="1m")
    judge = Offline(name="judge", model=model, data=DATA, algorithm=BradleyTerry(), batch=4, steps=3)
    grpo = Online(
        name="grpo",
        model=model,
        data=DATA,
        rewards=(RewardSpec(function="model:@judge"),),
        algorithm=GRPO(clip=(0.2, 0.28), kl=KLPenalty(place="loss", estimator="k3", coefficient=0.1)),
        evaluation=EvaluationSpec(data=DATA),
        learner=learner,
    )
    spread = RolesSpec(placement=placement, **roles)
    return Run(name="run", stages=(judge, grpo), runtime="ray", device=device, roles=spread)  # type: ignore[arg-type]


def shown(made: Run) -> list[tuple[list[str], dict[str, float]]]:
    return [(list(bundle.processes), bundle.total) for bundle in bundles(made).bundles]


def test_split_gives_every_process_a_bundle_with_a_core() -> None:
    made = run(generators=2, references=1, evaluator=True)
    one = {"CPU": 1.0}
    names = ["learner", "generator-0", "generator-1", "reward-0", "reference-0", "evaluator-0"]
    assert shown(made) == [([name], one) for name in names]
    assert bundles(made).strategy == "SPREAD"


def test_roles_that_no_stage_needs_take_no_room() -> None:
    made = run(references=1, evaluator=True)
    bare = replace(made.stages[1], algorithm=GRPO(clip=(0.2, 0.28)), evaluation=None)  # type: ignore[call-arg]
    assert [names for names, _ in shown(replace(made, stages=(made.stages[0], bare)))] == [
        ["learner"], ["generator-0"], ["reward-0"]
    ]  # fmt: skip
    assert [names for names, _ in shown(replace(made, stages=made.stages[:1]))] == [["learner"]]


def test_colocated_generators_share_the_learners_node_and_half_of_its_accelerator() -> None:
    assert shown(run(Colocate(), generators=2)) == [
        (["learner", "generator-0", "generator-1"], {"CPU": 3.0}),
        (["reward-0"], {"CPU": 1.0}),
    ]
    plan = bundles(run(Colocate(), "cuda", generators=2))
    assert plan.bundles[0].total == {"CPU": 3.0, "GPU": 1.0}
    assert {name: resources.gpus for name, resources in plan.bundles[0].processes.items()} == {
        "learner": 0.5, "generator-0": 0.25, "generator-1": 0.25
    }  # fmt: skip


def test_on_accelerators_every_process_that_computes_takes_its_own() -> None:
    made = run(device="cuda", learner=LearnerSpec(strategy=DDP(ranks=4)), engine=VLLM(tensor_parallel=2))
    assert {names[0]: total.get("GPU", 0.0) for names, total in shown(made)} == {
        "learner": 4.0, "generator-0": 2.0, "reward-0": 1.0
    }  # fmt: skip


def test_several_accelerators_cannot_be_shared() -> None:
    with pytest.raises(SpecError, match=r"Colocate shares one accelerator, and learner takes several"):
        bundles(run(Colocate(), "cuda", learner=LearnerSpec(strategy=DDP(ranks=4))))


def test_a_file_says_resources_and_who_shares_a_node() -> None:
    places = Placed(
        roles={
            "learner": Resources(cpus=4, node="big"),
            "reward": Resources(cpus=0.5, node="big"),
            "generator": Resources(cpus=2, gpus=1, custom={"fast": 1}),
        }
    )
    made = run(places, generators=2, references=1)
    assert shown(made) == [
        (["learner", "reward-0"], {"CPU": 4.5}),
        (["generator-0"], {"CPU": 2.0, "GPU": 1.0, "fast": 1.0}),
        (["generator-1"], {"CPU": 2.0, "GPU": 1.0, "fast": 1.0}),
        (["reference-0"], {"CPU": 1.0}),
    ]
    assert bundles(made).find("reward-0") == (0, Resources(cpus=0.5, node="big"))
    assert Bundle({"reward-0": Resources(cpus=0)}).total == {}, "a bundle may take nothing"
    with pytest.raises(SpecError, match="no process generator-7"):
        bundles(made).find("generator-7")


def test_ranks_stay_with_the_learner_unless_the_file_places_them() -> None:
    ranks = LearnerSpec(strategy=DDP(ranks=3))
    beside = run(Placed(roles={"learner": Resources(gpus=3)}), "cuda", ranks)
    assert [names for names, _ in shown(beside)][:2] == [["learner"], ["generator-0"]]
    apart = run(Placed(roles={"rank": Resources(gpus=1, custom={"fast": 1})}), "cuda", ranks)
    assert shown(apart)[:3] == [
        (["learner"], {"CPU": 1.0, "GPU": 1.0}),
        (["rank-1"], {"CPU": 1.0, "GPU": 1.0, "fast": 1.0}),
        (["rank-2"], {"CPU": 1.0, "GPU": 1.0, "fast": 1.0}),
    ]


def test_a_learner_on_one_device_has_no_ranks_to_place() -> None:
    assert [names for names, _ in shown(run(Placed(roles={"rank": Resources()})))][:2] == [["learner"], ["generator-0"]]
