"""Losses of preference pairs by log-probabilities: DPO and its kin, SimPO, ORPO. ``U`` pairs; all functions are per pair.

Each takes what is known of the two completions of every pair and gives ``[U]`` losses, to be added up and divided by the
whole batch's pairs (``preference.batch_mean``). Where a reference is needed, ``chosen`` and ``rejected`` are log-ratios
``log π(y|x) - log π_ref(y|x)``, in nats, summed over a completion's tokens (or their mean, if that is what should be
compared). ``beta`` times a log-ratio is the *implicit reward* (Rafailov et al. 2023, arXiv 2305.18290, eq. 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as functional
from torch import Tensor

MOST_LIKELY = -1e-6
"""The highest mean log-prob whose odds are distinguished; at probability 1 they are infinite."""


def sigmoid(chosen_U: Tensor, rejected_U: Tensor, beta: float, smoothing: Tensor | float = 0.0) -> Tensor:
    """``-(1 - ε) log σ(β h) - ε log σ(-β h)`` with ``h = chosen - rejected`` and ε = ``smoothing``.

    DPO (Rafailov et al. 2023, arXiv 2305.18290, eq. 7); with ε > 0, the chance that a label is wrong, it is conservative
    DPO (Mitchell 2023, "A note on DPO with noisy preferences & relationship to IPO", eq. 3), whose minimum is finite. With
    an ε ``[U]`` of its own, each pair has a soft label: the loss is least where ``σ(β h) = 1 - ε``.
    """
    margin_U = beta * (chosen_U - rejected_U)
    return (1 - smoothing) * functional.softplus(-margin_U) + smoothing * functional.softplus(margin_U)


def robust(chosen_U: Tensor, rejected_U: Tensor, beta: float, smoothing: float = 0.0) -> Tensor:
    """``(-(1 - ε) log σ(β h) + ε log σ(-β h)) / (1 - 2ε)`` (robust DPO: Chowdhury et al. 2024, arXiv 2403.00409).

    Its mean over labels that are flipped with chance ε is the DPO loss of the true labels. ε must lie below one half.
    """
    margin_U = beta * (chosen_U - rejected_U)
    kept = (1 - smoothing) * functional.softplus(-margin_U)
    return (kept - smoothing * functional.softplus(margin_U)) / (1 - 2 * smoothing)


def ipo(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``(h - 1 / (2β))²`` (IPO: Azar et al. 2023, arXiv 2310.12036, eq. 17, where β is τ).

    The paper's log-ratios are sums over tokens. Some implementations take means; ask for that by length normalisation, and
    give a β that suits: the gap wanted is then ``1 / (2β)`` nats a token.
    """
    return (chosen_U - rejected_U - 1 / (2 * beta)).square()


