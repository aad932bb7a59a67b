"""A feedback store's numbers as tables on a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show(found: Mapping[str, Any]) -> None:
    """Print progress, annotators and agreement, as ``feedback.service.overview`` finds them."""
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(f"{found['events']} events · {found['skipped']} skipped · {found['flagged']} flagged")
    console.print(progress_table(found))
    console.print(annotator_table(found))
    for agreed in found["agreement"]:
        alpha, (low, high) = agreed["alpha"], agreed["interval"] or (math.nan, math.nan)
        said = "nobody shares a task yet" if alpha is None else f"{alpha:.2f} ({low:.2f} to {high:.2f})"
        line = f"agreement on {agreed['axis']}: {said}, {agreed['units']} shared units"
        console.print(line, markup=False, highlight=False)


def progress_table(found: Mapping[str, Any]) -> Table:
    table = Table("tasks", "all", "open", "judgements", title="Progress", title_justify="left")
    for one in found["progress"]:
        table.add_row(one["purpose"], str(one["tasks"]), str(one["open"]), str(one["judgements"]))
    return table


def annotator_table(found: Mapping[str, Any]) -> Table:
    columns = ("annotator", "role", "done", "per hour", "gold", "repeats", "weight", "concerns")
    table = Table(*columns, title="Annotators", title_justify="left")
    for who in found["annotators"]:
        hourly, weight = who["per_hour"], who["weight"]
        table.add_row(
            who["name"] if who["enabled"] else f"{who['name']} (off)",
            who["role"] if who["nature"] == "human" else who["nature"],
            str(who["done"]),
            "–" if hourly is None else f"{hourly:.0f}",
            _share(who["gold"]),
            _share(who["consistency"]),
            "–" if weight is None else f"{weight:.2f}",
            ", ".join(who["concerns"]),
        )
    return table


def _share(found: Mapping[str, Any] | None) -> str:
    return f"{found['value']:.0%} of {found['of']}" if found else "–"
