"""Algorithms: pure functions, and one spec per algorithm that puts them together. Importing this package imports no torch.

Three rules hold for all of them:

- **Shares add up.** A loss and its metrics come divided by the *batch's* counts, so those of micro-batches and ranks are
  added, never averaged. The one exception is a metric whose name begins with ``max/``: it is combined by maximum.
- **A row's ``action_T`` is what is trained on**, and denominators count exactly the units, rows and actions that
  ``label`` or ``rows`` gave back. A sample that failed is in none of them.
- **What is undefined is refused**, with an error that names it; a single sample has no group mean.

To add an algorithm, write one file: a spec with ``label`` (or ``rows``) and ``compute_loss``, torch imported inside that
call. Bounds of a number are its annotation (``Positive``, ``Share`` and others of ``config/spec.py``). ``rloo.py`` (judged
against siblings), ``ppo.py`` (a loss of its own) and ``bradley_terry.py`` (from data) are the patterns to follow.
``core/algorithm.py`` says what an algorithm is asked; a column, an output or a head that is not there yet is registered by the
file that brings it.
"""

from penstock.algos.awac import AWAC
from penstock.algos.baselines import GDPO, GPG, OPO, PKPO, PassAtK, ReMax
from penstock.algos.binary_reward import BinaryRewardModel
from penstock.algos.bradley_terry import BradleyTerry
from penstock.algos.compositions import (
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
from penstock.algos.denoising import Denoise, ddpo, ddpo_sf, exact_kl, flow_grpo, picture_of
from penstock.algos.diffusion_dpo import DiffusionDPO
from penstock.algos.diffusion_rft import DiffusionRFT
from penstock.algos.distillation import Distillation, Divergence
from penstock.algos.dpo import DPO
from penstock.algos.draft import DRaFT
from penstock.algos.entropy import EntropyBonus
from penstock.algos.grpo import GRPO
from penstock.algos.ilql import ILQL
from penstock.algos.importance_weights import ImportanceWeight
from penstock.algos.kl import KLPenalty
from penstock.algos.kto import KTO
from penstock.algos.labels import label_metrics
from penstock.algos.nft import DiffusionNFT
from penstock.algos.objectives import CISPO, DPPO, GMPO, SAPO, TOPR, ClipCov, ClippedRatio, GuardedRatio, KLCov, PolicyGradient
from penstock.algos.off_policy import DQN, SAC
from penstock.algos.online_dpo import OnlineDPO
from penstock.algos.ppo import PPO
from penstock.algos.process_reward import ProcessReward
from penstock.algos.rebel import REBEL
from penstock.algos.reference_free import CPO, ORPO, SimPO
from penstock.algos.reinforce import REINFORCE, ReinforcePlusPlus
from penstock.algos.rft import RFT
from penstock.algos.rloo import LeaveOneOut
from penstock.algos.safe_ppo import SafePPO
from penstock.algos.sft import SFT
from penstock.algos.tracked_rewards import TrackedRewards

__all__ = [
    "AWAC", "CISPO", "CPO", "DPO", "DPPO", "DQN", "GDPO", "GMPO", "GPG", "GRPO", "ILQL", "KTO", "OPO", "ORPO", "PKPO",
    "PPO", "REBEL", "REINFORCE", "RFT", "SAC", "SAPO", "SFT", "TOPR", "BinaryRewardModel", "BradleyTerry", "ClipCov",
    "ClippedRatio", "DRaFT", "Denoise", "DiffusionDPO", "DiffusionNFT", "DiffusionRFT", "Distillation", "Divergence",
    "EntropyBonus", "GuardedRatio", "ImportanceWeight", "KLCov", "KLPenalty", "LeaveOneOut", "OnlineDPO", "PassAtK",
    "PolicyGradient", "ProcessReward", "ReMax", "ReinforcePlusPlus", "SafePPO", "SimPO", "TrackedRewards", "cispo",
    "clip_cov", "dapo", "ddpo", "ddpo_sf", "dppo", "dr_grpo", "exact_kl", "flow_grpo", "gmpo", "gspo", "icepop", "kl_cov",
    "label_metrics", "picture_of", "pipeline_rl", "sapo", "topr",
]  # fmt: skip
