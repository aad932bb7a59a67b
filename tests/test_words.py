"""A practitioner's words: counts of retired words over sources, pages and docs, which may only fall. The goal is zero for each.

``python tests/test_words.py WORD`` prints where a word is.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = (".py", ".md", ".jinja", ".js", ".html")
HISTORY = ("docs/log.md", "docs/decisions/")
NAMES_OF_TESTS = re.compile(r"`\w+\.py::[^`]*`")
SLACK = 10
"""A count that is lower than allowed by more than this must be lowered in :data:`ALLOWED`."""


def part(*words: str) -> str:
    """A pattern of words as such, as parts of snake_case and of CamelCase."""
    lower = "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words)
    camel = "|".join(word.capitalize() for word in words)
    return rf"(?<![A-Za-z])(?:{lower})(?![A-Za-z])|(?<=[a-z])(?:{camel})(?![a-z])"


RETIRED = {
    "told": (part("told"), "say: announced, reported, given"),
    "drawn": (part("drawn"), "say: generated, sampled"),
    "hand": (
        rf"(?<!other )(?<!by )(?<!at )(?<!By )(?<!shake_)(?:{part('hand', 'hands')})(?!-)(?! (?:values?|written|over)\b)",
        "say: worker, node agent; in_hand: in_flight",
    ),
    "board": (rf"(?<!Tensor)(?:{part('board', 'boards')})", "say: weight registry"),
    "exam": (part("exam", "exams"), "say: evaluation request"),
    "whoever": (part("whoever"), "name who it is"),
    "stillborn": (r"(?i)\bstillborn\b", "say: failed start"),
    "parting": (r"PARTING|\bparting\b", "say: shutdown grace"),
    "knocking": (r"(?i)knocking", "say: connect timeout"),
    "greeting": (part("greeting", "greetings"), "say: bootstrap"),
    "incarnation": (part("incarnation", "incarnations"), "say: learner epoch"),
    "tethered": (part("tethered", "tether"), "say: dies with its parent"),
    "handover": (part("handover", "handovers"), "say: loader"),
    "how-manieth": (r"manieth", "say: index"),
    "who has left": (r"\bwho has left\b", "say: workers that left"),
    "stands": (r"\bstands?\b(?! (?:for|in for|out)\b)", "say: is"),
    "withdrawn": (part("withdrawn", "withdrawal", "withdrawals"), "say: revoked, stale"),
    "maker": (part("maker", "makers"), "say: worker, owner"),
    "tape": (part("tape", "tapes"), "say: recording"),
    "beside": (r"\b[Bb]eside\b", "say: next to, besides, as well as, with"),
    "Drawing": (r"\b(?:Remote)?Drawing\b", "rollout client"),
    "Leasing": (r"\b(?:Remote)?Leasing\b", "learner client"),
    "Border": (r"\bBorder\b|\bHolding\b", "version barrier, drain barrier"),
    "Flight": (r"\bFlight\b", "in-flight request"),
    "Talk": (r"\bTalk\b|\bAsked\b", "HTTP client, parsed request"),
    "Meeting": (r"\bMeeting\b|\bElsewhere\b|\bHere\b(?=[(:\]])", "rendezvous, remote launcher, local launcher"),
    "OnlineParts": (r"\bOnlineParts\b|\bAside\b|\bInbox\b", "stage runtime, evaluation queue, receive buffer"),
    "LabelScore": (r"\bLabelScore\b", "binary reward model"),
}
"""Word, pattern, and what a practitioner would say."""

ELSEWHERE = {
    "drawn": ("src/penstock/ui/", "src/penstock/web/"),
    "Border": ("src/penstock/models/", "src/penstock/feedback/page/"),
    "Talk": (
        "src/penstock/feedback/",
        "src/penstock/runtime/judging.py",
        "src/penstock/runtime/stages/ask.py",
        "src/penstock/ui/",
    ),
    "withdrawn": ("src/penstock/feedback/", "src/penstock/product/", "src/penstock/cli/", "docs/feedback"),
}
"""Where a word means something else: pictures are drawn, a frozen part has a border, people are asked and withdraw votes."""

ALLOWED: dict[str, int] = {
    "told": 8,
    "drawn": 20,
    "hand": 9,
    "board": 0,
    "exam": 0,
    "whoever": 0,
    "stillborn": 0,
    "parting": 0,
    "knocking": 0,
    "greeting": 7,
    "incarnation": 0,
    "tethered": 0,
    "handover": 0,
    "how-manieth": 0,
    "who has left": 0,
    "stands": 11,
    "withdrawn": 0,
    "maker": 0,
    "tape": 79,
    "beside": 9,
    "Drawing": 1,
    "Leasing": 0,
    "Border": 0,
    "Flight": 0,
    "Talk": 0,
    "Meeting": 0,
    "OnlineParts": 11,
    "LabelScore": 0,
}
"""How often each word is there. May only fall."""


@cache
def texts() -> list[tuple[str, str]]:
    """(path, text) of what users read: sources, pages and docs, there without names of tests."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*"))]
    named = ((file.relative_to(ROOT).as_posix(), file) for file in files if file.suffix in PAGES)
    return [(name, NAMES_OF_TESTS.sub("", file.read_text("utf-8"))) for name, file in named if not name.startswith(HISTORY)]


def found(word: str) -> Iterator[tuple[str, int, str]]:
    """(path, line number, line) of each place of a retired word."""
    pattern = re.compile(RETIRED[word][0])
    for name, text in texts():
        if name.startswith(ELSEWHERE.get(word, ("\0",))):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((name, number, line.strip()) for _ in pattern.finditer(line))


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_does_not_come_back(word: str) -> None:
    places = Counter(name for name, _, _ in found(word))
    count, allowed = places.total(), ALLOWED.get(word, 0)
    most = ", ".join(f"{name} {times}" for name, times in places.most_common(12))
    assert count <= allowed, f'"{word}" is there {count} times, {allowed} are allowed; {RETIRED[word][1]} ({most})'
    assert allowed - count <= SLACK, f'"{word}" is there {count} times; lower ALLOWED["{word}"] from {allowed}'


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("hand", "on the other hand, written by hand: the hand-computed case of beforehand"),
        ("stands", "N stands for the number of tokens; it stands out"),
        ("board", "TensorBoard and the dashboard"),
        ("exam", "for example"),
        ("maker", "a filmmaker"),
    ],
)
def test_ordinary_english_is_left_alone(word: str, text: str) -> None:
    assert re.search(RETIRED[word][0], text) is None


@pytest.mark.parametrize(
    ("word", "text"), [("hand", "class NodeHand:"), ("exam", "next_exam"), ("drawn", "Drawn"), ("hand", "a hand")]
)
def test_identifiers_are_seen(word: str, text: str) -> None:
    assert re.search(RETIRED[word][0], text)


if __name__ == "__main__":
    for each in sys.argv[1:] or RETIRED:
        rows = list(found(each))
        print(
            f'    "{each}": {len(rows)},'
            if len(sys.argv) == 1
            else "\n".join(f"{path}:{line}: {text}" for path, line, text in rows)
        )
