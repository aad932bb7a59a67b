"""``penstock feedback``: serve a store to annotators, enrol them, import and export, and look at what is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import Positional

from penstock.cli.command import Command, Group, called
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.feedback.policy import QueuePolicy
    from penstock.feedback.store import Store

FEEDBACK = Group(
    """Let people judge, and keep what they say.

STORE is a file (feedback.db) or postgresql://USER@HOST/NAME. The first administrator makes it: penstock feedback enrol.""",
    {
        "enrol": "feedback:Enrol",
        "serve": "feedback_serve:Serve",
        "project": "feedback_project:Projects",
        "account": "feedback:Account",
        "forget": "feedback:Forget",
        "ask": "feedback_ask:Ask",
        "promote": "feedback_ask:Promote",
        "demote": "feedback_ask:Demote",
        "import": "feedback:Import",
        "export": "feedback:Export",
        "exclude": "feedback:Exclude",
        "include": "feedback:Include",
        "leaderboard": "feedback_ask:Leaderboard",
        "lineage": "feedback_ask:Lineage",
        "status": "feedback:Status",
        "verify": "feedback:Verify",
        "migrate": "feedback:Migrate",
        "backup": "feedback:Backup",
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


ACCOUNTS = (*StoreCommand.NEEDS, "argon2", "nh3", "markdown_it", "starlette")
"""What commands about accounts need."""
RoleName = Literal["annotator", "adjudicator", "admin"]


@dataclass(kw_only=True)
class ProjectCommand(StoreCommand):
    """Base of the commands about one project of a store."""

    project: Annotated[str, called("NAME")] = ""
    """The project (default: the only one there is)."""


@dataclass(kw_only=True)
class Enrol(ProjectCommand):
    """Add a person to a project, or make a new invite for one who is there.

    Prints a link that is good once, for seven days. The first administrator is made so; it creates the store.
    """

    NEEDS = ACCOUNTS

    name: Positional[Annotated[str, called("NAME")]]
    """Of the person."""
    role: Annotated[RoleName | None, called("ROLE")] = None
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
            if there and (self.role or self.project):
                raise SpecError(f"{self.name} is enrolled already; without --role and --project they get a new invite "
                                "(penstock feedback account changes a role, penstock feedback project members)")  # fmt: skip
            if there:
                secret = accounts.invite(self.name)
            else:
                secret = accounts.enrol(self.name, self.role or "annotator", {}, store.project(self.project).name)
        print(f"/invite/{secret}")


@dataclass(kw_only=True)
class Account(StoreCommand):
    """Change somebody's role, password or quota, or switch them off or on; what changes ends their sessions."""

    NEEDS = ACCOUNTS

    name: Positional[Annotated[str, called("NAME")]]
    """Of the person."""
    role: Annotated[RoleName | None, called("ROLE")] = None
    """annotator, adjudicator or admin."""
    password: bool = False
    """Ask for a new password, or read it from standard input, one line."""
    quota: Annotated[int | None, called("N")] = None
    """Answers that they may give; 0: as everybody."""
    switch: Annotated[Literal["on", "off"] | None, called("on|off")] = None
    """off: they cannot sign in."""

    def __post_init__(self) -> None:
        if self.role is None and not self.password and self.quota is None and self.switch is None:
            raise SpecError("say what changes: --role ROLE, --password, --quota N or --switch on|off")

    def run(self) -> None:
        """Print what they are now."""
        from penstock.feedback.service.accounts import Accounts, Passwords

        with opened(self.store) as store:
            made = Passwords().made(self._password()) if self.password else None
            enabled = None if self.switch is None else self.switch == "on"
            Accounts(store.database, store.now).change(
                self.name, role=self.role, password=made, quota=self.quota, enabled=enabled
            )
            who = store.annotator(self.name)
        print(f"{who.name}: {who.role}, {'on' if who.enabled else 'off'}, {who.quota or 'any number of'} answers")

    def _password(self) -> str:
        if not sys.stdin.isatty():
            return sys.stdin.readline().rstrip("\r\n")
        from getpass import getpass

        first = getpass(f"new password of {self.name}: ")
        if getpass("again: ") != first:
            raise SpecError("the two are not the same; nothing was changed")
        return first


@dataclass(kw_only=True)
class Forget(StoreCommand):
    """Delete a person for good: name, account, sessions; what they said stays under a random pseudonym, or goes too.

    With --votes remove, runs that trained on them cannot be resumed on this store: its rows are others.
    """

    name: Positional[Annotated[str, called("NAME")]]
    """Whom."""
    by: Annotated[str, called("ADMIN")]
    """The administrator who decides."""
    votes: Annotated[Literal["keep", "remove"], called("keep|remove")]
    """keep: they go on counting; remove: their lines are emptied and their seats are free."""

    def run(self) -> None:
        """Print the pseudonym."""
        from penstock.feedback.deletion import forget

        with opened(self.store) as store:
            pseudonym = forget(store, self.by, self.name, self.votes)
        what = "is in no line any more" if self.votes == "remove" else "stays"
        print(f"{self.name} is deleted; what they said {what} (under {pseudonym}); existing backups still contain them")


@dataclass(kw_only=True)
class Import(ProjectCommand):
    """Import labels that others have gathered, under an annotator who stays marked as imported."""

    format: Positional[Annotated[Literal["hh-rlhf", "rt-polarity", "trl", "argilla"], called("FORMAT")]]
    """hh-rlhf, rt-polarity, trl (preference rows) or argilla (records, whose annotators keep their ids)."""
    file: Positional[Annotated[Path, called("FILE")]]
    """What to import."""
    annotator: Annotated[str, called("NAME")] = ""
    """Under whose name (default: the format's)."""
    most: Annotated[int, called("N")] = 0
    """Rows at most (default: all)."""
    ask: Annotated[int, called("N")] = 0
    """People to whom each item is put as a question too (default: 0)."""

    def __post_init__(self) -> None:
        if self.format == "argilla" and self.annotator:
            raise SpecError("--annotator: in Argilla's records annotators have names of their own; leave it out")
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
            "trl": lambda: formats.from_trl(files.placed_rows(self.file)[:most], **named),
            "argilla": lambda: formats.from_argilla(files.placed_rows(self.file)[:most]),
        }
        found = readers[self.format]()
        with opened(self.store, new=True) as store:
            found = imports.moved(found, store.project(self.project).name)
            added = imports.load(store, found)
            asked = imports.ask_people(store, found, self.ask) if self.ask else 0
        people = f"; {asked} question{'s' * (asked != 1)} for people" if self.ask else ""
        print(f"{added} new judgements of {len(found)} tasks, by {named['annotator']}{people}")


