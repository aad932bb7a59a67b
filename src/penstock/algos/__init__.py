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

from penstock.algos.awac import AWAC as AWAC
from penstock.algos.baselines import GDPO as GDPO
from penstock.algos.baselines import GPG as GPG
from penstock.algos.baselines import OPO as OPO
from penstock.algos.baselines import PKPO as PKPO
from penstock.algos.baselines import PassAtK as PassAtK
from penstock.algos.baselines import ReMax as ReMax
from penstock.algos.binary_reward import BinaryRewardModel as BinaryRewardModel
from penstock.algos.bradley_terry import BradleyTerry as BradleyTerry
from penstock.algos.compositions import cispo as cispo
from penstock.algos.compositions import clip_cov as clip_cov
from penstock.algos.compositions import dapo as dapo
from penstock.algos.compositions import dppo as dppo
from penstock.algos.compositions import dr_grpo as dr_grpo
from penstock.algos.compositions import gmpo as gmpo
from penstock.algos.compositions import gspo as gspo
from penstock.algos.compositions import icepop as icepop
from penstock.algos.compositions import kl_cov as kl_cov
from penstock.algos.compositions import pipeline_rl as pipeline_rl
from penstock.algos.compositions import sapo as sapo
from penstock.algos.compositions import topr as topr
from penstock.algos.distillation import Distillation as Distillation
from penstock.algos.distillation import Divergence as Divergence
from penstock.algos.dpo import DPO as DPO
from penstock.algos.entropy import EntropyBonus as EntropyBonus
from penstock.algos.grpo import GRPO as GRPO
from penstock.algos.ilql import ILQL as ILQL
from penstock.algos.importance_weights import ImportanceWeight as ImportanceWeight
from penstock.algos.kl import KLPenalty as KLPenalty
from penstock.algos.kto import KTO as KTO
from penstock.algos.labels import label_metrics as label_metrics
from penstock.algos.objectives import CISPO as CISPO
from penstock.algos.objectives import DPPO as DPPO
from penstock.algos.objectives import GMPO as GMPO
from penstock.algos.objectives import SAPO as SAPO
from penstock.algos.objectives import TOPR as TOPR
from penstock.algos.objectives import ClipCov as ClipCov
from penstock.algos.objectives import ClippedRatio as ClippedRatio
from penstock.algos.objectives import KLCov as KLCov
from penstock.algos.objectives import PolicyGradient as PolicyGradient
from penstock.algos.online_dpo import OnlineDPO as OnlineDPO
from penstock.algos.ppo import PPO as PPO
from penstock.algos.process_reward import ProcessReward as ProcessReward
from penstock.algos.rebel import REBEL as REBEL
from penstock.algos.reference_free import CPO as CPO
from penstock.algos.reference_free import ORPO as ORPO
from penstock.algos.reference_free import SimPO as SimPO
from penstock.algos.reinforce import REINFORCE as REINFORCE
from penstock.algos.reinforce import ReinforcePlusPlus as ReinforcePlusPlus
from penstock.algos.rft import RFT as RFT
from penstock.algos.rloo import LeaveOneOut as LeaveOneOut
from penstock.algos.safe_ppo import SafePPO as SafePPO
from penstock.algos.sft import SFT as SFT

__all__ = sorted(name for name, found in globals().items() if getattr(found, "__module__", "").startswith("penstock.algos."))
