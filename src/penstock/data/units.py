"""Rows of data as labelled units, for algorithms that learn from data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.algorithm import FromData
from penstock.core.errors import DataError, ModelError
from penstock.core.types import Prompt, Unit
from penstock.data.sampler import Sampler, examples, pairs, prompts, row_name
from penstock.data.texts import Tokenizer, example_texts, reader

KINDS: dict[str, Callable[..., Sampler[Any]]] = {"pairs": pairs, "examples": examples, "prompts": prompts}


def units_of(
    spec: DataSpec, base: Path, seed: int, algorithm: FromData, text: Tokenizer, context: int
) -> tuple[Callable[[int], Unit], int]:
    """A function from ordinal to labelled unit, and how many there are in an epoch.

    The algorithm is given the row's columns and, over them, its rendered texts. The function raises DataError where a row is
    longer than the context, or the chat template refuses it.
    """
    sampler = KINDS[algorithm.data](spec, base, seed)

    def unit(ordinal: int) -> Unit:
        item = sampler(ordinal)
        prompt = item if isinstance(item, Prompt) else item.prompt
        try:
            texts = example_texts(item, text, algorithm.every_turn)
        except ModelError as error:
            raise DataError(f"{row_name(sampler, spec, ordinal)}: {error}") from error
        rows = algorithm.rows(texts, reader(prompt, text))
        longest = max(len(row.tokens_T) for row in rows)
        if longest > context:
            raise DataError(
                f"{row_name(sampler, spec, ordinal)}: {longest} tokens do not fit the model's context of {context}; "
                f"drop long rows or use a longer context"
            )
        return rows

    return unit, len(sampler)
