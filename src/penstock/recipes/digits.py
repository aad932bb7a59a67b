"""Handwritten digits: a denoiser that draws the wrong one half of the time is reinforced to draw what the prompt asks for.

The pictures are scikit-learn's (1,797 of 8 x 8). The denoiser sees one half of them, and a network trained on the same half
gives the reward; a support vector machine that was trained on the other half judges what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.algos.denoising import Denoise, ddpo, ddpo_sf, flow_grpo, picture_of
from penstock.algos.diffusion_dpo import DiffusionDPO
from penstock.algos.diffusion_rft import DiffusionRFT
from penstock.algos.draft import DRaFT
from penstock.algos.nft import DiffusionNFT
from penstock.config.denoising import Denoising, Pictures
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.types import Group, Sampling

WRONG = 0.5
"""Share of the pictures whose label is replaced by a random one before the denoiser learns from them."""
HERE = "penstock.recipes.digits"


@lru_cache(maxsize=1)
def written() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """All pictures, uint8 ``[N, 8, 8]``, and their digits."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    return (found.images * (255 / 16)).round().astype(np.uint8), found.target


def half(number: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Every second picture, from ``number`` (0 or 1) on."""
    pictures, labels = written()
    return pictures[number::2], labels[number::2]


def mislabelled(wrong: float = WRONG, seed: int = 0) -> list[Mapping[str, Any]]:
    """Rows ``picture`` and ``digit`` of the first half, a share of them with a random digit."""
    pictures, labels = half(0)
    stream = np.random.Generator(np.random.Philox(seed))
    odd, other = stream.random(len(labels)) < wrong, stream.integers(0, 10, len(labels))
    named = np.where(odd, other, labels)
    return [{"picture": picture, "digit": str(digit)} for picture, digit in zip(pictures, named, strict=True)]


def wanted() -> list[Mapping[str, Any]]:
    """One row for each ``digit`` that is asked for."""
    return [{"digit": str(digit)} for digit in range(10)]


@lru_cache(maxsize=2)
def judges(number: int) -> Any:
    """What tells digits apart, trained on one half: a small network on the first, a support vector machine on the second."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    pictures, labels = half(number)
    made: Any = MLPClassifier((64,), max_iter=400, random_state=0) if number == 0 else SVC(gamma=0.02 / 16)
    return made.fit(flat(pictures), labels)


def flat(pictures: Any) -> NDArray[np.float64]:
    """Pictures as rows of numbers from 0 to 16, as the data set has them."""
    return np.asarray(pictures, np.float64).reshape(len(pictures), -1) * (16 / 255)


def likeness(group: Group, columns: Mapping[str, Any]) -> list[float]:
    """The reward: the probability that the network gives to the digit that was asked for."""
    seen = judges(0).predict_proba(flat([picture_of(sample) for sample in group.samples]))
    return [float(p) for p in seen[:, int(columns["digit"])]]


def likelihood(picture_BD: Any, prompts: list[str]) -> Any:
    """The logarithm of that probability as a function of tensors, with gradient: what DRaFT follows."""
    value_BH = (picture_BD.flatten(1).clamp(-1, 1) + 1) * 8
    layers = list(zip(judges(0).coefs_, judges(0).intercepts_, strict=True))
    for place, (weight, bias) in enumerate(layers):
        value_BH = value_BH @ value_BH.new_tensor(weight) + value_BH.new_tensor(bias)
        value_BH = value_BH.relu() if place < len(layers) - 1 else value_BH.log_softmax(-1)
    return value_BH[range(len(prompts)), [int(prompt) for prompt in prompts]]


def gold(group: Group, columns: Mapping[str, Any]) -> list[float]:
    """Whether the machine that saw none of this reads the digit that was asked for."""
    seen = judges(1).predict(flat([picture_of(sample) for sample in group.samples]))
    return [float(digit == int(columns["digit"])) for digit in seen]


def nearest(group: Group, columns: Mapping[str, Any]) -> list[float]:
    """The distance of a picture to the nearest real one, in roots of mean squares of values from -1 to 1: 0.28 between two real
    ones. It grows where a reward is exploited by pictures of nothing."""
    real = flat(written()[0])
    found = flat([picture_of(sample) for sample in group.samples])
    return [float(np.sqrt(((real - one) ** 2).mean(1).min()) / 8) for one in found]


def pairs(seed: int = 0) -> list[Mapping[str, Any]]:
    """Rows ``digit``, ``chosen``, ``rejected``: each picture of the first half under its digit, against one of another."""
    pictures, labels = half(0)
    stream = np.random.Generator(np.random.Philox(seed))
    others = [stream.choice(np.flatnonzero(labels != label)) for label in labels]
    rows = zip(pictures, pictures[others], labels, strict=True)
    return [{"chosen": chosen, "rejected": rejected, "digit": str(digit)} for chosen, rejected, digit in rows]


def digits(
    algorithm: Literal["flow", "ddpo", "ddpo_sf", "nft", "raft", "draft", "dpo"] = "flow",
    seed: int = 0,
    steps: int = 40,
    reward: Literal["likeness", "compressible"] = "likeness",
) -> Run:
    """A denoiser of handwritten digits that draws wrong ones learns to draw what it is asked for; minutes on a laptop CPU.

    Args:
        algorithm: Flow-GRPO; DDPO with importance weights or without, which trains a denoiser that predicts noise;
            DiffusionNFT, which draws without noise; fine-tuning on the best of its own pictures; DRaFT, which follows the
            reward's gradient; Diffusion-DPO, which draws nothing, and learns from pairs of pictures.
        seed: seed of weights, data and sampling.
        steps: batches of reinforcement, or of pairs.
        reward: the probability of the digit that was asked for, or how few bytes it has as a JPEG, whatever it shows.
    """
    flow = not algorithm.startswith("ddpo")
    pictures = Pictures(shape=(1, 8, 8), prediction="velocity" if flow else "noise")
    asked = DataSpec(source=f"{HERE}:wanted", name="digits", prompt="{{ digit }}")
    learned = replace(asked, source=f"{HERE}:mislabelled", name="pictures", options={"seed": seed})
    denoise = Offline(
        name="denoise",
        model=ModelSpec(denoiser=pictures, vocabulary=259, context=8),
        data=learned,
        algorithm=Denoise(),
        learner=LearnerSpec(learning_rate=1e-3, schedule="cosine", warmup=20, token_budget=256),
        batch=256,
        steps=800,
    )
    return Run(
        name=f"digits-{algorithm}",
        seed=seed,
        stages=(denoise, reinforced(algorithm, asked, steps, reward) if algorithm != "dpo" else preferred(learned, steps)),
        headline="gold {first[evaluation/reward]:.1%} → {last[evaluation/reward]:.1%} in {seconds:.0f} s",
    )


def preferred(learned: DataSpec, steps: int) -> Offline:
    """Diffusion-DPO of the denoiser on pairs."""
    return Offline(
        name="dpo",
        model=ModelSpec(path="@denoise"),
        data=replace(learned, source=f"{HERE}:pairs", name="pairs"),
        algorithm=DiffusionDPO(beta=100.0),
        learner=LearnerSpec(learning_rate=3e-4, warmup=2, token_budget=4096),
        batch=256,
        steps=steps,
        evaluation=measured(replace(learned, source=f"{HERE}:wanted", options={}), quiet=True),
    )


def reinforced(algorithm: str, asked: DataSpec, steps: int, reward: str) -> Online:
    """Reinforcement of the denoiser on what it generates."""
    flow = not algorithm.startswith("ddpo")
    quiet = algorithm in ("nft", "raft", "draft")
    kinds = {
        "flow": flow_grpo(), "ddpo": ddpo(clip=(1e-3, 1e-3)), "ddpo_sf": ddpo_sf(), "nft": DiffusionNFT(every=4),
        "raft": DiffusionRFT(), "draft": DRaFT(judge=f"{HERE}:likelihood"),
    }  # fmt: skip
    return Online(
        name=algorithm,
        model=ModelSpec(path="@denoise"),
        data=asked,
        rewards=(RewardSpec(function=reward if reward == "compressible" else f"{HERE}:{reward}"),),
        algorithm=kinds[algorithm],
        learner=LearnerSpec(learning_rate=1e-4 if algorithm == "draft" else 3e-4, warmup=2, token_budget=4096),
        sampling=Sampling(temperature=0.0 if quiet else 1.0),
        denoising=Denoising() if flow else Denoising(kernel="ddim", noise=1.0, clip=True),
        samples=16,
        batch=16,
        minibatches=1 if algorithm == "ddpo_sf" else 4,
        max_running=256,
        steps=steps,
        evaluation=measured(asked, quiet=flow),  # DDIM without noise is worse here
    )


def measured(asked: DataSpec, quiet: bool) -> EvaluationSpec:
    """Every tenth batch 32 pictures of each digit, with noise unless ``quiet``."""
    rewards = [RewardSpec(function=f"{HERE}:gold"), RewardSpec(function=f"{HERE}:nearest", weight=0.0)]
    rewards.append(RewardSpec(function="compressible", weight=0.0))
    return EvaluationSpec(
        data=replace(asked, name="held-out"),
        rewards=tuple(rewards),
        temperature=0.0 if quiet else 1.0,
        samples=32,
        every=10,
    )
