"""Feedback in prompts: the nearest approved corrections of a tenant, put before a prompt as data.

Some requests are left alone, so that the effect can be measured: which ones is a pure function of tenant and request.
"""

from __future__ import annotations

import re
import threading
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from penstock.feedback import schema
from penstock.feedback.errors import FeedbackError
from penstock.feedback.queue import uniform
from penstock.product import quarantine
from penstock.product.text import block, fence_mark

if TYPE_CHECKING:
    from penstock.feedback.store import Store
    from penstock.product.tenants import Tenant

Floats = NDArray[np.float32]
Arm = Literal["corrections", "control"]
MOST_READ = 4000
"""Characters of a text that are embedded."""
TOGETHER = 64
"""Texts embedded in one call."""


class Embedder(Protocol):
    """Texts to points whose cosine says how alike they are."""

    @property
    def name(self) -> str:
        """Names the function: points of two embedders of one name may be compared."""

    def __call__(self, texts: Sequence[str]) -> Floats:
        """``[N, D]``, each row of length 1 (or 0 for a text in which there is nothing)."""


class HashedEmbedder:
    """Counts of letter n-grams, hashed into places: the same words, not the same meaning. Needs no model."""

    LENGTHS, PLACES = (3, 4, 5), 1024
    name = "hashed-3-4-5-1024"

    def __call__(self, texts: Sequence[str]) -> Floats:
        made = np.zeros((len(texts), self.PLACES), np.float32)
        for row, text in zip(made, texts, strict=True):
            words = re.sub(r"\W+", " ", unicodedata.normalize("NFKC", text[:MOST_READ]).casefold()).strip()
            if not words:
                continue
            spaced = f" {words} "
            for size in self.LENGTHS:
                for start in range(len(spaced) - size + 1):
                    code = zlib.crc32(spaced[start : start + size].encode("utf-8", "surrogatepass"))
                    row[(code >> 1) % self.PLACES] += 1.0 if code & 1 else -1.0
        return unit_rows(made)


def unit_rows(points: NDArray[Any]) -> Floats:
    """Rows divided by their length; rows of zeros stay. Raises FeedbackError for what is not finite."""
    if not np.isfinite(points).all():
        raise FeedbackError("an embedding is not finite; is it the right model?")
    length = np.linalg.norm(points, axis=1, keepdims=True)
    return (points / np.where(length > 0, length, 1)).astype(np.float32)


@dataclass(frozen=True)
class Retrieval:
    """How corrections are retrieved."""

    nearest: int = 3
    least: float = 0.3
    """Cosine between two prompts below which a correction is no help."""
    control: float = 0.2
    """Share of requests whose prompts are left alone."""
    each: int = 600
    """Characters of each question, answer and correction that are shown."""
    characters: int = 4000
    """Of all of them together."""

    def __post_init__(self) -> None:
        if not 1 <= self.nearest <= 20 or not -1 <= self.least <= 1 or not 0 <= self.control <= 1:
            raise FeedbackError(
                f"nearest={self.nearest}, least={self.least}, control={self.control}; give 1 to 20, a cosine and a share"
            )
        if not 20 <= self.each <= 4000 or not self.each <= self.characters <= 20_000:
            raise FeedbackError(
                f"each={self.each}, characters={self.characters}; give 20 to 4000 a text and at most 20000 together"
            )


def arm(tenant: str, request: str, control: float) -> Arm:
    """The arm of a request: a pure function of tenant and request, ``control`` for that share of them."""
    return "control" if uniform("arm", tenant, request) < control else "corrections"


@dataclass(frozen=True)
class Retrieved:
    """What a request is given: the text to put before its prompt (empty in the control arm), its arm, and what was used."""

    text: str
    arm: Arm
    used: tuple[str, ...]
    """Names of corrections."""

    def columns(self) -> dict[str, Any]:
        """As columns of a data row."""
        return {"corrections": self.text, "arm": self.arm, "corrections_used": list(self.used)}


