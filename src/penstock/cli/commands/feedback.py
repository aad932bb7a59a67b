"""``penstock feedback``: serve a store to annotators, enrol them, import and export, and look at what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import Positional

from penstock.cli.command import Command, Group, called
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.feedback.queue import QueuePolicy
    from penstock.feedback.store import Store

FEEDBACK = Group(
    """Let people judge, and keep what they say.

STORE is a file (feedback.db) or postgresql://USER@HOST/NAME. The first administrator makes it: penstock feedback enrol.""",
    {
        "enrol": "feedback:Enrol",
        "serve": "feedback_serve:Serve",
        "import": "feedback:Import",
        "export": "feedback:Export",
        "lineage": "feedback:Lineage",
        "status": "feedback:Status",
        "verify": "feedback:Verify",
        "migrate": "feedback:Migrate",
        "product": "feedback_product:Product",
        "corrections": "feedback_product:Corrections",
        "rule": "feedback_product:Rule",
        "effect": "feedback_product:Effect",
    },
)
MOST_PEOPLE = 1_000_000
"""Most people that one question may be put to."""


@dataclass(kw_only=True)
class StoreCommand(Command):
    """Base of the commands about a store."""

    NEEDS: ClassVar[Sequence[str]] = ("feedback", "sqlalchemy", "alembic")

    store: Positional[Annotated[str, called("STORE")]]
    """A file (feedback.db) or postgresql://USER@HOST/NAME."""


@dataclass(kw_only=True)
class Enrol(StoreCommand):
    """Add a person, or make a new invite for one who is there.

    Prints a link that is good once, for seven days. The first administrator is made so; it creates the store.
    """

    NEEDS = (*StoreCommand.NEEDS, "argon2", "nh3", "markdown_it", "starlette")

    name: Positional[Annotated[str, called("NAME")]]
    """Of the person."""
    role: Annotated[Literal["annotator", "adjudicator", "admin"] | None, called("ROLE")] = None
    """annotator (default), adjudicator or admin."""

    def run(self) -> None:
        """Print the link."""
        from penstock.feedback.records import Annotator
        from penstock.feedback.service.accounts import Accounts, require_short

        Annotator(self.name, self.role or "annotator")  # refuses what is wrong with either, before a store is made
        require_short(self.name)
        with opened(self.store, new=True) as store:
            accounts = Accounts(store.database, store.now)
            there = self.name in {annotator.name for annotator in store.annotators()}
            if there and self.role:
                raise SpecError(f"{self.name} is enrolled already, and keeps their role; without --role they get a new invite")
            secret = accounts.invite(self.name) if there else accounts.enrol(self.name, self.role or "annotator", {})
        print(f"/invite/{secret}")


@dataclass(kw_only=True)
class Import(StoreCommand):
    """Import labels that others have gathered, under an annotator who stays marked as imported."""

    format: Positional[Annotated[Literal["hh-rlhf", "rt-polarity", "trl"], called("FORMAT")]]
    """hh-rlhf, rt-polarity or trl (preference rows)."""
    file: Positional[Annotated[Path, called("FILE")]]
    """What to import."""
    annotator: Annotated[str, called("NAME")] = ""
    """Under whose name (default: the format's)."""
    most: Annotated[int, called("N")] = 0
    """Rows at most (default: all)."""
    ask: Annotated[int, called("N")] = 0
    """People to whom each item is put as a question too (default: 0)."""

    def __post_init__(self) -> None:
        if self.most < 0 or not 0 <= self.ask <= MOST_PEOPLE:
            raise SpecError(
                f"--most {self.most} --ask {self.ask}; give 0 rows (all) or more, put to 0 to {MOST_PEOPLE} people each"
            )

    def run(self) -> None:
        """Import, and print how many judgements are new."""
        from penstock.feedback.exchange import files, formats, imports
        from penstock.feedback.records import Annotator

        most, named = self.most or None, {"annotator": self.annotator or self.format}
        Annotator(named["annotator"], nature="imported")  # refuses what is wrong with it, before a store is made
        readers: Mapping[str, Callable[[], formats.Imported]] = {
            "hh-rlhf": lambda: imports.hh_rlhf(self.file, most=most, **named),
            "rt-polarity": lambda: imports.rt_polarity(self.file, most=most, **named),
            "trl": lambda: formats.from_trl(files.read_rows(self.file)[:most], **named),
        }
        found = readers[self.format]()
        with opened(self.store, new=True) as store:
            added = imports.load(store, found)
            asked = imports.ask_people(store, found, self.ask) if self.ask else 0
        people = f"; {asked} questions for people" if self.ask else ""
        print(f"{added} new judgements of {len(found)} tasks, by {named['annotator']}{people}")


@dataclass(kw_only=True)
class Export(StoreCommand):
    """Write rows to train on."""

    out: Annotated[Path, called("FILE")]
    """Where they go: FILE.jsonl, .csv or .parquet."""
    form: Literal["pairs", "completions", "corrections"] = "pairs"
    """What a row is."""

    def run(self) -> None:
        """Write the rows and print their count and content hash."""
        from penstock.feedback.exchange import files
        from penstock.feedback.exchange import snapshot as exchange

        with opened(self.store) as store:
            taken = exchange.snapshot(store)
        rows = exchange.FORMS[self.form](taken)
        files.write_rows(rows, self.out)
        print(f"wrote {len(rows)} rows after {taken.until} events to {self.out} · content {exchange.content_hash(rows)}")


@dataclass(kw_only=True)
class Lineage(StoreCommand):
    """Show which weights an event has touched, or which events are behind a stage's weights."""

    runs: Annotated[Path, called("FOLDER")] = Path("runs")
    """A run, or a folder of runs (default: runs)."""
    event: Annotated[int, called("N")] = 0
    """The number of an event."""
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


@dataclass(kw_only=True)
class Status(StoreCommand):
    """Show tasks, votes and annotators in numbers."""

    def run(self) -> None:
        """Print the numbers."""
        from penstock.feedback.service.overview import overview
        from penstock.ui.feedback_status import show

        with opened(self.store) as store:
            show(overview(store))


@dataclass(kw_only=True)
class Verify(StoreCommand):
    """Compare the tables with the log, and say when they disagree."""

    def run(self) -> None:
        """Print what agrees."""
        with opened(self.store) as store:
            state = store.verify()
            print(f"{store.length()} events, {len(state.judgements())} judgements in force; the tables agree with the log")


@dataclass(kw_only=True)
class Migrate(StoreCommand):
    """Bring an older store up to date; every other command does so too."""

    def run(self) -> None:
        """Opening a store does it."""
        with opened(self.store) as store:
            print(f"{self.store} is up to date: {store.length()} events")


def opened(place: str, policy: QueuePolicy | None = None, *, new: bool = False) -> Store:
    """The store of a place; only some commands make a new one. Raises FeedbackError, and SpecError where there is none."""
    from penstock.feedback.store import Store

    file = Path(place).expanduser()
    if "://" not in place and file.is_file() and not file.stat().st_size:
        raise SpecError(f"{place}: an empty file, no store; bring back your backup, or take it away to begin a new one")
    if not new and "://" not in place and not file.is_file():
        raise SpecError(f"there is no store {place}; the first administrator makes one: "
                        f"penstock feedback enrol {place} NAME --role admin")  # fmt: skip
    return Store.open(place, policy)
