"""Summaries that people prefer: SFT, then a reward model and PPO, or ILQL (Stiennon et al. 2020, arXiv 2009.01325).

The data are comparisons: a post, the summary that people preferred, and the other. The policy learns from the reward model's
scores of its summaries (PPO), or learns from the compared summaries themselves (ILQL: 1 for the preferred one, 0 for the
other). Either way the reward model judges summaries of held-out posts, and PPO climbs that very judge: how well people would
like the summaries this cannot say.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from penstock.algos import ILQL, PPO, SFT, BradleyTerry, KLPenalty
from penstock.config.optimizers import AdamW
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run, Stage
from penstock.core.errors import DataError
from penstock.core.types import Sampling
from penstock.data.sources import open_source

HELD_OUT = 20
"""One post in so many is held out, with all its comparisons."""

BETAS = (1.0, 4.0, 16.0)
"""By how much the Q heads shift the logits when ILQL is measured; the last is the headline."""

Algorithm = Literal["sft", "ppo", "ilql"]


def comparisons(source: str, held_out: bool, longest: int = 1600) -> list[dict[str, Any]]:
    """Comparisons as columns ``prompt``, ``chosen`` and ``rejected``; no post is in both parts, whatever the order of rows.

    Args:
        source: what a data spec names: a file of JSON lines, relative to the working directory, or a hub data set.
        held_out: which part.
        longest: characters of a prompt, which keeps its end; a summary keeps a quarter of that from its beginning.

    Raises:
        DataError: a row lacks one of the columns, or a part is empty.
    """
    rows, opened = [], open_source(DataSpec(source=source), Path.cwd())
    for index in range(len(opened)):
        row = opened[index]
        for name in ("prompt", "chosen", "rejected"):
            if not isinstance(row.get(name), str):
                raise DataError(f'{source} row {index}: a comparison has the text "{name}", got {row.get(name)!r:.60}')
        if (zlib.crc32(row["prompt"].encode()) % HELD_OUT == 0) is held_out:
            summaries = {name: row[name][: longest // 4] for name in ("chosen", "rejected")}
            rows.append({"prompt": row["prompt"][-longest:], **summaries})
    if not rows:
        raise DataError(f"{source}: {len(opened)} rows have no {'held-out' if held_out else 'other'} post; give more rows")
    return rows


def judged(source: str, held_out: bool, longest: int = 1600) -> list[dict[str, Any]]:
    """Both summaries of every comparison: columns ``prompt``, ``summary`` and ``reward`` (1 for the preferred one, else 0)."""
    return [
        {"prompt": row["prompt"], "summary": row[name], "reward": reward}
        for row in comparisons(source, held_out, longest)
        for name, reward in (("chosen", 1.0), ("rejected", 0.0))
    ]


def summarize(
    data: str = "hub:trl-lib/tldr-preference",
    model: str = "",
    algorithm: Algorithm = "ppo",
    seed: int = 0,
    steps: int = 200,
    longest: int = 1600,
) -> Run:
    """SFT on preferred summaries, a reward model, and PPO or ILQL.

    Args:
        data: hub data set or JSON lines (FILE.jsonl, FILE.jsonl.gz) with the texts prompt, chosen and rejected.
        model: folder or hub name of a causal language model; without it a small one is built from scratch.
        algorithm: what follows; nothing does after "sft".
        seed: seed of weights, order and sampling.
        steps: steps of the algorithm: PPO's of 64 posts, ILQL's of 32 summaries.
        longest: characters of a post that are read, the last ones; a summary has a quarter of that.
    """
    pairs = DataSpec(
        source="penstock.recipes.summarize:comparisons",
        name="comparisons",
        options={"source": data, "held_out": False, "longest": longest},
        completion="{{ chosen }}",
    )
    held_out = replace(pairs, name="held-out", options={**pairs.options, "held_out": True}, size=256)
    small = ModelSpec(preset="10m", vocabulary=8000, context=2048, initializer_range=0.02)
    rate = 1e-5 if model else 1e-3
    learner = LearnerSpec(
        learning_rate=rate, schedule="cosine_with_min_lr", warmup=20, optimizer=AdamW(betas=(0.9, 0.98)), token_budget=8192
    )
    stages: list[Stage] = [
        Offline(
            name="sft",
            model=ModelSpec(path=model) if model else small,
            data=pairs,
            algorithm=SFT(),
            learner=learner,
            steps=500,
            evaluation=EvaluationSpec(data=held_out),
        )
    ]
    if algorithm != "sft":
        stages += _after(algorithm, pairs, held_out, replace(learner, learning_rate=rate / 2), steps)
    last = f"evaluation/beta={BETAS[-1]:g}/reward" if algorithm == "ilql" else "evaluation/reward"
    liked = "score of held-out summaries {first[evaluation/reward]:.2f} → {last[" + last + "]:.2f} in {seconds:.0f} s"
    return Run(
        name="summarize",
        seed=seed,
        stages=tuple(stages),
        headline="held-out perplexity {last[evaluation/perplexity]:.1f} in {seconds:.0f} s" if algorithm == "sft" else liked,
    )


def _after(algorithm: Algorithm, pairs: DataSpec, held_out: DataSpec, learner: LearnerSpec, steps: int) -> list[Stage]:
    """The reward model, which judges either way, and what learns after it."""
    score = RewardSpec(function="model:@reward", name="score")
    evaluation = EvaluationSpec(data=replace(held_out, size=64), rewards=(score,), temperature=0.7, max_new_tokens=64)
    reward = Offline(
        name="reward",
        model=ModelSpec(path="@sft"),
        data=pairs,
        algorithm=BradleyTerry(centring=0.01),
        learner=replace(learner, dropout=0.1),
        steps=300,
        evaluation=EvaluationSpec(data=held_out, every=100),
    )
    if algorithm == "ilql":
        both = replace(pairs, source="penstock.recipes.summarize:judged", name="judged", completion="{{ summary }}")
        ilql = Offline(
            name="ilql",
            model=ModelSpec(path="@sft"),
            data=both,
            algorithm=ILQL(),
            learner=learner,
            steps=steps,
            evaluation=replace(evaluation, betas=BETAS),
        )
        return [reward, ilql]
    ppo = Online(
        name="ppo",
        model=ModelSpec(path="@sft"),
        data=pairs,
        rewards=(score,),
        algorithm=PPO(kl=KLPenalty(place="reward", coefficient=0.05)),
        learner=replace(learner, learning_rate=learner.learning_rate / 5, schedule="constant", critic="separate"),
        sampling=Sampling(temperature=0.7, max_new_tokens=64),
        samples=1,
        batch=64,
        minibatches=2,
        epochs=2,
        steps=steps,
        evaluation=replace(evaluation, every=50),
    )
    return [reward, ppo]
