"""``penstock feedback ask``: put questions of one's own to people; and what became of their answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from penstock.cli.command import called
from penstock.cli.commands.feedback import MOST_PEOPLE, Decision, ProjectCommand, StoreCommand, opened
from penstock.core.errors import SpecError


def parts_of(given: str) -> tuple[str, ...]:
    """The parts of a text with commas between them. Raises SpecError for commas alone."""
    parts = tuple(part.strip() for part in given.split(",") if part.strip())
    if given and not parts:
        raise SpecError(f"{given!r}: give names with commas between them, such as alice,bob")
    return parts


def ends_of(given: str) -> tuple[float, float] | None:
    """A scale's lowest and highest rating; None for none given. Raises SpecError."""
    try:
        low, high = map(float, given.split(",")) if given else (0.0, 0.0)
        if given and not -math.inf < low < high < math.inf:
            raise ValueError
    except ValueError as error:
        raise SpecError(f"--scale {given}: give the lowest and the highest rating, such as 1,7") from error
    return (low, high) if given else None


@dataclass(kw_only=True)
class Ask(ProjectCommand):
    """Put the rows of a file to people (docs/feedback.md); what is asked already is not asked again.

    Columns: prompt, and responses, or chosen and rejected, or response.
    """

    file: Positional[Annotated[Path, called("FILE")]]
    """FILE.jsonl, .csv, .parquet or .json."""
    form: Annotated[Literal["pair", "ranking", "rating", "correction"] | None, called("FORM")] = None
    """pair, ranking, rating or correction (default: by the number of responses: 1 is a rating, 2 a pair, more a ranking)."""
    overlap: int | None = None
    """People who answer each question (default: as the project has it, 3)."""
    axes: str = ""
    """What is rated, such as helpful,harmless (default: as the project has it, overall)."""
    scale: Annotated[str, called("LOW,HIGH")] = ""
    """Lowest and highest rating (default: as the project has it, 1,7)."""
    gold: bool = False
    """The answers are known (the column gold, or chosen): the questions measure people."""
    to: Annotated[str, called("NAMES")] = ""
    """Who alone is asked, such as alice,bob (default: everybody)."""
    round: Annotated[str, called("NAME")] = ""
    """A new name asks again what was asked before."""
    guideline: str = ""
    """Version of the guideline that the questions go with (default: the project's, 1)."""
    format: Literal["rows", "argilla"] = "rows"
    """argilla: records as Argilla exports them."""

    def __post_init__(self) -> None:
        self.ends = ends_of(self.scale)
        if self.overlap is not None and not 1 <= self.overlap <= MOST_PEOPLE:
            raise SpecError(f"--overlap {self.overlap}: give 1 to {MOST_PEOPLE} people")

    def run(self) -> None:
        """Print how many questions are new."""
        from penstock.feedback.exchange.questions import Asking, ask_file

        given = {"overlap": self.overlap, "axes": parts_of(self.axes), "scale": self.ends, "guideline": self.guideline}
        said: dict[str, Any] = {name: value for name, value in given.items() if value}
        with opened(self.store) as store:
            project = store.project(self.project)
            said = {**project.asking, **said, "project": project.name}
            asking = Asking(form=self.form, gold=self.gold, to=parts_of(self.to), round=self.round, **said)
            new, found = ask_file(store, self.file, asking, argilla=self.format == "argilla")
        unused = f"; columns not used: {', '.join(found.unused)}" if found.unused else ""
        there = len(found.tasks) - new
        again = f"; {there} asked already (whatever their scale and guideline; --round NAME asks anew)" if there else ""
        same = f"; {found.same} duplicate row{'s' * (found.same != 1)} skipped" if found.same else ""
        print(f"{new} new question{'s' * (new != 1)} (the file has {found.forms}){again}{same}{unused}")


