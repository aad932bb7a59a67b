"""Text of a token stream, piece by piece: only what later tokens cannot change or take back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from transformers.convert_slow_tokenizer import bytes_to_unicode

if TYPE_CHECKING:
    from penstock.models.text import Text

BROKEN = "\ufffd"
"""What stands for bytes that are no whole character yet."""
WINDOW, CONTEXT = 32, 4
"""Tokens that are decoded together at most, and those that stay when the window moves on."""

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""By the letters that byte-level tokenizers spell them with."""


def bytes_of(token: int, piece: str, text: Text) -> list[int] | None:
    """The UTF-8 bytes of a token that reads as ``piece``, by its name in the vocabulary where it is only part of a character;
    None where the tokenizer is of a kind whose names do not say."""
    if BROKEN not in piece:
        return list(piece.encode())
    name = str(text.tokenizer.convert_ids_to_tokens(token))
    if found := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
        return [int(found[1], 16)]
    return [_BYTES[letter] for letter in name] if _BYTES.keys() >= set(name) else None


class Unfolding:
    """The text of one sample. It ends before the first stop string, and a stop token has none."""

    def __init__(self, text: Text, stop: Sequence[str] = (), stop_tokens: Collection[int] = ()) -> None:
        self.text, self.stop, self.stop_tokens = text, stop, stop_tokens
        self.places: list[int] = []
        """Where in the text each token's characters begin; tokens of one character share a place."""
        self.stopped = False
        """Whether a stop string is in the text, that of tokens which are no whole character yet included."""
        self._longest = max(map(len, stop), default=1)
        self._known = ""
        self._given = 0
        self._window: list[int] = []
        self._broken = False
        """Whether the last tokens are no whole character yet."""
        self._seen = 0
        """Characters of the window's text that are known already."""

    def add(self, tokens: Iterable[int]) -> str:
        """The piece of text that has become certain with these tokens; it may be empty."""
        for token in tokens:
            before, broken = len(self._known), self._broken
            if token not in self.stop_tokens:
                self._extend(token)
            after = len(self._known)
            if broken and after > before:  # bytes before it have turned out to be no character, and have a place of their own
                own = self.text.decode([token])
                before = before if BROKEN in own else after - len(own)
            self.places.append(before)
        piece = self._known[self._given : max(self._given, self._certain())]
        self._given += len(piece)
        return piece

    def end(self, whole: str) -> str:
        """What is left when the sample has ended with the text ``whole``."""
        return whole[self._given :]

    def _extend(self, token: int) -> None:
        self._window.append(token)
        decoded = self.text.decode(self._window)
        self._broken = decoded.endswith(BROKEN)
        if self.stop:
            end = self._known[max(0, len(self._known) - self._longest + 1) :] + decoded[self._seen :]
            self.stopped |= any(stop in end for stop in self.stop)
        if self._broken:
            return
        self._known += decoded[self._seen :]
        self._seen = len(decoded)
        if len(self._window) >= WINDOW:
            self._window = self._window[-CONTEXT:]
            self._seen = len(self.text.decode(self._window))

    def _certain(self) -> int:
        """How many characters are sure to stay: those before a stop string and before what may become one."""
        found = [at for stop in self.stop if (at := self._known.find(stop, max(0, self._given - len(stop)))) >= 0]
        if found:
            return min(found)
        for held in range(min(self._longest - 1, len(self._known)), 0, -1):
            if any(stop.startswith(self._known[-held:]) for stop in self.stop):
                return len(self._known) - held
        return len(self._known)
