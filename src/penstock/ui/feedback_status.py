"""A feedback store's numbers as tables on a terminal."""

from __future__ import annotations

import math
import sys

from rich.console import Console
from rich.table import Table

from penstock.feedback.quality.reliability import Share
from penstock.feedback.service.overview import Overview


def show(found: Overview) -> None:
    """Print progress, annotators and agreement."""
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(f"{found.events} events · {found.skipped} skipped · {found.flagged} flagged")
    console.print(progress_table(found))
    console.print(annotator_table(found))
    for agreed in found.agreement:
        low, high = agreed.interval
        said = "nobody shares a task yet" if math.isnan(agreed.alpha) else f"{agreed.alpha:.2f} ({low:.2f} to {high:.2f})"
        console.print(f"agreement on {agreed.axis}: {said}, {agreed.units} shared units", markup=False, highlight=False)


def progress_table(found: Overview) -> Table:
    table = Table("tasks of purpose", "all", "open", "judgements", title="Progress", title_justify="left")
    for purpose, count in sorted(found.progress.items()):
        table.add_row(purpose, str(count.tasks), str(count.open), str(count.judgements))
    return table


def annotator_table(found: Overview) -> Table:
    columns = ("annotator", "role", "done", "per hour", "gold", "repeats", "weight", "look at")
    table = Table(*columns, title="Annotators", title_justify="left")
    for who in found.people:
        quality, hourly = found.quality.get(who.name), found.per_hour.get(who.name, math.nan)
        table.add_row(
            who.name if who.enabled else f"{who.name} (off)",
            who.role if who.nature == "human" else who.nature,
            str(found.done.get(who.name, 0)),
            "–" if math.isnan(hourly) else f"{hourly:.0f}",
            _share(quality.gold if quality else Share(0, 0)),
            _share(quality.consistency if quality else Share(0, 0)),
            f"{quality.weight:.2f}" if quality else "–",
            ", ".join(quality.concerns) if quality else "",
        )
    return table


def _share(of: Share) -> str:
    return f"{of.value:.0%} of {of.of}" if of.of else "–"
