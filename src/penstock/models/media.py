"""What a model makes of pictures, films and sounds: what its tower reads, how many tokens they are, and where these are.

A token that shows a part of a medium carries the medium's number (:attr:`penstock.core.blobs.Blob.number`) in the column
``media_T``; all else follows from it. Content is in no sample.
"""

from __future__ import annotations

import copy
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.config.media import MARKS
from penstock.core.blobs import Blob, Decoded, medium_of
from penstock.core.errors import DataError, ModelError
from penstock.core.messages import Message
from penstock.core.types import IntArray
from penstock.models.attention import quiet_transformers
from penstock.models.text import MediaStore, Text

MEDIA = "media_T"
"""The column: the number of the medium that each token shows a part of, 0 for text."""
ROOM = 1 << 28
"""Bytes of what towers read that are kept at most: 256 MiB."""
PLURAL = {"image": "pictures", "video": "films", "audio": "sounds"}
_MARK = re.compile(f"({'|'.join(MARKS.values())})")
_KIND = {mark: kind for kind, mark in MARKS.items()}

Names = NDArray[np.int64]


class Medium(NamedTuple):
    """A picture, film or sound as a model reads it."""

    inputs: Mapping[str, Tensor]
    """What the tower reads, by transformers' names; media follow one another along the first axis."""
    tokens: tuple[int, ...]
    """How it is in a prompt: the tokens of its parts, and those around and between them."""
    parts: int
    """How many of the tokens show a part of it."""
    grid: tuple[int, int, int] | None = None
    """Tokens in time, height and width of a run of its parts; None: positions count tokens."""
    pace: float = 1.0
    """By how much the position in time grows from one part in time to the next."""
    around: str = ""
    """Text before and after it, which is tokenized with what is next to it there."""


class Processor(Protocol):
    """How models of one type read media: what their tower gets, what it gives, and what is left for the decoder."""

    pads: Mapping[str, int]
    """The token of a part of a medium, by the kind of medium; of no other kind are media read."""
    forbidden: frozenset[int]
    """All tokens of media; no text spells them and none is ever generated."""
    mrope: bool
    """Whether positions are three (M-RoPE: time, height, width)."""
    mutual: bool
    """Whether the parts of a medium attend to one another, also to later ones."""

    @property
    def settings(self) -> str:
        """How media are processed, in full."""
        ...

    def read(self, medium: Any, text: Text) -> Medium:
        """What the model reads of decoded content. Raises ValueError where it cannot."""
        ...

    def towers(self, network: Any) -> Sequence[nn.Module]:
        """The modules that encode media."""
        ...

    def decoder(self, network: Any) -> Any:
        """The module that reads what they gave."""
        ...

    def features(self, network: Any, media: Sequence[Medium]) -> list[Tensor]:
        """Media of one kind as the decoder reads them, a row a part; what later layers read is next to it."""
        ...

    def arguments(self, media: Sequence[Medium], tokens_BT: Tensor) -> dict[str, Any]:
        """What transformers' own forward pass is given besides the tokens."""
        ...

    def examples(self) -> list[Any]:
        """Decoded content of each kind that is read."""
        ...

    def save(self, folder: Path) -> None:
        """Write the settings."""
        ...


def loaded(kind: Any, path: str, place: Mapping[str, Any]) -> Any:
    """transformers' processor of a class, of a model folder or hub name. Raises ModelError where it says nothing of media."""
    try:
        with quiet_transformers():
            return kind.from_pretrained(path, **place)
    except Exception as error:
        raise ModelError(f"{path}: how media are read (preprocessor_config.json) cannot be loaded: {error}") from error


