"""Learners on ranks beside one on one device: batches of uneven micro-batches for three algorithms, and steps on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from penstock.algos.dpo import DPO
from penstock.algos.grpo import GRPO
from penstock.algos.sft import SFT
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW
from penstock.config.strategies import DDP, FSDP2
from penstock.core.contracts import Denominator
from penstock.core.types import Metrics, Unit
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.fleet import Fleet, fleet_of
from penstock.train.learner import DeviceLearner, LearnerPlan
from penstock.train.ranks import learner_of

LOSSES = {"SFT": SFT().loss(), "DPO": DPO().loss(), "GRPO": GRPO(clip=(0.2, 0.28)).loss()}
LOGP = frozenset({"logp"})
STRATEGIES = {
    "DDP": DDP(),
    "FSDP2": FSDP2(),
    "FSDP2 that keeps what it gathered": FSDP2(reshard=False),
    "tensor parallel": FSDP2(ranks=2, tensor_parallel=2),
    "sequence parallel": FSDP2(ranks=2, sequence_parallel=2),
}
SCHEDULE = {"optimizer": AdamW(weight_decay=0.01), "schedule": "cosine", "warmup": 3}
BUDGET = 28
"""Tokens of a micro-batch: small enough that a batch makes several, of which the last ranks have one less."""


def units_for(algorithm: str, seed: int, model: LanguageModel) -> list[Unit]:
    """Labelled units of an algorithm, of ragged lengths; log-probs of other policies are near the model's first ones."""
    rng = np.random.default_rng(seed)
    sizes = {"SFT": (1,) * 7, "DPO": (2,) * 3, "GRPO": (3, 1, 4)}[algorithm]
    units = []
    for size in sizes:
        prompt = tiny_models.tokens(rng, int(rng.integers(1, 9)))
        answers = [tiny_models.tokens(rng, int(rng.integers(1, 12))) for _ in range(size)]
        units.append(tuple(tiny_models.row(prompt, answer) for answer in answers))
    logp = iter(DeviceLearner(LanguagePolicy(model), LearnerSpec(), LearnerPlan(total_steps=1)).score(units, LOGP)["logp"])

    def labelled(index: int, row: Any) -> Any:
        near_A = next(logp) + 0.1 * rng.normal(size=int(row.action_T.sum())).astype(np.float32)
        one_A = np.ones(len(near_A), np.float32)
        fields = {
            "SFT": {"weight": one_A},
            "DPO": {"reference_logp": near_A, "preferred": float(index == 0), "baseline": 0.0},
            "GRPO": {"old_logp": near_A, "advantage": float(rng.normal()) * one_A, "weight": one_A},
        }[algorithm]
        return replace(row, fields=fields)

    return [tuple(labelled(i, row) for i, row in enumerate(unit)) for unit in units]


def train(learner: Any, units: Sequence[Unit], loss: Any, budget: int = BUDGET) -> Metrics:
    """One optimizer step; metrics of the loss and of the step, but its size: shards sample other weights of a tensor."""
    for batch in lay_out(units, budget, True):
        learner.accumulate(batch, loss, Denominator.of(units))
    found = learner.flush() | learner.step()
    found.pop("update_size")
    return found


def ranks_of(count: int) -> Any:
    """A fixture of a module: as many ranks of this machine, started once for all of its tests."""

    @pytest.fixture(scope="module", autouse=True)
    def held() -> Iterator[Fleet]:
        fleet = fleet_of(count, torch.device("cpu"))
        fleet.hold()
        yield fleet
        fleet.release()

    return held


def assert_alike(one: Any, other: Any, batches: Sequence[Sequence[Unit]], loss: Any, within: float = 1e-5) -> None:
    """Steps of two learners on the same batches report the same metrics, up to ``within``, or ten times that share of each."""
    for units in batches:
        expected, found = train(one, units, loss), train(other, units, loss)
        assert found == {name: pytest.approx(value, abs=within, rel=10 * within) for name, value in expected.items()}


def batches_for(algorithm: str, seeds: Sequence[int], model: LanguageModel) -> list[list[Unit]]:
    return [units_for(algorithm, seed, model) for seed in seeds]


@contextmanager
def learners(model: Any, strategies: Sequence[Any], total_steps: int = 20, **spec: Any) -> Iterator[list[Any]]:
    """A learner for each strategy over the same first weights (``model()`` gives them); their ranks end with the block."""
    made: list[Any] = []
    try:
        for strategy in strategies:
            given = LearnerSpec(**{"learning_rate": 1e-3, **spec, "strategy": strategy})
            made.append(learner_of(LanguagePolicy(model()), given, LearnerPlan(total_steps=total_steps)))
        yield made
    finally:
        for learner in made:
            learner.close()


def doubled(model: LanguageModel) -> LanguageModel:
    """A model whose parameters are made float64; buffers (rotary frequencies) stay as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.double()
    return model


def widest_gap(found: Any, expected: Any) -> float:
    """The largest difference between two streams of weights of the same names."""
    ours, theirs = dict(found), dict(expected)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in theirs)
