"""The audit of a stage's rewards on labelled texts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.config.run import DataSpec
from penstock.core.errors import DataError, RewardError
from penstock.loops.evaluate import reward_accuracy
from penstock.models.text import train_tokenizer

TEXT = train_tokenizer(["good bad"], 300)


class Scripted:
    """Rewards the word good, punishes the word bad, fails on others."""

    async def __call__(self, group):
        sample = group.samples[0]
        value = {"good": 1.0, "bad": -1.0}.get(sample.text)
        scored = sample.scored(value) if value is not None else sample.failed("RewardError: neither")
        return replace(group, samples=(scored,))


def audit(tmp_path, rows):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "{text}", "label": {label}}}\n' for text, label in rows))
    data = DataSpec(source="rows.jsonl", prompt="", completion="{{ text }}")
    return asyncio.run(reward_accuracy(data, Scripted(), TEXT, Path(tmp_path)))


def test_accuracy_is_the_share_of_labels_whose_sign_the_reward_has(tmp_path):
    assert audit(tmp_path, [("good", 1), ("good", 0), ("bad", 0), ("bad", 0)]) == {"evaluation/reward_accuracy": 0.75}


def test_a_text_that_cannot_be_scored_is_an_error_and_not_a_zero(tmp_path):
    with pytest.raises(RewardError, match="neither"):
        audit(tmp_path, [("good", 1), ("odd", 0)])


def test_a_row_without_a_label_of_0_or_1_is_refused(tmp_path):
    with pytest.raises(DataError, match="label"):
        audit(tmp_path, [("good", 2)])
