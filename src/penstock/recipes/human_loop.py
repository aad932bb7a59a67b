"""The loop around people: a policy is sampled, people vote on pairs, reward models learn from the votes, PPO climbs them.

By default everything is made up, so that it runs anywhere and the truth is known: postcards, whose pleasantness can be counted,
and simulated annotators who err in 30% of their votes, one of whom always says the opposite of what he thinks. Each round ends
with a report card; a policy that fails it is not promoted, and the next round starts from the weights before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from penstock.algos import PPO, SFT, BradleyTerry, KLPenalty
from penstock.config.ask import OWN_STORE, Ask, Simulated
from penstock.config.run import (
    DataSpec,
    EvaluationSpec,
    LearnerSpec,
    ModelSpec,
    Offline,
    Online,
    RewardScaling,
    RewardSpec,
    Run,
    Stage,
    require,
)
from penstock.core.types import Sample, Sampling
from penstock.recipes.sentiment import sentiment

WORTH = {"superb": 1.0, "lovely": 0.85, "good": 0.7, "decent": 0.5, "plain": 0.4, "dull": 0.25, "poor": 0.15, "dreadful": 0.0}
"""How pleasant each word is."""
SUBJECTS = ("food", "hotel", "weather", "harbour", "beach", "town")
PLACES = ("rome", "oslo", "cadiz", "lagos", "kyoto", "quebec", "porto", "bergen", "samoa", "dakar", "nara", "turin")
"""In each place one subject matters twice as much as others: the one at the same position, counted round."""
CLAUSE = re.compile(rf"the ({'|'.join(SUBJECTS)}) was ({'|'.join(WORTH)})")
CLAUSES = 3


def pleasant(place: str, text: str) -> float:
    """How pleasant a postcard is, 0 to 1: three clauses about different subjects, of which the place's own counts twice.

    Anything else is worth 0.
    """
    parts = [CLAUSE.fullmatch(part) for part in text.strip().removesuffix(".").split(", ")]
    found = [(part[1], part[2]) for part in parts if part]
    if len(parts) != CLAUSES or len({subject for subject, _ in found}) != CLAUSES or not text.strip().endswith("."):
        return 0.0
    dear = SUBJECTS[PLACES.index(place) % len(SUBJECTS)]
    return sum(WORTH[word] * (2 if subject == dear else 1) for subject, word in found) / (CLAUSES + 1)


def pleasantness(sample: Sample, columns: Mapping[str, Any]) -> float:
    """The truth as a reward; the place is read from the prompt."""
    return pleasant(str(columns["prompt"]).split()[-1].strip(":"), sample.text)


def written(place: str, draw: np.random.Generator) -> str:
    """A postcard as a tired traveller writes it: any subjects, and words of the worse kind more often."""
    subjects = draw.choice(SUBJECTS, CLAUSES, replace=False)
    weights = np.linspace(1, 2, len(WORTH))
    words = draw.choice(list(WORTH), CLAUSES, p=weights / weights.sum())
    return ", ".join(f"the {subject} was {word}" for subject, word in zip(subjects, words, strict=True)) + "."


def postcards(size: int, seed: int) -> list[dict[str, Any]]:
    """Columns ``prompt`` and ``completion``, and ``groups`` for the report card."""
    draw = np.random.default_rng(seed)
    places = [PLACES[index] for index in draw.integers(0, len(PLACES), size)]
    rows = [{"prompt": f"from {place}:", "completion": " " + written(place, draw)} for place in places]
    return [{**row, "groups": {"matters": _dear(place)}} for row, place in zip(rows, places, strict=True)]


def _dear(place: str) -> str:
    return SUBJECTS[PLACES.index(place) % len(SUBJECTS)]


def true_pairs(size: int, seed: int) -> list[dict[str, Any]]:
    """Pairs of postcards from one place, the truly more pleasant one as ``chosen``; equal ones are left out."""
    draw, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    while len(rows) < size:
        place = PLACES[draw.integers(0, len(PLACES))]
        first, second = sorted((written(place, draw), written(place, draw)), key=lambda text: pleasant(place, text))
        if pleasant(place, first) != pleasant(place, second):
            rows.append({"prompt": f"from {place}:", "chosen": " " + second, "rejected": " " + first, "probability": 1.0})
    return rows


@dataclass(frozen=True)
class Matter:
    """What the loop is about: the stages that make the first policy, its prompts, and who knows the truth."""

    stages: tuple[Stage, ...]
    start: str
    prompts: DataSpec
    sampling: Sampling
    truth: RewardSpec | None
    held_out: DataSpec | None
    """Pairs whose truth is known, for reward models."""
    steps: int
    """Of PPO a round."""


def _postcards(seed: int) -> Matter:
    here = "penstock.recipes.human_loop"
    data = DataSpec(source=f"{here}:postcards", options={"size": 3000, "seed": seed})
    sft = Offline(
        name="sft",
        model=ModelSpec(preset="1m", layers=2, vocabulary=400, context=64),
        data=data,
        algorithm=SFT(),
        learner=LearnerSpec(learning_rate=2e-3, schedule="cosine_with_min_lr", warmup=20, token_budget=16384),
        batch=64,
        steps=150,
    )
    held_out = DataSpec(source=f"{here}:true_pairs", options={"size": 400, "seed": seed + 1}, name="true pairs")
    truth = RewardSpec(function=f"{here}:pleasantness", name="truth")
    return Matter((sft,), "@sft", data, Sampling(max_new_tokens=28), truth, held_out, 25)


def _reviews(seed: int, data: str) -> Matter:
    made = {stage.name: stage for stage in sentiment(data, seed=seed).stages}
    truth = RewardSpec(function="model:@gold", options={"sigmoid": True}, name="truth")
    sampling = Sampling(temperature=0.7, max_new_tokens=32)
    return Matter((made["sft"], made["gold"]), "@sft", made["ppo"].data, sampling, truth, None, 30)


def _matter(task: str, data: str, seed: int) -> Matter:
    if task == "postcards":
        return _postcards(seed)
    if task == "reviews":
        require(bool(data), "--task reviews needs --data FOLDER with pos.txt and neg.txt, a film review a line (rt-polarity)")
        return _reviews(seed, data)
    require(bool(data), f"--task {task} is a policy of your own and needs --data FILE.jsonl with a column prompt")
    return Matter((), task, DataSpec(source=data), Sampling(), None, None, 100)


ANNOTATORS = (
    *(Simulated(name=name) for name in ("ann", "ben", "cleo", "dan", "eve")),
    Simulated(name="mallory", noise=0.0, adversary=True),
)
"""Five who err in 30% of their votes, and an adversary."""

NATURES = {"simulated": ["simulated"], "real": ["human", "imported"]}


def _reward_model(name: str, matter: Matter, store: str, people: str, weights: str = "dawid_skene") -> Offline:
    return Offline(
        name=name,
        model=ModelSpec(path=matter.start),
        data=DataSpec(source=f"feedback:{store}", name="votes", options={"natures": NATURES[people], "weights": weights}),
        algorithm=BradleyTerry(probability="probability", centring=0.01),
        learner=LearnerSpec(learning_rate=5e-4, schedule="cosine_with_min_lr", warmup=10, dropout=0.1, token_budget=16384),
        steps=100,
        evaluation=EvaluationSpec(data=matter.held_out) if matter.held_out else None,
    )


def human_loop(
    seed: int = 0,
    rounds: int = 2,
    people: Literal["simulated", "real"] = "simulated",
    store: str = OWN_STORE,
    questions: int = 200,
    strategy: Literal["random", "disagreement", "near_tie", "large_gap"] = "disagreement",
    task: str = "postcards",
    data: str = "",
) -> Run:
    """Policy, questions, votes, reward models, PPO, and a report card that gates promotion; minutes on a laptop CPU.

    Args:
        seed: seed of weights, questions and simulated votes.
        rounds: rounds of votes, reward models and PPO; votes on the last policy follow.
        people: simulated annotators, or real ones through `penstock feedback serve STORE`.
        store: feedback store: a file, a PostgreSQL URL, or @run for feedback.db in the run's folder.
        questions: pairs to ask about each round, of twice as many prompts; from the second on, a duel for each of these too.
        strategy: how half of the pairs are chosen once there are reward models; the others are random.
        task: postcards (made up), reviews (of films; a classifier is the truth), or your own policy's folder or hub name.
        data: for reviews the folder of pos.txt and neg.txt, for your own policy its prompts: JSON lines with a column prompt.
    """
    require(rounds >= 1, f"rounds={rounds}; at least 1")
    matter = _matter(task, data, seed)
    made_up = people == "simulated"
    require(not made_up or matter.truth is not None, f"nobody simulated knows what is good of {task}; add --people real")
    ask = Ask(
        name="ask-1",
        model=ModelSpec(path=matter.start),
        data=matter.prompts,
        sampling=matter.sampling,
        store=store,
        annotators=ANNOTATORS if made_up else (),
        truth=matter.truth if made_up else None,
        prompts=2 * questions,
        questions=questions,
        evaluation=_measured(matter),
    )
    stages: list[Stage] = [*matter.stages, ask]
    for number in range(1, rounds + 1):
        names = [f"reward-{number}{member}" for member in "abc"]
        stages += [_reward_model(name, matter, store, people) for name in names]
        if number == 1 and matter.held_out is not None:
            stages.append(_reward_model("reward-1-equal", matter, store, people, "equal"))
        stages += [_ppo(number, names, matter), _next_ask(ask, number, names, strategy)]
    return Run(name="human_loop", seed=seed, stages=tuple(stages), headline=_headline(matter, rounds, made_up))


def _next_ask(first: Ask, number: int, judges: list[str], strategy: str) -> Ask:
    """Questions about what a round's PPO has made, and duels with the weights that it started from."""
    return replace(
        first,
        name=f"ask-{number + 1}",
        model=ModelSpec(path=f"@ppo-{number}"),
        against=ModelSpec(path=f"@ask-{number}"),
        scorers="+".join(f"@{judge}" for judge in judges),
        mix={"random": 0.5, strategy: 0.5} if strategy != "random" else {"random": 1.0},
        duels=first.prompts,
        anchors=first.questions // 10,
    )


