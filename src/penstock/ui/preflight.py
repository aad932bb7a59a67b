"""The rows of a preflight on a terminal: every token with its part in the loss, colours where there are some."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.observe.first_rows import FirstRow, Token
from penstock.runtime.preflight import CheckedStage
from penstock.ui.text import written

STYLES = {"prompt": "dim", "action": "bold green", "end": "bold black on green", "mask": "yellow"}
SHOWN = 24
"""Tokens at either end of a row that the table shows; all are in the text above it."""
MEASURED = ("loss", "grad_norm", "reward", "kl", "entropy", "nll", "accuracy")


def show(stages: Iterable[CheckedStage]) -> int:
    """Print each stage as soon as it was looked at; gives the number of remarks."""
    console, remarks = Console() if sys.stdout.isatty() else Console(width=120), 0
    for stage in stages:
        console.rule(f"[bold]{stage.name}", align="left")
        if not stage.rows:
            console.print("passed over: its rows come into being while it runs", highlight=False)
        for row in stage.rows:
            print_row(console, row)
        measured = [f"{name} {written(stage.metrics[name])}" for name in MEASURED if name in stage.metrics]
        if measured:
            console.print("one step on these: " + " · ".join(measured), highlight=False)
        for remark in stage.remarks:
            console.print(f"! {remark}", style="bold yellow", markup=False, highlight=False)
        remarks += len(stage.remarks)
    legend = Text("tokens: ")
    for kind, style in STYLES.items():
        legend.append(kind, style).append("  ")
    console.print(legend)
    return remarks


def print_row(console: Console, row: FirstRow) -> None:
    """The row as one text with its parts in colours, then its tokens as a table."""
    facts = " · ".join(
        f"{name} {value if isinstance(value, str) else written(value) or '–'}" for name, value in row.facts.items()
    )
    console.print(f"\n{row.name}: {len(row.tokens)} tokens" + (f" · {facts}" if facts else ""), markup=False, highlight=False)
    console.print(Text.assemble(*((token.text, STYLES[token.kind]) for token in row.tokens)))
    console.print(table_of(row.tokens))


def table_of(tokens: tuple[Token, ...]) -> Table:
    """A line for each token; of a long row its beginning, the border of its answer and its end."""
    table = Table("place", "token", "id", "part", "log-prob", box=None, pad_edge=False)
    kept = places(tokens)
    for before, place in zip([-1, *kept], kept, strict=False):
        if place > before + 1:
            table.add_row("…", f"({place - before - 1} more)", "", "", "")
        token = tokens[place]
        logp = "" if token.logp is None else f"{token.logp:.3f}"
        table.add_row(str(place), Text(repr(token.text)), str(token.id), Text(token.kind, STYLES[token.kind]), logp)
    return table


def places(tokens: tuple[Token, ...]) -> list[int]:
    """Places of the tokens that the table shows."""
    count, third = len(tokens), SHOWN // 3
    borders = [place for place in range(1, count) if tokens[place].kind != tokens[place - 1].kind]
    near = {place for border in borders[:3] for place in range(border - third // 2, border + third)}
    return sorted(place for place in {*range(third), *near, *range(count - third, count)} if 0 <= place < count)
