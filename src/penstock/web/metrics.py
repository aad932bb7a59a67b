"""Counts of a server in the text format that Prometheus reads, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

KIND = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of such a text."""
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histograms' buckets."""
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Value = tuple[Mapping[str, object], float]
"""A number with its labels."""


def head(name: str, kind: str, what: str) -> list[str]:
    """The lines that say what the values of a name are."""
    return [f"# HELP penstock_{name} {what}", f"# TYPE penstock_{name} {kind}"]


def values(name: str, kind: str, what: str, found: Iterable[Value]) -> list[str]:
    """The lines of a counter or a gauge."""
    lines = head(name, kind, what)
    for labels, value in found:
        inside = ",".join(f'{label}="{str(text).translate(ESCAPED)}"' for label, text in labels.items())
        lines.append(f"penstock_{name}{{{inside}}} {value}" if inside else f"penstock_{name} {value}")
    return lines


@dataclass
class Histogram:
    """Durations in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[sum(seconds > bound for bound in SECONDS)] += 1
        self.total += seconds

    def lines(self, name: str, what: str) -> Iterator[str]:
        """The lines of the histogram."""
        yield from head(name, "histogram", what)
        reached = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            reached += count
            yield f'penstock_{name}_bucket{{le="{bound}"}} {reached}'
        yield f"penstock_{name}_sum {self.total:.6f}"
        yield f"penstock_{name}_count {reached}"
