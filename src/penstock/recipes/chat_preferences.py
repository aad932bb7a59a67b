"""Human preferences between two replies of an assistant: a small model reads the dialogues, then learns which reply people
preferred (Bai et al. 2022, arXiv 2204.05862). Some of the texts are offensive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.algos import SFT, BradleyTerry
from penstock.config.optimizers import AdamW
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.data.sources import open_source

TURN = "\n\nAssistant:"
HELD_OUT = 400
"""Pairs at the front of the file that are never trained on."""


def dialogues(file: str, longest: int = 600) -> list[dict[str, Any]]:
    """Pairs as columns ``prompt`` (the dialogue so far, up to ``Assistant:``), ``chosen`` and ``rejected``.

    Pairs whose dialogues part before the last reply are left out, as there is no one prompt. A dialogue of more than
    ``longest`` characters keeps its end, a reply its beginning.
    """
    source = open_source(DataSpec(source=file), Path.cwd())
    rows = []
    for index in range(len(source)):
        before, _, chosen = source[index]["chosen"].rpartition(TURN)
        also_before, _, rejected = source[index]["rejected"].rpartition(TURN)
        if before == also_before:
            prompt = (before + TURN)[-longest:]
            rows.append({"prompt": prompt, "chosen": chosen[:longest], "rejected": rejected[:longest]})
    return rows


def imitation(dialogues: Mapping[str, Any], steps: int) -> tuple[Offline, DataSpec, DataSpec]:
    """SFT on the dialogues with the reply that people preferred; and the pairs to go on with, and those that are held out.

    Args:
        dialogues: arguments of :func:`dialogues`.
        steps: SFT steps of 32 dialogues.
    """
    pairs = DataSpec(source="penstock.recipes.chat_preferences:dialogues", name="pairs", options=dialogues, skip=HELD_OUT)
    held_out = replace(pairs, name="held-out", skip=0, size=HELD_OUT)
    dialogue = "{{ prompt }}{{ chosen }}"
    sft = Offline(
        name="sft",
        model=ModelSpec(preset="1m", layers=2, vocabulary=4000, context=1024, initializer_range=0.02),
        data=replace(pairs, prompt="", completion=dialogue),
        algorithm=SFT(),
        learner=LearnerSpec(
            learning_rate=3e-3, schedule="cosine_with_min_lr", warmup=20, optimizer=AdamW(betas=(0.9, 0.98), weight_decay=0.1)
        ),
        steps=steps,
        evaluation=EvaluationSpec(data=replace(held_out, prompt="", completion=dialogue)),
    )
    return sft, pairs, held_out


def chat_preferences(data: str, seed: int = 0) -> Run:
    """SFT on dialogues, then a Bradley-Terry reward model on the pairs; minutes on a laptop CPU.

    Args:
        data: FILE.jsonl or FILE.jsonl.gz with the dialogues chosen and rejected, such as HH-RLHF's harmless-base/test.jsonl.gz.
        seed: seed of weights and order.
    """
    sft, pairs, held_out = imitation({"file": data}, steps=60)
    return Run(
        name="chat_preferences",
        seed=seed,
        stages=(
            sft,
            Offline(
                name="reward",
                model=ModelSpec(path="@sft"),
                data=pairs,
                algorithm=BradleyTerry(),
                learner=LearnerSpec(
                    learning_rate=5e-4,
                    schedule="cosine_with_min_lr",
                    warmup=20,
                    optimizer=AdamW(betas=(0.9, 0.99)),
                    token_dropout=0.3,
                    dropout=0.2,
                ),
                steps=120,
                evaluation=EvaluationSpec(data=held_out, every=30),
            ),
        ),
        headline="held-out pair accuracy {last[evaluation/pair/accuracy]:.1%} (a coin has 50%) in {seconds:.0f} s",
    )
