"""TRL's side of ``benchmarks/tasks.py``; run by a Python that has ``trl==1.16`` and ``reasoning-gym``.

GRPO with TRL's own defaults (loss, schedule, no KL) from the same weights, prompts, rate and number of samples; the reward is
the task's own scorer, as on our side. Saves the model in the folder given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import reasoning_gym
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(work["threads"])
    rows = [json.loads(line) for line in Path(work["rows"]).read_text(encoding="utf-8").splitlines()]
    score = reasoning_gym.get_score_answer_fn(work["task"])

    def reward(completions, entry, **_):
        return [float(score(text.strip(), json.loads(one))) for text, one in zip(completions, entry, strict=True)]

    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    tokenizer.padding_side = "left"
    config = GRPOConfig(
        output_dir=work["out"], seed=work["seed"], max_steps=work["steps"], learning_rate=work["rate"],
        per_device_train_batch_size=work["prompts"] * work["samples"], num_generations=work["samples"],
        max_completion_length=work["longest"], use_cpu=True, bf16=False, gradient_checkpointing=False, logging_steps=10,
        report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=work["model"], reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model(work["out"])


if __name__ == "__main__":
    main()
