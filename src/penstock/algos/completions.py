"""From rendered texts to tokens, for algorithms that learn from data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.core.algorithm import Encoder
from penstock.core.errors import DataError
from penstock.core.types import BoolArray, IntArray


def completed(example: Mapping[str, Any], column: str, tokenizer: Encoder) -> tuple[IntArray, BoolArray]:
    """Tokens of the prompt and one completion, and which of them a model has to produce.

    The prompt's tokens are those that a generator is given. An end token closes the completion, unless it brings its own.

    Args:
        example: rendered texts: ``prompt`` and the one named by ``column`` (``completion``, ``chosen`` or ``rejected``).

    Returns:
        ``tokens_T`` and ``produced_T``, true for the completion and its end. The first token of all is never produced:
        nothing comes before it that could predict it.

    Raises:
        DataError: a text is missing or is no text.
    """
    for name in ("prompt", column):
        if not isinstance(example.get(name), str):
            there = ", ".join(map(str, example)) or "nothing"
            raise DataError(f'an example needs the text "{name}", got {example.get(name)!r}; the example has {there}')
    prompt, completion = tokenizer.pair(example["prompt"], example[column])
    if any(token in tokenizer.ends for token in completion[:-1]):
        raise DataError(f"the {column} spells an end mark before its end ({example[column][-60:]!r}), where every answer ends; "
                        "leave it out, or give turns as messages")  # fmt: skip
    if not completion or completion[-1] not in tokenizer.ends:
        completion = [*completion, tokenizer.end]
    tokens_T = np.array([*prompt, *completion], np.int32)
    produced_T = np.arange(len(tokens_T)) >= max(len(prompt), 1)
    return tokens_T, produced_T


def conversation(turns: Sequence[tuple[str, str]], tokenizer: Encoder) -> list[tuple[IntArray, BoolArray]]:
    """:func:`completed` of the rendered ``turns`` of a conversation, each with all that was said before it as its prompt. One
    that begins with all the tokens of the row before is part of it; of others (Qwen-3's template leaves out what was thought
    before the last) each is a row, which is what a model reads at that turn.
    """
    rows: list[tuple[IntArray, BoolArray]] = []
    for prompt, completion in turns:
        tokens_T, produced_T = completed({"prompt": prompt, "completion": completion}, "completion", tokenizer)
        if rows and np.array_equal(tokens_T[: len(rows[-1][0])], rows[-1][0]):
            earlier_T = rows.pop()[1]
            produced_T[: len(earlier_T)] |= earlier_T
        rows.append((tokens_T, produced_T))
    return rows