def hinge(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``max(0, 1 - β h)`` (SLiC: Zhao et al. 2023, arXiv 2305.10425; by log-ratios: Liu et al. 2023, arXiv 2309.06657)."""
    return (1 - beta * (chosen_U - rejected_U)).relu()


def apo_zero(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``1 - σ(β chosen) + σ(β rejected)`` (APO-zero: D'Oosterlinck et al. 2024, arXiv 2408.06266; the paper omits the 1).

    Chosen completions become likelier and rejected ones less likely than under the reference.
    """
    return (-beta * chosen_U).sigmoid() + (beta * rejected_U).sigmoid()


def apo_down(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``σ(β chosen) + 1 - σ(β h)`` (APO-down: D'Oosterlinck et al. 2024, arXiv 2408.06266; the paper omits the 1).

    Both become less likely, the rejected one more so: for a model that is better than its chosen completions.
    """
    return (beta * chosen_U).sigmoid() + (-beta * (chosen_U - rejected_U)).sigmoid()


def sppo(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``(chosen - 1 / (2β))² + (rejected + 1 / (2β))²`` (SPPO: Wu et al. 2024, arXiv 2405.00675).

    The paper's η is 1 / β; the winning probabilities are taken as 1 and 0 ("hard").
    """
    target = 1 / (2 * beta)
    return (chosen_U - target).square() + (rejected_U + target).square()


def exo(chosen_U: Tensor, rejected_U: Tensor, beta: float, smoothing: float) -> Tensor:
    """``KL(p || q)`` of ``p = (σ(β h), σ(-β h))`` to ``q = (1 - ε, ε)`` (EXO: Ji et al. 2024, arXiv 2402.00856, eq. 16).

    The reverse of the direction that DPO takes. ε = ``smoothing`` must be positive, such as 1e-3; at 0 it is infinite.
    """
    margin_U = beta * (chosen_U - rejected_U)
    wins_U, loses_U = functional.logsigmoid(margin_U), functional.logsigmoid(-margin_U)
    log_q = torch.tensor([1 - smoothing, smoothing], dtype=torch.float64).log().tolist()
    return wins_U.exp() * (wins_U - log_q[0]) + loses_U.exp() * (loses_U - log_q[1])


def nca(chosen_U: Tensor, rejected_U: Tensor, beta: float) -> Tensor:
    """``-log σ(β chosen) - ½ log σ(-β chosen) - ½ log σ(-β rejected)`` (NCA: Chen et al. 2024, arXiv 2402.05369, K = 2).

    Rewards are judged one by one, so that the likelihood of the chosen completion does not fall with the rejected one's.
    """
    chosen_U, rejected_U = beta * chosen_U, beta * rejected_U
    return functional.softplus(-chosen_U) + 0.5 * functional.softplus(chosen_U) + 0.5 * functional.softplus(rejected_U)


def discopop(chosen_U: Tensor, rejected_U: Tensor, beta: float, tau: float = 0.05) -> Tensor:
    """``(1 - m) · -log σ(ρ) + m · exp(-ρ)``, ``ρ = β h``, ``m = σ(ρ / τ)`` (DiscoPOP: Lu et al. 2024, arXiv 2406.08414).

    The paper's τ is 0.05. Found by search, it has a hump: from just below the reference (ρ = 0) to just above, its gradient
    shrinks the margin.
    """
    margin_U = beta * (chosen_U - rejected_U)
    scaled_U = margin_U / tau
    # In logarithms: for a large negative margin exp(-ρ) overflows although its share m vanishes faster.
    exponential_U = (functional.logsigmoid(scaled_U) - margin_U).exp()
    return (-scaled_U).sigmoid() * functional.softplus(-margin_U) + exponential_U


def bco(chosen_U: Tensor, rejected_U: Tensor, beta: float, baseline_U: Tensor) -> Tensor:
    """``-log σ(β (chosen - δ)) - log σ(-β (rejected - δ))`` (BCO: Jung et al. 2024, arXiv 2404.04656).

    Args:
        baseline_U: δ, the mean log-ratio of all completions, a constant. (The paper's δ is in units of reward: β times
            this.)
    """
    return functional.softplus(beta * (baseline_U - chosen_U)) + functional.softplus(beta * (rejected_U - baseline_U))


PAIR_LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "sigmoid": sigmoid,
    "robust": robust,
    "ipo": ipo,
    "hinge": hinge,
    "apo_zero": apo_zero,
    "apo_down": apo_down,
    "sppo": sppo,
    "exo": exo,
    "nca": nca,
    "discopop": discopop,
    "bco": bco,
}
"""Losses of pairs of log-ratios by the name that a spec gives them."""


def simpo(chosen_U: Tensor, rejected_U: Tensor, beta: float, margin: float) -> Tensor:
    """``-log σ(β (chosen - rejected) - γ)`` of mean log-probs a token (SimPO: Meng et al. 2024, arXiv 2405.14734, eq. 6).

    Args:
        chosen_U: ``log π(y_w|x) / |y_w|``, under the policy alone.
        rejected_U: the same of the other completion.
        margin: γ, by how much the reward ``β · mean log-prob`` of the chosen one should win.
    """
    return functional.softplus(margin - beta * (chosen_U - rejected_U))


def log_odds(mean_logp: Tensor) -> Tensor:
    """``log(p / (1 - p))`` of ``p = exp(mean_logp)``; at a probability of nearly 1 it is cut (and its gradient with it)."""
    mean_logp = mean_logp.clamp(max=MOST_LIKELY)
    return mean_logp - (-mean_logp.expm1()).log()


def odds_ratio(chosen_U: Tensor, rejected_U: Tensor) -> Tensor:
    """``-log σ(log odds(chosen) - log odds(rejected))`` of mean log-probs (ORPO: Hong et al. 2024, arXiv 2403.07691, eq. 7)."""
    return functional.softplus(log_odds(rejected_U) - log_odds(chosen_U))


def prospect(ratio_B: Tensor, desirable_B: Tensor, baseline_B: Tensor, beta: float) -> Tensor:
    """``1 - σ(β (r - z))`` if desirable, ``1 - σ(β (z - r))`` if not, per row ``[B]``, before class weights.

    KTO (Ethayarajh et al. 2024, arXiv 2402.01306, section 4.1, with λ = 1).

    Args:
        ratio_B: r, summed log-ratios of completions.
        desirable_B: 1 for good completions, 0 for bad ones.
        baseline_B: z, the estimated KL divergence of policy and reference in nats, a constant.
    """
    sign_B = 2 * desirable_B - 1
    return (-beta * sign_B * (ratio_B - baseline_B)).sigmoid()
