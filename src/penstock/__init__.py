"""Penstock: reinforcement learning from human and verifiable feedback on language models.

``penstock.train(run)`` carries out a :class:`Run`; ``penstock.rows`` and ``penstock.reward`` make data and rewards out of
your own functions. Names are imported when they are first used, so that ``import penstock`` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.algos import (
        AWAC,
        CISPO,
        CPO,
        DPO,
        DPPO,
        GDPO,
        GMPO,
        GPG,
        GRPO,
        ILQL,
        KTO,
        OPO,
        ORPO,
        PPO,
        REBEL,
        REINFORCE,
        RFT,
        SAPO,
        SFT,
        TOPR,
        BradleyTerry,
        ClipCov,
        ClippedRatio,
        Distillation,
        Divergence,
        EntropyBonus,
        ImportanceWeight,
        KLCov,
        KLPenalty,
        LabelScore,
        LeaveOneOut,
        OnlineDPO,
        PassAtK,
        PolicyGradient,
        ProcessReward,
        ReinforcePlusPlus,
        ReMax,
        SafePPO,
        SimPO,
        cispo,
        clip_cov,
        dapo,
        dppo,
        dr_grpo,
        gmpo,
        gspo,
        icepop,
        kl_cov,
        pipeline_rl,
        sapo,
        topr,
    )
    from penstock.api import Result, reward, rows, train
    from penstock.core.errors import PenstockError
    from penstock.core.learner import LearnerSpec, LoRA
    from penstock.core.run import (
        CheckpointSpec,
        DataSpec,
        EvaluationSpec,
        ModelSpec,
        Offline,
        Online,
        RewardSpec,
        Run,
    )
    from penstock.core.types import Sampling

_HOMES = {
    "penstock.algos": (
        "AWAC",
        "CISPO",
        "CPO",
        "DPO",
        "DPPO",
        "GDPO",
        "GMPO",
        "GPG",
        "GRPO",
        "ILQL",
        "KTO",
        "OPO",
        "ORPO",
        "PPO",
        "REBEL",
        "REINFORCE",
        "RFT",
        "SAPO",
        "SFT",
        "TOPR",
        "BradleyTerry",
        "ClipCov",
        "ClippedRatio",
        "Distillation",
        "Divergence",
        "EntropyBonus",
        "ImportanceWeight",
        "KLCov",
        "KLPenalty",
        "LabelScore",
        "LeaveOneOut",
        "OnlineDPO",
        "PassAtK",
        "PolicyGradient",
        "ProcessReward",
        "ReMax",
        "ReinforcePlusPlus",
        "SafePPO",
        "SimPO",
        "cispo",
        "clip_cov",
        "dapo",
        "dppo",
        "dr_grpo",
        "gmpo",
        "gspo",
        "icepop",
        "kl_cov",
        "pipeline_rl",
        "sapo",
        "topr",
    ),
    "penstock.api": ("Result", "reward", "rows"),
    "penstock.core.errors": ("PenstockError",),
    "penstock.core.learner": ("LearnerSpec", "LoRA"),
    "penstock.core.run": (
        "CheckpointSpec",
        "DataSpec",
        "EvaluationSpec",
        "ModelSpec",
        "Offline",
        "Online",
        "RewardSpec",
        "Run",
    ),
    "penstock.core.types": ("Sampling",),
}

__all__ = [
    "AWAC",
    "CISPO",
    "CPO",
    "DPO",
    "DPPO",
    "GDPO",
    "GMPO",
    "GPG",
    "GRPO",
    "ILQL",
    "KTO",
    "OPO",
    "ORPO",
    "PPO",
    "REBEL",
    "REINFORCE",
    "RFT",
    "SAPO",
    "SFT",
    "TOPR",
    "BradleyTerry",
    "CheckpointSpec",
    "ClipCov",
    "ClippedRatio",
    "DataSpec",
    "Distillation",
    "Divergence",
    "EntropyBonus",
    "EvaluationSpec",
    "ImportanceWeight",
    "KLCov",
    "KLPenalty",
    "LabelScore",
    "LearnerSpec",
    "LeaveOneOut",
    "LoRA",
    "ModelSpec",
    "Offline",
    "Online",
    "OnlineDPO",
    "PassAtK",
    "PenstockError",
    "PolicyGradient",
    "ProcessReward",
    "ReMax",
    "ReinforcePlusPlus",
    "Result",
    "RewardSpec",
    "Run",
    "SafePPO",
    "Sampling",
    "SimPO",
    "cispo",
    "clip_cov",
    "dapo",
    "dppo",
    "dr_grpo",
    "gmpo",
    "gspo",
    "icepop",
    "kl_cov",
    "pipeline_rl",
    "reward",
    "rows",
    "sapo",
    "topr",
    "train",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Train(types.ModuleType):
    """The package of learners, ``penstock.train``, which is also the verb: calling it carries a run out."""

    def __call__(self, model: Any, **options: Any) -> Any:
        from penstock.api import train

        return train(model, **options)


# The import system binds a subpackage to its name in its parent, so a function of that name would be overwritten.
importlib.import_module("penstock.train")
sys.modules["penstock.train"].__class__ = _Train
