"""Rows of data as labelled units, for algorithms that learn from data, and as prompts; what becomes of those too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.core.algorithm import FromData
from penstock.core.errors import DataError, ModelError, SpecError
from penstock.core.types import Metrics, Prompt, Row, Unit
from penstock.data.media import illustrated
from penstock.data.sampler import LOOKED_THROUGH, Sampler, examples, pairs, prompts, row_name
from penstock.data.texts import Tokenizer, example_texts, prompt_tokens, reader

KINDS: dict[str, Callable[..., Sampler[Any]]] = {"pairs": pairs, "examples": examples, "prompts": prompts}


class Units:
    """Labelled units by their ordinal, a pure function; ``len`` is how many there are in an epoch.

    The algorithm is given the row's columns and, over them, its rendered texts. Where the spec drops or truncates long rows,
    all rows are looked at first.

    Raises:
        DataError: a row cannot be trained on, the chat template refuses it, or it is too long (and is to be refused).
        SpecError: rows are to be truncated, and the algorithm's mean nothing when they are.
    """

    def __init__(self, spec: DataSpec, base: Path, seed: int, algorithm: FromData, text: Tokenizer, context: int) -> None:
        self.spec, self.algorithm, self.text, rule = spec, algorithm, text, spec.too_long
        self.limit = min(rule.tokens or context, context)
        self.bound = "data.too_long.tokens" if self.limit < context else "the model's context"
        self.sampler = with_media(KINDS[algorithm.data](spec, base, seed), text, base)
        self.counts: Metrics = {}
        """How many rows of the data were dropped and truncated; none where they are refused, or looked at in their turn."""
        if rule.cuts and not algorithm.truncates:
            raise SpecError(f"a row of {type(algorithm).__name__} means nothing without its end; set data.too_long=Drop")
        if rule.cuts and text.store is not None:
            raise SpecError(
                "half a medium shows nothing, so rows of a model that reads media are not cut; set data.too_long=Drop"
            )
        if rule.cuts or rule.drops:
            rows, self.cut = len(self.sampler), 0
            self.sampler = self.sampler.where(self._stays)
            if rows <= LOOKED_THROUGH:
                self.counts = {"data/dropped": float(rows - len(self.sampler)), "data/truncated": float(self.cut)}

    def __len__(self) -> int:
        return len(self.sampler)

    def __call__(self, ordinal: int) -> Unit:
        rows = self._rows(self.sampler(ordinal), self.sampler.index(ordinal))
        longest = max(len(row.action_T) for row in rows)
        if longest > self.limit and not self.spec.too_long.cuts:
            raise DataError(
                f"{row_name(self.sampler, self.spec, ordinal)}: {longest} tokens do not fit {self.bound} of {self.limit}; "
                f"set data.too_long to Drop or Truncate, or use a longer context"
            )
        return tuple(self._first(rows)) if longest > self.limit else rows

    def prompt(self, ordinal: int) -> Prompt:
        """The prompt of a draw."""
        item = self.sampler(ordinal)
        return item if isinstance(item, Prompt) else item.prompt  # type: ignore[no-any-return]

    def _rows(self, item: Any, row: int) -> Unit:
        prompt = item if isinstance(item, Prompt) else item.prompt
        try:
            texts = example_texts(item, self.text, self.algorithm.every_turn)
            rows = self.algorithm.rows(texts, reader(prompt, self.text))
            if not prompt.blobs:
                return rows
            return tuple(
                replace(one, columns={**one.columns, **self.text.media_columns(one.tokens_T, prompt.blobs)}) for one in rows
            )
        except ModelError as error:
            raise DataError(f"{self.spec.source} row {row + self.spec.skip}: {error}") from error

    def _first(self, rows: Unit) -> Iterator[Row]:
        """What is kept of rows, of those that have an action left."""
        for row in rows:
            fits = len(row.action_T) <= self.limit
            if fits or row.action_T[: self.limit].any():
                yield row if fits else self.algorithm.truncated(row, self.limit)

    def _stays(self, item: Any, row: int) -> bool:
        rows = self._rows(item, row)
        if all(len(row.action_T) <= self.limit for row in rows):
            return True
        kept = tuple(self._first(rows)) if self.spec.too_long.cuts else ()
        stays = bool(kept) and (self.algorithm.every_turn or len(kept) == len(rows))  # a pair is whole or none
        self.cut += stays
        return stays


def with_media(sampler: Sampler[Any], text: Tokenizer, base: Path) -> Sampler[Any]:
    """A sampler whose prompts have the media of their rows as blobs, for a model that reads some."""
    if text.store is None:
        return sampler
    change = illustrated(text.store, base)
    return sampler.mapped(lambda item: change(item) if isinstance(item, Prompt) else replace(item, prompt=change(item.prompt)))


def prompts_of(spec: DataSpec, base: Path, seed: int, text: Tokenizer) -> Sampler[Prompt]:
    """The prompts of a spec that are to be answered, without those that it drops.

    Raises:
        SpecError: they are to be truncated, or to be dropped and no length is named.
    """
    sampler, rule = with_media(prompts(spec, base, seed), text, base), spec.too_long
    if rule.cuts or (rule.drops and not rule.tokens):
        raise SpecError(
            f"data.too_long={type(rule).__name__}({rule.tokens}): a prompt without its end is another question; "
            "drop long ones: Drop(tokens=…), which leaves room for an answer"
        )
    return sampler.where(lambda prompt, _: len(prompt_tokens(prompt, text)) <= rule.tokens) if rule.drops else sampler