@dataclass(kw_only=True)
class Export(ProjectCommand):
    """Write rows to train on, or what each annotator said."""

    out: Annotated[Path, called("FILE")]
    """Where they go: FILE.jsonl, .json, .csv or .parquet."""
    form: Literal["pairs", "completions", "corrections", "votes"] = "pairs"
    """What a row is; votes: one for each judgement, by pseudonyms."""
    format: Literal["rows", "trl", "argilla"] = "rows"
    """rows (TRL's standard format), trl (its conversational one), or argilla (records with the votes on pairs)."""
    names: bool = False
    """Annotators' names instead of pseudonyms, in votes and argilla."""
    media: Annotated[Path | None, called("FOLDER")] = None
    """Where images, sounds and videos of the questions go too, each as the hash that the column media has of it."""

    def __post_init__(self) -> None:
        if self.names and self.form != "votes" and self.format != "argilla":
            raise SpecError("--names: only --form votes and --format argilla name annotators")
        if (self.format == "trl" and self.form == "votes") or (self.format == "argilla" and self.form != "pairs"):
            raise SpecError(f"--form {self.form} --format {self.format}: argilla takes pairs, trl what is trained on")

    def run(self) -> None:
        """Write the rows and print their count and content hash."""
        from penstock.feedback.exchange import files, formats
        from penstock.feedback.exchange import snapshot as exchange
        from penstock.feedback.exchange.media import write_media
        from penstock.feedback.service.secrets import store_key

        with opened(self.store) as store:
            taken = exchange.snapshot(store, project=store.project(self.project).name)
            named = str if self.names else exchange.pseudonyms(store_key(store.database, "pseudonyms"))
            if self.media is not None:
                print(f"wrote {write_media(store, taken.tasks.values(), self.media)} media files to {self.media}")
        if self.form == "votes":
            rows = exchange.raw_votes(taken, named)
        elif self.format == "argilla":
            rows = formats.to_argilla(taken, named=named)
        else:
            rows = exchange.FORMS[self.form](taken)
        written = formats.to_trl(rows) if self.format == "trl" else rows
        files.write_rows(written, self.out)
        if changed := files.changed_texts(written, self.out.suffix):
            print(f"{changed} texts begin like a formula and have a ' before them in CSV; take .jsonl or .parquet to train on")
        print(f"wrote {len(rows)} rows after {taken.until} events to {self.out} · content {exchange.content_hash(rows)}")


