"""What a model that sees makes of pictures: patches, how many tokens they are, and where these are (M-RoPE).

A token that shows a part of a picture carries the picture's number (:attr:`penstock.core.blobs.Blob.number`) in the column
``picture_T``; all else follows from it. Pixels are in no sample.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.config.vision import MARK
from penstock.core.blobs import Blob
from penstock.core.errors import DataError, ModelError
from penstock.core.types import IntArray
from penstock.models.text import PictureStore, Text

PICTURES = "picture_T"
"""The column: the number of the picture that each token shows a part of, 0 for text."""
ROOM = 1 << 28
"""Bytes of patches that are kept at most: 256 MiB."""

Names = NDArray[np.int64]


class Patches(NamedTuple):
    """A picture as the tower reads it."""

    values_PD: Tensor
    grid: tuple[int, int, int]
    """Patches in time, height and width."""


class Sight:
    """The picture processor of a model. What it made of a picture is kept by the picture's number and its own settings.

    Args:
        processor: of transformers' PIL processors of the Qwen-VL kind.
    """

    def __init__(self, processor: Any) -> None:
        self.processor, self.merge = processor, int(processor.merge_size)
        self.store: PictureStore | None = None
        """Where pictures that were not seen before are found."""
        self._kept: OrderedDict[tuple[int, str], Patches] = OrderedDict()
        self._bytes = 0

    def __deepcopy__(self, known: Any) -> Sight:
        """Itself: copies of a model read the same pictures."""
        return self

    @property
    def settings(self) -> str:
        """How pictures are processed, in full."""
        return str(self.processor.to_json_string())

    def of(self, name: int) -> Patches:
        """The patches of a picture. Raises DataError where nobody has it."""
        key = name, self.settings
        if key not in self._kept:
            if self.store is None:
                raise DataError(f"picture {name:015x} is nowhere to be had: the model's text has no store of pictures")
            self.keep(name, self.made(self.store.pixels(name)))
        self._kept.move_to_end(key)
        return self._kept[key]

    def made(self, pixels_HWC: NDArray[np.uint8]) -> Patches:
        """Patches of pixels. Raises DataError for a shape that the processor refuses."""
        try:
            made = self.processor(images=[pixels_HWC], return_tensors="np", input_data_format="channels_last")
        except ValueError as error:
            raise DataError(
                f"a picture of {pixels_HWC.shape[1]} x {pixels_HWC.shape[0]} pixels cannot be read: {error}"
            ) from error
        time, height, width = (int(count) for count in made["image_grid_thw"][0])
        return Patches(torch.from_numpy(np.ascontiguousarray(made["pixel_values"], np.float32)), (time, height, width))

    def tokens(self, name: int) -> int:
        """How many tokens a picture has."""
        return int(np.prod(self.of(name).grid)) // self.merge**2

    def keep(self, name: int, patches: Patches) -> None:
        """Keep the patches of a picture under its number; the least recently used go where there is no room."""
        key = name, self.settings
        self._kept[key] = patches
        self._bytes += patches.values_PD.nbytes
        while self._bytes > ROOM and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].values_PD.nbytes

    def places(self, picture_T: Names) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of a row's tokens the positions ``[3, T]`` in time, height and width (M-RoPE, Qwen2-VL, arXiv:2409.12191) and which
        part of its picture each shows ``[T]``. Text goes on after the largest position of a picture before it."""
        position_3T, part_T = np.zeros((3, len(picture_T)), np.int64), np.zeros(len(picture_T), np.int64)
        token = position = 0
        while token < len(picture_T):
            ends = np.flatnonzero(picture_T[token:] != picture_T[token])
            end = token + int(ends[0]) if len(ends) else len(picture_T)
            if picture_T[token]:
                time, height, width = self.of(int(picture_T[token])).grid
                shape = time, height // self.merge, width // self.merge
                end = min(end, token + shape[0] * shape[1] * shape[2])  # the same picture twice, side by side, is two
                position_3T[:, token:end] = position + np.indices(shape).reshape(3, -1)[:, : end - token]
                part_T[token:end] = np.arange(end - token)
                position += max(shape[1:])
            else:
                position_3T[:, token:end] = position + np.arange(end - token)
                position += end - token
            token = end
        return position_3T, part_T


class SeeingText(Text):
    """A tokenizer that writes as many picture tokens at each :data:`MARK` as the model reads for the picture.

    Args:
        marks: the token of each part of a picture, and those before and after a picture.
        media: all tokens of media; no text spells them and none is ever generated.
    """

    def __init__(self, plain: Text, sight: Sight, marks: tuple[int, int, int], media: frozenset[int]) -> None:
        self.sight, self.marks_around, self.media = sight, marks, media
        super().__init__(plain.tokenizer, plain.ends)
        self.blobs: tuple[Blob, ...] = ()
        """The pictures of the prompt that is being read."""

    @property
    def store(self) -> PictureStore | None:  # type: ignore[override]
        return self.sight.store

    @store.setter
    def store(self, store: PictureStore | None) -> None:
        self.sight.store = store

    def showing(self, blobs: Sequence[Blob]) -> Text:
        view = copy.copy(self)
        view.blobs = tuple(blobs)
        return view

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text. Raises ModelError where it spells a token of media."""
        tokens = super().encode(text)
        if self.media.intersection(tokens):
            token = self.tokenizer.decode([next(token for token in tokens if token in self.media)])
            raise ModelError(f"the text spells {token}, which is a part of a picture; write {MARK} where a picture is")
        return tokens

    def prompt(self, text: str) -> list[int]:
        """Tokens of a prompt, its pictures expanded: this is the only place where they are.

        Raises:
            ModelError: it has more or fewer marks than pictures.
        """
        parts = text.split(MARK)
        if len(parts) - 1 != len(self.blobs):
            raise ModelError(
                f"the prompt has {len(self.blobs)} pictures and {len(parts) - 1} marks {MARK}; write one where each is "
                f"(columns image: a picture or a list of them)"
            )
        pad, start, end = self.marks_around
        tokens: list[int] = []
        for place, part in enumerate(parts):
            if place:
                tokens += [start, *[pad] * self.sight.tokens(self.blobs[place - 1].number), end]
            tokens += self.encode(part)
        before = [] if self.before == tokens[: len(self.before)] else self.before
        return [*before, *tokens] or [self.end]

    def pictured(self, tokens_T: IntArray, blobs: Sequence[Blob]) -> Mapping[str, Any]:
        """The column :data:`PICTURES` of tokens that show these pictures in this order.

        Raises:
            ModelError: the tokens have places for more or fewer.
        """
        places = np.isin(tokens_T, sorted(self.media))
        names = [np.full(self.sight.tokens(blob.number), blob.number, np.int64) for blob in blobs]
        found, wanted = int(places.sum()), sum(map(len, names))
        if found != wanted:
            raise ModelError(f"{found} tokens show pictures, and the pictures have {wanted}; they do not belong together")
        if not names:
            return {}
        picture_T = np.zeros(len(tokens_T), np.int64)
        picture_T[places] = np.concatenate(names)
        return {PICTURES: picture_T}

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.sight.processor.save_pretrained(folder)