def _measured(matter: Matter) -> EvaluationSpec | None:
    """How good the samples truly are, where that is known."""
    if matter.truth is None:
        return None
    return EvaluationSpec(data=replace(matter.prompts, size=300), rewards=(matter.truth,), temperature=1.0)


def _ppo(number: int, judges: list[str], matter: Matter) -> Online:
    """From what the round before let pass; the KL is that to the first policy.

    Rewards are divided by their deviation before the first step: how far reward models spread their scores depends on how many
    votes each label rests on, and a price on KL in units of the scores would mean something else in each round.
    """
    return Online(
        name=f"ppo-{number}",
        model=ModelSpec(path=f"@ask-{number}"),
        reference=ModelSpec(path=matter.start),
        data=matter.prompts,
        rewards=(RewardSpec(function="model:" + "+".join(f"@{judge}" for judge in judges), name="judges"),),
        algorithm=PPO(kl=KLPenalty(place="reward", coefficient=0.1)),
        scaling=RewardScaling(by="reference"),
        learner=LearnerSpec(learning_rate=3e-4, critic="separate", token_budget=16384),
        sampling=matter.sampling,
        samples=1,
        batch=64,
        minibatches=2,
        epochs=2,
        steps=matter.steps,
    )


def _headline(matter: Matter, rounds: int, made_up: bool) -> str:
    """What the last stage cannot say alone: the truth round by round, and who won the duels."""
    parts = []
    if matter.truth is not None:
        rows = [f"{{stages[ask-{number}][last][evaluation/truth]:.2f}}" for number in range(1, rounds + 2)]
        parts.append(f"truth {' → '.join(rows)}")
    if matter.held_out is not None:
        weighted, equal = (
            f"{{stages[{name}][last][evaluation/pair/accuracy]:.1%}}" for name in ("reward-1a", "reward-1-equal")
        )
        parts.append(f"reward model {weighted} right with weighted votes, {equal} with equal ones")
    wins = [
        f"{{stages[ask-{number}][metrics][card/wins]:.0%}} [{{stages[ask-{number}][metrics][card/wins_low]:.0%}}, "
        f"{{stages[ask-{number}][metrics][card/wins_high]:.0%}}]"
        for number in range(2, rounds + 2)
    ]
    passed = [f"{{stages[ask-{number}][metrics][card/passed]:.0f}}" for number in range(2, rounds + 2)]
    parts.append(f"duels won {', '.join(wins)}, promoted {', '.join(passed)} (1: yes, 0: no)")
    return f"{'simulated' if made_up else 'real'} votes: {'; '.join(parts)} in {{seconds:.0f}} s"