@dataclass(kw_only=True)
class Decision(StoreCommand):
    """Base of what an administrator decides about a person's work."""

    by: Annotated[str, called("ADMIN")]
    """The administrator who decides."""
    reason: Annotated[str, called("TEXT")]
    """Why; it stays in the log."""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise SpecError("--reason: say why; it stays in the log")


@dataclass(kw_only=True)
class Exclude(Decision):
    """Let what a person said, always or in some time, not count any more; it stays in the log, and include takes it back."""

    name: Positional[Annotated[str, called("NAME")]]
    """Whose work."""
    since: Annotated[str, called("TIME")] = ""
    """From when on, such as 2026-11-23 or 2026-11-23T08:00 of UTC (default: from the beginning)."""
    until: Annotated[str, called("TIME")] = ""
    """Before when (default: for ever)."""
    project: Annotated[str, called("NAME")] = ""
    """In which project (default: in all)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        since, until = self.period = seconds_of("since", self.since) or 0.0, seconds_of("until", self.until)
        if until is not None and not since < until:
            raise SpecError(f"--since {self.since or 0} --until {self.until}: the time ends before it begins")

    def run(self) -> None:
        """Print the number of the event, and how much still counts."""
        from penstock.feedback.records import JUDGEMENTS

        with opened(self.store) as store:
            event = store.exclude(self.by, f"exclude:{store.length()}", self.name, self.reason, *self.period, self.project)
            state = store.state()
        mine = [one for one in state.standing.values() if one.annotator == self.name and one.kind in JUDGEMENTS]
        left = sum(one.annotator == self.name for one in state.judgements())
        print(f"event {event.sequence}: {left} of {len(mine)} judgements of {self.name} count")


@dataclass(kw_only=True)
class Include(Decision):
    """Take an exclusion back."""

    event: Positional[Annotated[int, called("EVENT")]]
    """The number that exclude printed."""

    def run(self) -> None:
        """Print the number of the event."""
        with opened(self.store) as store:
            event = store.include(self.by, f"include:{self.event}", self.event, self.reason)
        print(f"event {event.sequence}: {event.body['annotator']} counts again")


def seconds_of(name: str, given: str) -> float | None:
    """A time of UTC in seconds since 1970; None for none given. Raises SpecError."""
    try:
        time = datetime.fromisoformat(given) if given else None
    except ValueError as error:
        raise SpecError(f"--{name} {given!r}: give a time such as 2026-11-23 or 2026-11-23T08:00, of UTC") from error
    return None if time is None else (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


@dataclass(kw_only=True)
class Status(ProjectCommand):
    """Show tasks, votes and annotators in numbers."""

    def run(self) -> None:
        """Print the numbers."""
        from penstock.feedback.service.overview import overview
        from penstock.ui.feedback_status import show

        with opened(self.store) as store:
            show(overview(store, store.project(self.project).name))


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


@dataclass(kw_only=True)
class Backup(StoreCommand):
    """Copy a store of SQLite, as it is at one moment, also while it is served."""

    file: Positional[Annotated[Path, called("FILE")]]
    """A new file."""

    def run(self) -> None:
        """Print how much it holds."""
        from penstock.feedback.database import backup

        if "://" not in self.store:
            opened(self.store).close()  # says what is wrong with it
        print(f"backed up {backup(self.store, self.file.expanduser())} events to {self.file}")


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