class Senses:
    """The processor of a model. What it made of a medium is kept by the medium's number and the processor's settings."""

    def __init__(self, processor: Any) -> None:
        self.processor: Any = processor
        self.store: MediaStore | None = None
        """Where media that were not read before are found."""
        self.text: Text | None = None
        self._kept: OrderedDict[tuple[int, str], Medium] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()  # a server reads media in threads

    def __deepcopy__(self, known: Any) -> Senses:
        """Itself: copies of a model read the same media."""
        return self

    def of(self, name: int) -> Medium:
        """A medium by its number. Raises DataError where nobody has it or it cannot be read."""
        key = name, self.processor.settings
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        if self.store is None:
            raise DataError(f"medium {name:015x} is nowhere to be had: the model's text has no store of media")
        return self.keep(name, self.made(self.store.decoded(name)))

    def made(self, decoded: Decoded) -> Medium:
        """What the model reads of content. Raises DataError where the processor refuses it."""
        kind = medium_of(decoded)
        if kind not in self.processor.pads:
            read = " and ".join(PLURAL[one] for one in self.processor.pads)
            raise DataError(f"the model reads {read}, and {PLURAL[kind]} are given; leave the column {kind} out")
        assert self.text is not None
        try:
            made: Medium = self.processor.read(decoded, self.text)
        except ValueError as error:
            raise DataError(f"{kind} cannot be read: {error}") from error
        return made

    def tokens(self, name: int) -> int:
        """How many tokens show a part of a medium."""
        return self.of(name).parts

    def keep(self, name: int, medium: Medium) -> Medium:
        """Keep a medium under its number; the least recently used go where there is no room."""
        key = name, self.processor.settings
        with self._lock:
            self._bytes += _size(medium) - (_size(self._kept[key]) if key in self._kept else 0)
            self._kept[key] = medium
            while self._bytes > ROOM and len(self._kept) > 1:
                self._bytes -= _size(self._kept.popitem(last=False)[1])
        return medium

    def places(self, media_T: Names) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of a row's tokens the positions ``[3, T]`` in time, height and width and which part of its medium each shows ``[T]``.

        With M-RoPE (Qwen2-VL, arXiv:2409.12191, 2.1) text goes on after the largest position of a medium before it, in
        whichever of the three that is; else positions count tokens.
        """
        position_3T, part_T = np.zeros((3, len(media_T)), np.int64), np.zeros(len(media_T), np.int64)
        token = position = name = done = 0
        while token < len(media_T):
            ends = np.flatnonzero(media_T[token:] != media_T[token])
            end = token + int(ends[0]) if len(ends) else len(media_T)
            if media_T[token]:
                medium = self.of(int(media_T[token]))
                if media_T[token] != name or done >= medium.parts:
                    name, done = int(media_T[token]), 0
                run = medium.parts - done if medium.grid is None else int(np.prod(medium.grid))
                end = min(end, token + run)  # the same medium twice, side by side, is two
                part_T[token:end] = done + np.arange(end - token)
                done += end - token
            if media_T[token] and medium.grid is not None:
                inside_3R = np.indices(medium.grid).reshape(3, -1)
                inside_3R[0] = np.float32(medium.pace) * inside_3R[0].astype(np.float32)
                position_3T[:, token:end] = position + inside_3R[:, : end - token]
                position += int(inside_3R.max()) + 1
            else:
                position_3T[:, token:end] = position + np.arange(end - token)
                position += end - token
            token = end
        return position_3T, part_T

    def last(self, media_T: Names, part_T: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last place that each token of a row attends to where parts are ``mutual``: that of its medium's last part."""
        parts = {name: self.of(name).parts if name else 1 for name in set(media_T.tolist())}
        count_T = np.array([parts[name] for name in media_T.tolist()], np.int64)
        return np.minimum(np.arange(len(media_T)) - part_T + count_T, len(media_T)) - 1


def _size(medium: Medium) -> int:
    return sum(tensor.nbytes for tensor in medium.inputs.values())


