"""Shortest paths on a random graph: a model reads random walks and learns to take short ways (after trlX's randomwalks).

The graph is directed and has 21 nodes, written as the letters ``a`` to ``u``; ``a`` is the goal. A prompt is a node, the
answer the nodes that follow. The reward is optimality: the length of the shortest way over that of the walk, and 0 for a
walk that takes an edge that is not there or does not arrive. Nothing but walks at random is there to learn from, so
a model that imitates them stays mediocre.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from penstock.algos import AWAC, DPO, GRPO, ILQL, KTO, PPO, REBEL, RFT, SFT, LeaveOneOut, ReinforcePlusPlus
from penstock.config.run import (
    DataSpec,
    EvaluationSpec,
    LearnerSpec,
    ModelSpec,
    Offline,
    Online,
    RewardSpec,
    Run,
    Stage,
)
from penstock.core.types import Sample, Sampling

NODES = "abcdefghijklmnopqrstu"
GOAL = NODES[0]
LONGEST = 9
"""Edges of the longest walk."""

BETAS = (1.0, 4.0, 16.0, 64.0)
"""By how much the Q heads shift the logits when ILQL is measured; the last is the headline."""

Algorithm = Literal["sft", "rft", "ppo", "grpo", "rloo", "reinforce-plus-plus", "dpo", "kto", "ilql", "awac", "rebel"]


@functools.cache
def graph(seed: int) -> dict[str, str]:
    """The nodes that each node leads to. From every node the goal is at most :data:`LONGEST` edges away."""
    draw = np.random.default_rng(seed)
    while True:
        edge = draw.random((len(NODES), len(NODES))) < 0.1
        np.fill_diagonal(edge, False)
        edges = {NODES[here]: "".join(NODES[there] for there in np.flatnonzero(row)) for here, row in enumerate(edge)}
        far = distances(edges)
        if len(far) == len(NODES) and max(far.values()) <= LONGEST:
            return edges


def distances(edges: dict[str, str]) -> dict[str, int]:
    """Edges of the shortest way to the goal, for every node that has one."""
    found, border = {GOAL: 0}, [GOAL]
    while border:
        nearer = border
        border = [node for node in edges if node not in found and any(step in nearer for step in edges[node])]
        found |= dict.fromkeys(border, found[nearer[0]] + 1)
    return found


def optimality_of(walk: str, edges: dict[str, str]) -> float:
    """Edges of the shortest way from where a walk begins over edges of the walk; 0 if it is invalid or ends elsewhere."""
    steps = list(itertools.pairwise(walk))
    arrives_once = walk.endswith(GOAL) and walk.count(GOAL) == 1
    if not steps or not arrives_once or any(there not in edges.get(here, "") for here, there in steps):
        return 0.0
    return distances(edges)[walk[0]] / len(steps)


def optimality(sample: Sample, columns: dict[str, Any], graph_seed: int) -> float:
    """The reward: how close the sampled walk comes to the shortest."""
    return optimality_of(columns["start"] + sample.text, graph(graph_seed))


def starts(graph_seed: int) -> list[dict[str, Any]]:
    """Every node but the goal, as a row with the column ``start``."""
    return [{"start": node} for node in NODES if node != GOAL]


def walks(size: int, seed: int, graph_seed: int) -> list[dict[str, Any]]:
    """Random walks as columns ``start``, ``rest`` and ``reward``; each ends at the goal or after :data:`LONGEST` edges.

    The column ``label`` is 1 for walks that are better than the mean of those from the same start, else 0.
    """
    edges, draw = graph(graph_seed), np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for _ in range(size):
        walk = str(draw.choice(list(NODES[1:])))
        while walk[-1] != GOAL and len(walk) <= LONGEST:
            walk += str(draw.choice(list(edges[walk[-1]])))
        rows.append({"start": walk[0], "rest": walk[1:], "reward": optimality_of(walk, edges)})
    for start in NODES[1:]:
        alike = [row for row in rows if row["start"] == start]
        middle = np.mean([row["reward"] for row in alike]) if alike else 0.0
        for row in alike:
            row["label"] = int(row["reward"] > middle)
    return rows


def contests(size: int, seed: int, graph_seed: int) -> list[dict[str, Any]]:
    """Pairs ``worse``, ``better``: every random walk with one of the best from the same ``start``, unless it is as good.

    The best, because DPO learns no more than which of two is preferred: from a poor winner it learns a poor walk.
    """
    rows, draw, found = walks(size, seed, graph_seed), np.random.default_rng(seed), []
    most = {start: max((row["reward"] for row in rows if row["start"] == start), default=0.0) for start in NODES[1:]}
    for row in rows:
        best = [other for other in rows if other["start"] == row["start"] and other["reward"] == most[row["start"]]]
        if row["reward"] < most[row["start"]]:
            better = best[draw.integers(len(best))]
            found.append({"start": row["start"], "better": better["rest"], "worse": row["rest"]})
    return found


def _imitation(data: DataSpec, evaluation: EvaluationSpec) -> Offline:
    return Offline(
        name="sft",
        model=ModelSpec(preset="1m", layers=2, vocabulary=259, context=16),  # bytes and marks alone: a node is one token
        data=data,
        algorithm=SFT(),
        learner=LearnerSpec(learning_rate=1e-3, warmup=10, token_budget=16384),
        batch=100,
        steps=100,
        evaluation=evaluation,
    )


def _offline(algorithm: Algorithm, imitated: Offline, pairs: DataSpec) -> Offline:
    """From the same walks, distinguished by their rewards."""
    stage = replace(imitated, name=algorithm, model=ModelSpec(path="@sft"))
    gentle = replace(imitated.learner, learning_rate=3e-4)
    assert imitated.evaluation is not None
    if algorithm == "dpo":
        # Of two walks the better may be a poor one: without the likelihood term both grow unlikely, and optimality falls.
        anchored = DPO(beta=0.1, objective={"sigmoid": 1.0, "sft": 0.3})
        return replace(stage, data=pairs, algorithm=anchored, learner=gentle, steps=150)
    if algorithm == "kto":
        return replace(stage, algorithm=KTO(beta=0.1), learner=gentle, steps=150)
    if algorithm == "awac":
        critic = replace(imitated.learner, critic="shared")
        return replace(stage, algorithm=AWAC(temperature=0.1), learner=critic, steps=300)
    shifted = replace(imitated.evaluation, betas=BETAS)
    # A reward travels one edge back with each round of V → Q → target, so far nodes need quick targets and many steps.
    learned = ILQL(expectile=0.8, conservative=0.01, target_rate=0.5)
    return replace(stage, algorithm=learned, steps=600, evaluation=shifted)


def _online(algorithm: Algorithm, prompts: DataSpec, reward: RewardSpec, evaluation: EvaluationSpec) -> Online:
    """Every step draws eight walks from each of the 20 nodes."""
    learns: dict[str, Any] = {
        "ppo": PPO(),
        "grpo": GRPO(),
        "rloo": LeaveOneOut(),
        "reinforce-plus-plus": ReinforcePlusPlus(),
        "rft": RFT(),
        "rebel": REBEL(),
    }
    return Online(
        name=algorithm,
        model=ModelSpec(path="@sft"),
        data=prompts,
        rewards=(reward,),
        algorithm=learns[algorithm],
        learner=LearnerSpec(
            learning_rate=3e-4, warmup=5, token_budget=16384, critic="shared" if algorithm == "ppo" else "none"
        ),
        sampling=Sampling(max_new_tokens=LONGEST + 1),
        samples=8,
        batch=20,
        steps=60,
        max_running=160,
        evaluation=evaluation,
    )


def randomwalks(algorithm: Algorithm = "ppo", seed: int = 0, graph_seed: int = 5, size: int = 2000) -> Run:
    """A model imitates random walks on a graph, then one algorithm teaches it the short ways; a minute on a laptop CPU.

    Args:
        algorithm: what follows the imitation; nothing does after "sft".
        seed: seed of walks, weights and sampling.
        graph_seed: seed of the graph.
        size: walks to learn from.
    """
    reward = RewardSpec(function="penstock.recipes.randomwalks:optimality", options={"graph_seed": graph_seed})
    data = DataSpec(
        source="penstock.recipes.randomwalks:walks",
        options={"size": size, "seed": seed, "graph_seed": graph_seed},
        prompt="{{ start }}",
        completion="{{ rest }}",
    )
    prompts = replace(data, source="penstock.recipes.randomwalks:starts", options={"graph_seed": graph_seed})
    pairs = replace(
        data, source="penstock.recipes.randomwalks:contests", chosen="{{ better }}", rejected="{{ worse }}", name="contests"
    )
    evaluation = EvaluationSpec(data=prompts, rewards=(reward,), temperature=1.0, samples=16, max_new_tokens=LONGEST + 1)
    sft = _imitation(data, evaluation)
    stages: list[Stage] = [sft]
    if algorithm in ("dpo", "kto", "ilql", "awac"):
        stages.append(_offline(algorithm, sft, pairs))
    elif algorithm != "sft":
        stages.append(_online(algorithm, prompts, reward, evaluation))
    measured = f"evaluation/beta={BETAS[-1]:g}/reward" if algorithm == "ilql" else "evaluation/reward"
    return Run(
        name=f"randomwalks-{algorithm}",
        seed=seed,
        stages=tuple(stages),
        headline="optimality {stages[sft][last][evaluation/reward]:.3f} → {last[" + measured + "]:.3f} in {seconds:.0f} s",
    )
