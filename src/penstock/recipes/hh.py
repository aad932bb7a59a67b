"""Human preferences, straight into the policy: a small model reads the dialogues, then DPO teaches it which reply people
preferred (Bai et al. 2022, arXiv 2204.05862; Rafailov et al. 2023, arXiv 2305.18290). Some of the texts are offensive."""

from __future__ import annotations

from dataclasses import replace

from penstock.algos import DPO, SFT
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Run

HELD_OUT = 400
"""Pairs at the front of the file that are never trained on."""


def hh(data: str, seed: int = 0, steps: int = 120) -> Run:
    """SFT on dialogues, then DPO on the pairs of replies, judged on held-out pairs; minutes on a laptop CPU.

    Args:
        data: FILE.jsonl or FILE.jsonl.gz with the dialogues chosen and rejected, such as HH-RLHF's harmless-base/test.jsonl.gz.
        seed: seed of weights and order.
        steps: DPO steps of 32 pairs.
    """
    pairs = DataSpec(
        source="penstock.recipes.chat_preferences:dialogues",
        name="pairs",
        options={"file": data, "longest": 400},
        skip=HELD_OUT,
    )
    held_out = replace(pairs, name="held-out", skip=0, size=HELD_OUT)
    dialogue = "{{ prompt }}{{ chosen }}"
    return Run(
        name="hh",
        seed=seed,
        stages=(
            Offline(
                name="sft",
                model=ModelSpec(preset="1m", layers=2, vocabulary=4000, context=1024, initializer_range=0.02),
                data=replace(pairs, prompt="", completion=dialogue),
                algorithm=SFT(),
                learner=LearnerSpec(learning_rate=3e-3, schedule="cosine", warmup=20, betas=(0.9, 0.98), weight_decay=0.1),
                steps=120,
                evaluation=EvaluationSpec(data=replace(held_out, prompt="", completion=dialogue)),
            ),
            Offline(
                name="dpo",
                model=ModelSpec(path="@sft"),
                data=pairs,
                algorithm=DPO(beta=0.1),
                learner=LearnerSpec(learning_rate=2e-4, schedule="cosine", warmup=10, betas=(0.9, 0.99), dropout=0.2),
                steps=steps,
                evaluation=EvaluationSpec(data=held_out, every=30),
            ),
        ),
        headline="held-out pair accuracy {last[evaluation/pair/accuracy]:.1%} (a coin has 50%) in {seconds:.0f} s",
    )
