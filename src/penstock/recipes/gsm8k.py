"""Grade-school mathematics: GRPO on GSM8K for a real checkpoint."""

from __future__ import annotations

from dataclasses import replace

from penstock.algos.grpo import GRPO
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Online, RewardSpec, Run
from penstock.core.types import Sampling

QUESTION = "{{ question }}\nThink step by step and end with the answer after ####.\n"


def gsm8k(model: str, data: str, seed: int = 0, steps: int = 200, max_new_tokens: int = 512) -> Run:
    """GRPO on GSM8K with checked answers, for a model folder or hub name.

    Args:
        model: folder or hub name of a causal language model.
        data: hub:openai/gsm8k:main, or a folder with its train.jsonl and test.jsonl (questions and answers).
        seed: seed of data order and sampling.
        steps: training batches of 16 prompts.
        max_new_tokens: longest answer.
    """
    on_hub = data.startswith("hub:")
    chat = not model.startswith((".", "/"))
    train = DataSpec(source=data if on_hub else f"{data}/train.jsonl", prompt=QUESTION, completion="{{ answer }}", chat=chat)
    held_out = replace(train, source=data if on_hub else f"{data}/test.jsonl", split="test", size=256)
    return Run(
        name="gsm8k",
        seed=seed,
        stages=(
            Online(
                name="grpo",
                model=ModelSpec(path=model),
                data=train,
                rewards=(RewardSpec(function="math"),),
                algorithm=GRPO(clip=(0.2, 0.28)),
                learner=LearnerSpec(learning_rate=1e-6, warmup=5, token_budget=16384),
                sampling=Sampling(max_new_tokens=max_new_tokens),
                samples=8,
                batch=16,
                steps=steps,
                evaluation=EvaluationSpec(data=held_out, every=20),
            ),
        ),
    )