class MediaText(Text):
    """A tokenizer that writes a medium's tokens at each mark of its kind (:data:`penstock.config.media.MARKS`)."""

    def __init__(self, plain: Text, processor: Processor) -> None:
        self.senses, self.media = Senses(processor), processor.forbidden
        super().__init__(plain.tokenizer, plain.ends)
        self.senses.text = plain
        self.blobs: tuple[Blob, ...] = ()
        """The media of the prompt that is being read."""

    @property
    def processor(self) -> Processor:
        """How media are read."""
        found: Processor = self.senses.processor
        return found

    @property
    def store(self) -> MediaStore | None:  # type: ignore[override]
        return self.senses.store

    @store.setter
    def store(self, store: MediaStore | None) -> None:
        self.senses.store = store

    def showing(self, blobs: Sequence[Blob]) -> Text:
        view = copy.copy(self)
        view.blobs = tuple(blobs)
        return view

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text. Raises ModelError where it spells a token of media."""
        tokens = super().encode(text)
        if self.media.intersection(tokens):
            token = self.tokenizer.decode([next(token for token in tokens if token in self.media)])
            marks = ", ".join(MARKS[kind] for kind in self.processor.pads)
            raise ModelError(f"the text spells {token}, which is a part of a medium; write a mark where one is ({marks})")
        return tokens

    @property
    def special(self) -> frozenset[str]:
        return super().special - {*self.tokenizer.convert_ids_to_tokens(sorted(self.media))}  # they are refused by name

    def parts(self, content: str) -> list[Message]:
        pads, pieces = self.processor.pads, [piece for piece in _MARK.split(content) if piece]
        return [{"type": _KIND[one]} if _KIND.get(one) in pads else {"type": "text", "text": one} for one in pieces]

    def prompt(self, text: str) -> list[int]:
        """Tokens of a prompt, its media expanded.

        Raises:
            ModelError: it has more or fewer marks than media.
        """
        tokens = self.expanded(text)
        before = [] if self.before == tokens[: len(self.before)] else self.before
        return [*before, *tokens] or [self.end]

    def expanded(self, text: str) -> list[int]:
        """Tokens of a text that shows media at its marks, without what begins a sequence. Raises ModelError as
        :meth:`prompt` does."""
        waiting = self._by_kind(self.blobs)
        pieces = _MARK.split(text)
        for kind in self.processor.pads:
            marks, given = pieces.count(MARKS[kind]), len(waiting.get(kind, ()))
            if marks != given:
                raise ModelError(
                    f"the prompt has {given} {PLURAL[kind]} and {marks} marks {MARKS[kind]}; write one where each is "
                    f"(column {kind}: one of them or a list)"
                )
        tokens, unread = list[int](), ""
        for piece in pieces:
            if piece in _KIND and waiting.get(_KIND[piece]):
                medium = self.senses.of(waiting[_KIND[piece]].pop(0).number)
                tokens += [*(self.encode(unread + medium.around) if unread + medium.around else ()), *medium.tokens]
                unread = medium.around
            else:
                unread += piece
        return tokens + (self.encode(unread) if unread else [])

    def media_columns(self, tokens_T: IntArray, blobs: Sequence[Blob]) -> Mapping[str, Any]:
        """The column :data:`MEDIA` of tokens that show these media, those of a kind in this order.

        Raises:
            ModelError: the tokens have places for more or fewer.
        """
        given, media_T = self._by_kind(blobs), np.zeros(len(tokens_T), np.int64)
        for kind, pad in self.processor.pads.items():
            places = tokens_T == pad
            names = [np.full(self.senses.tokens(blob.number), blob.number, np.int64) for blob in given.get(kind, ())]
            found, wanted = int(places.sum()), sum(map(len, names))
            if found != wanted:
                raise ModelError(
                    f"{found} tokens show {PLURAL[kind]}, and the {PLURAL[kind]} have {wanted}; they do not belong together"
                )
            if names:
                media_T[places] = np.concatenate(names)
        return {MEDIA: media_T} if blobs else {}

    def _by_kind(self, blobs: Sequence[Blob]) -> dict[str, list[Blob]]:
        found: dict[str, list[Blob]] = {}
        for blob in blobs:
            if blob.medium not in self.processor.pads:
                read = " and ".join(PLURAL[kind] for kind in self.processor.pads)
                raise ModelError(f"the model reads {read}, and the prompt has {PLURAL[blob.medium]}; leave them out of its row")
            found.setdefault(blob.medium, []).append(blob)
        return found

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.processor.save(folder)
