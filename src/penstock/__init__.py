"""Penstock: reinforcement learning from human and verifiable feedback on language models.

``penstock.train`` carries out a :class:`Run`, or makes one of a model and data; ``penstock.check`` tries it on a few rows;
``penstock.rows``, ``penstock.reward`` and
``penstock.environment`` make data, rewards and environments out of your own code; algorithms are there by their names
(``penstock.DPO``). Names are imported when they are first used, so that ``import penstock`` costs nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

# Threads of a matrix product wait for one another by spinning, about a millisecond by default. Where other work wants the
# cores that is time taken from the thread they wait for: training was 5 to 18 times slower. A thirtieth of that is long enough
# for a quiet machine (docs/log.md). The OpenMP library reads this when torch loads it; whatever the user has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from penstock.algos import *  # noqa: F403 - for type checkers; __getattr__ finds them
    from penstock.api import Result, check, environment, reward, rows, train
    from penstock.config.run import (
        CheckpointSpec,
        DataSpec,
        EvaluationSpec,
        LearnerSpec,
        ModelSpec,
        Offline,
        Online,
        RewardSpec,
        Run,
    )
    from penstock.core.errors import PenstockError
    from penstock.core.types import Sampling
    from penstock.envs.env import Env, Turn
    from penstock.envs.spec import EnvironmentSpec

__all__ = [
    "CheckpointSpec",
    "DataSpec",
    "Env",
    "EnvironmentSpec",
    "EvaluationSpec",
    "LearnerSpec",
    "ModelSpec",
    "Offline",
    "Online",
    "PenstockError",
    "Result",
    "RewardSpec",
    "Run",
    "Sampling",
    "Turn",
    "check",
    "environment",
    "reward",
    "rows",
    "train",
]

_HOMES = {
    "Result": "penstock.api",
    "check": "penstock.api",
    "environment": "penstock.api",
    "reward": "penstock.api",
    "rows": "penstock.api",
    "PenstockError": "penstock.core.errors",
    "Sampling": "penstock.core.types",
    "Env": "penstock.envs.env",
    "Turn": "penstock.envs.env",
    "EnvironmentSpec": "penstock.envs.spec",
}
"""Where names come from, if not from ``penstock.config.run``."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "penstock.config.run")), name)
    algorithms = importlib.import_module("penstock.algos")
    if name in algorithms.__all__:
        return getattr(algorithms, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *importlib.import_module("penstock.algos").__all__})


class _Train(types.ModuleType):
    """The package of learners, ``penstock.train``, which is also the verb: calling it carries a run out."""

    def __call__(self, model: Any, **options: Any) -> Any:
        from penstock.api import train

        return train(model, **options)


# The import system binds a subpackage to its name in its parent, so a function of that name would be overwritten.
importlib.import_module("penstock.train")
sys.modules["penstock.train"].__class__ = _Train