@dataclass(kw_only=True)
class Promote(ProjectCommand):
    """Make gold of pairs on which many trusted people agree; without --by only list them.

    Who weighs enough has passed gold that was known before. penstock feedback demote takes it back.
    """

    by: Annotated[str, called("ADMIN")] = ""
    """The administrator who decides (default: nothing is promoted)."""
    people: int = 5
    """Trusted people who must have judged the pair."""
    weight: float = 1.4
    """Log-odds from which somebody is trusted (1.4: right in 80%)."""
    agreement: float = 0.95
    """Share of them who must agree."""
    most: int = 100
    """Pairs at most."""

    def run(self) -> None:
        """Print them."""
        from penstock.feedback.gold import Agreed, agreed, promote
        from penstock.feedback.rows import require_admin

        if self.most < 1:
            raise SpecError(f"--most {self.most}: give 1 pair or more")
        with opened(self.store) as store:
            project = store.project(self.project).name
            if self.by:
                with store.database.read() as connection:
                    require_admin(connection, self.by)
            found = agreed(store, Agreed(self.people, self.weight, self.agreement), self.most, project)
            tasks = [promote(store, self.by, one.task, one.body, one.reason()) for one in found] if self.by else []
        for one, task in zip(found, tasks or [""] * len(found), strict=True):
            print(f"{task or one.task}: {one.reason()}")
        said = "are gold now" if self.by else "could be gold; --by ADMIN makes them so"
        print(f"{len(found)} pairs {said}" if len(found) != 1 else f"1 pair {said.replace('are', 'is').replace('them', 'it')}")


@dataclass(kw_only=True)
class Demote(Decision):
    """Take gold back: it measures nobody any more, and decides no label."""

    task: Positional[Annotated[str, called("TASK")]]
    """Its name, as promote prints it."""

    def run(self) -> None:
        """Print the number of the event."""
        from penstock.feedback.gold import demote

        with opened(self.store) as store:
            print(f"event {demote(store, self.by, self.task, self.reason).sequence}: {self.task} is no longer gold")


@dataclass(kw_only=True)
class Leaderboard(ProjectCommand):
    """Rank what wrote the responses, by Bradley-Terry, with bootstrap intervals."""

    axis: str = "overall"
    """By which axis."""
    samples: int = 500
    """Draws of the bootstrap."""
    seed: int = 0
    """Of the bootstrap."""

    def run(self) -> None:
        """Print a line for each model version."""
        from penstock.feedback.exchange.snapshot import Labels, duels_of, snapshot
        from penstock.feedback.quality.leaderboard import leaderboard
        from penstock.feedback.service.overview import require_axis

        with opened(self.store) as store:
            taken = snapshot(store, project=store.project(self.project).name)
        require_axis(taken, self.axis)
        duels = duels_of(taken, Labels(axis=self.axis))
        for place, one in enumerate(leaderboard(duels, samples=self.samples, seed=self.seed), 1):
            low, high = one.interval
            print(f"{place}. {one.model}: {one.rating:+.0f} ({low:+.0f} to {high:+.0f}), won {one.wins:g} of {one.votes}")


@dataclass(kw_only=True)
class Lineage(StoreCommand):
    """Show which weights an event has touched, or which events are behind a stage's weights."""

    runs: Annotated[Path, called("FOLDER")] = Path("runs")
    """A run, or a folder of runs (default: runs)."""
    event: Annotated[int, called("N")] = 0
    """The number of an event (default: none)."""
    stage: Annotated[str, called("NAME")] = ""
    """The name of a stage, instead of --event."""

    def __post_init__(self) -> None:
        if bool(self.event) == bool(self.stage):
            raise SpecError("penstock feedback lineage STORE --runs FOLDER: add either --event N or --stage NAME")

    def run(self) -> None:
        """Print the links."""
        from penstock.feedback import lineage as trace
        from penstock.feedback.exchange.snapshot import snapshot

        runs = [trace.recorded(folder) for folder in trace.runs_in(self.runs.expanduser())]
        with opened(self.store) as store:
            taken = snapshot(store)
        print("\n".join(trace.told(self.event, self.stage, runs, taken)))
