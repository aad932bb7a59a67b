"""A strict reader of the text format 0.0.4, as Prometheus describes it: families in one piece, each value once."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:{{({LABEL}(?:,{LABEL})*)}})? (-?[0-9.eE+-]+|NaN|[+-]Inf)")


def read(text: str) -> dict[str, float]:
    """The values of a scrape by name and labels, as they are written."""
    assert text.endswith("\n"), "the last line ends too"
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    found: dict[str, float] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in helped, f"{family} is in two pieces"
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, name in kinds) == (family, False), line
            assert kind in ("counter", "gauge", "histogram"), line
            assert kind != "counter" or name.endswith("_total"), line
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            ends = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
            assert match[1] in {family + end for end in ends}, f"{line} stands under {family}"
            assert line.rsplit(" ", 1)[0] not in found, f"{line} is there twice"
            found[line.rsplit(" ", 1)[0]] = float(match[3])
    for name, kind in kinds.items():
        if kind == "histogram":
            buckets = [value for key, value in found.items() if key.startswith(f"{name}_bucket")]
            assert buckets == sorted(buckets), f"{name}: buckets add up"
            assert buckets[-1] == found[f'{name}_bucket{{le="+Inf"}}'] == found[f"{name}_count"]
    return found