class Corrections:
    """The approved corrections of one tenant, and of nobody else, ready to be searched. Threads may share one."""

    def __init__(
        self, store: Store, tenant: Tenant, embedder: Embedder, settings: Retrieval | None = None, *, until: int | None = None
    ) -> None:
        """
        Args:
            until: how many rulings to read; None: whatever is there when a prompt comes.
        """
        self.settings = settings or Retrieval()
        self._store, self._tenant, self._embedder, self._until = store, tenant, embedder, until
        self._turn = threading.Lock()
        self._read = 0
        self._known: dict[str, tuple[quarantine.Standing, Floats]] = {}
        self._found: tuple[list[quarantine.Standing], Floats] = [], np.zeros((0, 1), np.float32)

    def retrieve(self, prompt: str, request: str, special: Sequence[str] = (), at: float | None = None) -> Retrieved:
        """What to put before a prompt.

        Args:
            request: names the request; the same name is in the same arm for ever.
            special: marks of the tokenizer that will read the prompt.
            at: the time by which corrections have expired, seconds of the store's clock; None: now.

        Raises:
            FeedbackError: the request has no name.
        """
        if not request:
            raise FeedbackError("a request needs a name, which decides its arm; give it the product's own, or count them")
        chosen = arm(self._tenant.name, request, self.settings.control)
        if chosen == "control":
            return Retrieved("", chosen, ())
        found = self.search(prompt, self._store.now() if at is None else at)
        shown = [{"question": one.prompt, "answer": one.original, "corrected": one.text} for one in found]
        mark = fence_mark(self._tenant.secret, request)
        text = block(shown, mark, special, self.settings.each, self.settings.characters)
        return Retrieved(text, chosen, tuple(one.id for one in found) if text else ())

    def search(self, prompt: str, at: float) -> list[quarantine.Correction]:
        """The corrections whose prompts are nearest by cosine, the nearest first; none that had expired ``at`` that time."""
        approved, point_ND = self._index()
        if not approved:
            return []
        cosine_N = point_ND @ self._embedder([prompt])[0]
        nearest = np.argsort(-cosine_N, kind="stable")
        held = (place for place in nearest if cosine_N[place] >= self.settings.least and approved[place].ruling.expires > at)
        return [approved[place].correction for place, _ in zip(held, range(self.settings.nearest), strict=False)]

    def _index(self) -> tuple[list[quarantine.Standing], Floats]:
        """Corrections and their points. What was ruled since it was last asked for is read, and nothing else."""
        with self._turn:
            newest = quarantine.length(self._store) if self._until is None else self._until
            if newest != self._read:
                self._take(self._read, newest)
                held = list(self._known.values())
                point_ND = np.stack([point for _, point in held]) if held else np.zeros((0, 1), np.float32)
                self._found, self._read = ([one for one, _ in held], point_ND), newest
            return self._found

    def _take(self, after: int, until: int) -> None:
        """Follow the rulings: approved ones come in as the newest, others go, and so do the oldest of too many."""
        first, most = not after, quarantine.MOST_SEARCHED
        ruled = quarantine.standing(
            self._store, self._tenant.name, after, until, "approved" if first else "", most if first else None
        )
        approved = [one for one in ruled if one.ruling.verdict == "approved"]
        points = self._points([one.correction for one in approved], self._load() if first else {})
        for one in ruled:
            self._known.pop(one.correction.id, None)
        self._known |= {one.correction.id: (one, points[one.correction.id]) for one in approved}
        for name in list(self._known)[: max(0, len(self._known) - most)]:
            del self._known[name]

    def _points(self, corrections: Sequence[quarantine.Correction], known: Mapping[str, Floats]) -> dict[str, Floats]:
        """The point of each correction; those that are not known are embedded, and kept in the store."""
        made = dict(known)
        missing = [correction for correction in corrections if correction.id not in known]
        for start in range(0, len(missing), TOGETHER):
            part = missing[start : start + TOGETHER]
            points = self._embedder([correction.prompt[:MOST_READ] for correction in part])
            fresh = {correction.id: point for correction, point in zip(part, points, strict=True)}
            self._save(fresh)
            made |= fresh
        return made

    def _load(self) -> dict[str, Floats]:
        table, texts = schema.vectors, schema.corrections
        query = (
            sa.select(table.c.correction, table.c.vector)
            .join(texts, texts.c.id == table.c.correction)
            .where(table.c.embedder == self._embedder.name, texts.c.tenant == self._tenant.name)
        )
        with self._store.database.read() as connection:
            return {row.correction: np.frombuffer(row.vector, "<f4") for row in connection.execute(query)}

    def _save(self, points: Mapping[str, Floats]) -> None:
        table = schema.vectors
        mine = (table.c.embedder == self._embedder.name) & table.c.correction.in_(list(points))
        with self._store.database.write() as connection:
            there = set(connection.execute(sa.select(table.c.correction).where(mine)).scalars())
            rows = [
                {"correction": name, "embedder": self._embedder.name, "vector": np.asarray(point, "<f4").tobytes()}
                for name, point in points.items()
                if name not in there
            ]
            if rows:
                connection.execute(table.insert(), rows)
