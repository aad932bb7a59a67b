"""Human preferences, straight into the policy: a small model reads the dialogues, then DPO teaches it which reply people
preferred (Bai et al. 2022, arXiv 2204.05862; Rafailov et al. 2023, arXiv 2305.18290). Some of the texts are offensive."""

from __future__ import annotations

from penstock.algos import DPO
from penstock.config.optimizers import AdamW
from penstock.config.run import EvaluationSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.recipes.chat_preferences import imitation


def hh(data: str, seed: int = 0, steps: int = 120) -> Run:
    """SFT on dialogues, then DPO on the pairs of replies, judged on held-out pairs; minutes on a laptop CPU.

    Args:
        data: FILE.jsonl or FILE.jsonl.gz with the dialogues chosen and rejected, such as HH-RLHF's harmless-base/test.jsonl.gz.
        seed: seed of weights and order.
        steps: DPO steps of 32 pairs.
    """
    sft, pairs, held_out = imitation({"file": data, "longest": 400}, steps=120)
    return Run(
        name="hh",
        seed=seed,
        stages=(
            sft,
            Offline(
                name="dpo",
                model=ModelSpec(path="@sft"),
                data=pairs,
                algorithm=DPO(beta=0.1),
                learner=LearnerSpec(
                    learning_rate=2e-4,
                    schedule="cosine_with_min_lr",
                    warmup=10,
                    optimizer=AdamW(betas=(0.9, 0.99)),
                    dropout=0.2,
                ),
                steps=steps,
                evaluation=EvaluationSpec(data=held_out, every=30),
            ),
        ),
        headline="held-out pair accuracy {last[evaluation/pair/accuracy]:.1%} (a coin has 50%) in {seconds:.0f} s",
    )
