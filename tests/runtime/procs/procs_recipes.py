"""Recipes of milliseconds a step for runs in processes. Rows are taken in their order, so that a test can name one."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from penstock.algos import GRPO, PPO, BradleyTerry, KLPenalty
from penstock.algos.off_policy import DQN
from penstock.config.keeping import CheckpointSpec, RolesSpec
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.control.stage import Control, EnvironmentsSpec, PolicyNetwork, impala
from penstock.core.types import Sampling

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LEARNER = LearnerSpec(learning_rate=2e-4)
SETTINGS: dict[str, Any] = {"device": "cpu", "threads": 1, "checkpoint": CheckpointSpec(every=3)}
GO = Path("go")
"""A file that lets a reward go on which waits at its row; a number in it is the next row at which one waits."""


def rows() -> list[dict[str, Any]]:
    words = ["".join(letters) for letters in product(LETTERS, LETTERS, "aeio")]
    return [{"prompt": word, "row": row, "chosen": word[:2], "rejected": "?!"} for row, word in enumerate(words)]


DATA = DataSpec(source=f"{__file__}:rows", completion="{{ chosen }}", shuffle=False)
MODEL = ModelSpec(preset="1m", layers=1, vocabulary=300, context=64)


async def vowels(sample: Any, columns: Any, delay: float = 0.0, hold: int = -1) -> float:
    """Share of vowels; after ``delay`` seconds, and at row ``hold`` when the file :data:`GO` is there."""
    await asyncio.sleep(delay)
    while columns["row"] == (int(GO.read_text() or -1) if GO.exists() else hold):
        await asyncio.sleep(0.01)
    return sum(letter in "aeiou" for letter in sample.text) / 4


def noisy(sample: Any, columns: Any, delay: float = 0.0, hold: int = -1) -> float:
    """Share of vowels, and noise that follows from the sample (docs/data_and_rewards.md)."""
    return asyncio.run(vowels(sample, columns, delay, hold)) + random.Random(str(sample.key)).gauss(0, 1)


def hanging(sample: Any, columns: Any, row: int = 5) -> float:
    """Never comes back from two samples."""
    if columns["row"] == row and sample.key.sample < 2:
        time.sleep(3600)
    return sum(letter in "aeiou" for letter in sample.text) / 4


def always_hanging(sample: Any, columns: Any) -> float:
    """Never comes back."""
    time.sleep(3600)
    return 0.0


def deadly(sample: Any, columns: Any, row: int = 9) -> float:
    """Ends the process that asks it about a row."""
    if columns["row"] == row:
        os._exit(7)
    return sum(letter in "aeiou" for letter in sample.text) / 4


def letters(seed: int = 0, steps: int = 8, reward: str = "vowels", delay: float = 0.0, hold: int = -1) -> Run:
    """GRPO from random weights.

    Args:
        seed: seed of everything.
        steps: GRPO steps, of four prompts each.
        reward: function of this file.
        delay: seconds that a reward takes.
        hold: row whose rewards wait for the file ``go``.
    """
    options = {"delay": delay, "hold": hold} if reward in ("vowels", "noisy") else {}
    grpo = Online(
        name="grpo",
        model=MODEL,
        data=DATA,
        rewards=(RewardSpec(function=f"{__file__}:{reward}", options=options, deadline=100.0 if options else 1.0),),
        algorithm=GRPO(clip=(0.2, 0.28)),
        learner=LEARNER,
        sampling=Sampling(max_new_tokens=4),
        samples=4,
        batch=4,
        max_running=64,
        steps=steps,
    )
    return Run(name="letters", seed=seed, stages=(grpo,), **SETTINGS)


def changed(run: Run, **fields: Any) -> Run:
    """A run whose stage has other fields."""
    return replace(run, stages=(replace(run.stages[0], **fields),))


def acting(
    seed: int = 0, steps: int = 12, vtrace: bool = False, count: int = 4, game: bool = False, replay: bool = False
) -> Run:
    """PPO, IMPALA or DQN on CartPole, four fragments a batch; or MAPPO in a game.

    Args:
        seed: seed of everything.
        steps: batches.
        vtrace: IMPALA instead of PPO.
        count: environments of an actor.
        game: a game of three agents instead, with a critic that reads what all see.
        replay: DQN with noisy layers instead of PPO.
    """
    cartpole = EnvironmentsSpec(id="CartPole-v1", count=count)
    spread = EnvironmentsSpec(id="mpe2.simple_spread_v3:parallel_env", count=count, vectorization="parallel")
    dqn = DQN(batch=32, warmup=128, capacity=1000, n_steps=3, priority=0.6, noisy=0.5, explore_batches=8)
    control = Control(
        name="control",
        environments=spread if game else cartpole,
        model=PolicyNetwork(hidden=(16,), normalize=True, critic="central" if game else "shared"),
        algorithm=dqn if replay else impala() if vtrace else PPO(discount=0.99, value_clip=0.0),
        fragment=8,
        batch=4,
        minibatches=2,
        epochs=1,
        steps=steps,
        scale_rewards=not (vtrace or replay),
        evaluation=None,
    )
    return Run(name="acting", seed=seed, stages=(control,), **SETTINGS)


def anchored(seed: int = 0, steps: int = 6) -> Run:
    """GRPO with the KL to its start in the loss."""
    penalty = KLPenalty(place="loss", estimator="k3", coefficient=0.1)
    return changed(letters(seed, steps), algorithm=GRPO(clip=(0.2, 0.28), kl=penalty))


def critic(seed: int = 0, steps: int = 4) -> Run:
    """A reward model, then PPO with a critic, epochs, minibatches and a controlled KL."""
    judge = Offline(name="judge", model=MODEL, data=DATA, algorithm=BradleyTerry(), batch=4, steps=3, learner=LEARNER)
    ppo = replace(
        letters(seed, steps).stages[0],
        name="ppo",
        rewards=(RewardSpec(function="model:@judge"),),
        algorithm=PPO(kl=KLPenalty(place="reward", coefficient=0.1, target=0.5, horizon=50)),
        learner=replace(LEARNER, critic="separate"),
        samples=1,
        minibatches=2,
        epochs=2,
    )  # type: ignore[call-arg]
    return Run(name="critic", seed=seed, stages=(judge, ppo), **SETTINGS)


def encoder_decoder(seed: int = 0, steps: int = 4) -> Run:
    """GRPO of a model that encodes the prompt apart."""
    return changed(letters(seed, steps), model=replace(MODEL, architecture="encoder-decoder"))


def experts(seed: int = 0, steps: int = 4, delay: float = 0.0, hold: int = -1) -> Run:
    """GRPO of a mixture of experts with replayed routes."""
    folder = Path("mixture").absolute()
    if not folder.exists():
        save_mixture(folder)
    made = letters(seed, steps, delay=delay, hold=hold)
    return changed(made, model=ModelSpec(path=str(folder)), learner=replace(LEARNER, replay_routes=True))


def save_mixture(folder: Path) -> None:
    """The same small Mixtral every time."""
    import torch
    from transformers import AutoModelForCausalLM, MixtralConfig

    from penstock.models.files import save_model
    from penstock.models.language_model import LanguageModel
    from penstock.models.text import train_tokenizer

    text = train_tokenizer([row["prompt"] for row in rows()], 300)
    config = MixtralConfig(
        vocab_size=len(text), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
        bos_token_id=None, eos_token_id=text.end, pad_token_id=text.pad, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    save_model(LanguageModel(AutoModelForCausalLM.from_config(config), text), folder)


def examined(seed: int = 0, steps: int = 9, evaluator: bool = False) -> Run:
    """GRPO with an evaluation every third step."""
    made = changed(letters(seed, steps), evaluation=EvaluationSpec(data=replace(DATA, size=20, skip=600), every=3))
    return replace(made, **({"runtime": "procs", "roles": RolesSpec(evaluator=True)} if evaluator else {}))


def lettered(steps: int = 3) -> Run:
    """Letters with a role of a user's own beside the others.

    Args:
        steps: GRPO steps.
    """
    return replace(letters(steps=steps), modules=(str(Path(__file__).parents[1] / "own_parts.py"),))


def dated_rows() -> list[dict[str, Any]]:
    return [{**row, "day": datetime.date(2026, 1, 1)} for row in rows()]


def dated() -> Run:
    """Rows that no other process can be given."""
    return changed(letters(), data=replace(DATA, source=f"{__file__}:dated_rows"))


def thorough(seed: int = 0, steps: int = 40, delay: float = 0.02) -> Run:
    """GRPO with everything that a process can be there for: a reward that takes its time, a reference, evaluations."""
    made = changed(anchored(seed, steps), evaluation=EvaluationSpec(data=replace(DATA, size=8, skip=600), every=5))
    return changed(made, rewards=letters(delay=delay).stages[0].rewards)
