"""``penstock feedback``: serve a store to annotators, enrol them, import and export, and look at what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.commands import feedback_product
from penstock.cli.extras import require
from penstock.cli.recipe import no_more_flags, take, wants_help
from penstock.config.spec import suggestion
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.feedback.queue import QueuePolicy
    from penstock.feedback.store import Store

HELP = """usage: penstock feedback enrol STORE NAME [--role annotator|adjudicator|admin]
       penstock feedback serve STORE [--host 127.0.0.1] [--port 8900] [--behind-https | --certificate FILE --key FILE]
                      [--guideline FILE.md] [--guideline-version 1] [--lease-seconds 900] [--gold-share 0.08]
                      [--repeat-share 0.04] [--held 2] [--embedder hashed|FOLDER] [--least 0.3] [--control 0.2]
       penstock feedback import STORE hh-rlhf|rt-polarity|trl FILE [--annotator NAME] [--most N] [--ask N]
       penstock feedback export STORE --out FILE.jsonl|.csv|.parquet [--form pairs|completions|corrections]
       penstock feedback lineage STORE --runs FOLDER --event N | --stage NAME
       penstock feedback status | verify | migrate STORE
       penstock feedback product STORE TENANT [--revoke]
       penstock feedback corrections STORE [--tenant NAME] [--gather TENANT]
       penstock feedback rule STORE CORRECTION approved|rejected|withdrawn --by NAME [--note TEXT] [--days 180]
       penstock feedback effect STORE TENANT

STORE is a file (feedback.db) or postgresql://USER@HOST/NAME.
  enrol    adds a person, or makes a new invite for one who is there; prints a link that is good once, for seven days.
           The first administrator is made so; it creates the store.
  serve    the pages on which people judge. Beyond this machine it needs https, by its own certificate or a proxy's.
           --embedder, --least and --control: how products' corrections are found (docs/feedback_product.md)
  import   labels that others have gathered, under an annotator who stays marked as imported
  export   rows to train on (--form pairs is the default)
  lineage  which weights an event has touched, or which events are behind a stage's weights; FOLDER is a run, or holds runs
  status   tasks, votes and annotators in numbers
  verify   compares the tables with the log, and says when they disagree
  migrate  brings an older store up to date; every other command does so too
  product  prints a token, once, with which a product sends what its users do (docs/feedback_product.md)
  corrections, rule   edits that nobody has ruled on (--gather takes in annotators'), and a ruling by an adjudicator
  effect   how users liked answers with corrections in their prompts, beside those without

Ctrl-C (or SIGTERM) once lets answers under way end for 5 seconds; twice stops at once."""


def run(words: Sequence[str]) -> int:
    """Run one of the commands above; gives the exit code."""
    if not words or wants_help(words):
        print(HELP)
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise SpecError(f'penstock feedback has no "{name}"{suggestion(name, COMMANDS)}')
    require("feedback", "feedback", "sqlalchemy", "alembic")
    return COMMANDS[name](rest) or 0


def enrol(words: Sequence[str]) -> None:
    left, own = take(words, role="")
    place, name = arguments("enrol", left, own, "STORE", "NAME")
    require("feedback enrol", "feedback", "argon2", "nh3", "markdown_it", "starlette")
    from penstock.feedback.records import Annotator
    from penstock.feedback.service.accounts import Accounts, require_short

    Annotator(name, own["role"] or "annotator")  # refuses what is wrong with either, before a store is made
    require_short(name)
    with opened(place, new=True) as store:
        accounts = Accounts(store.database, store.now)
        there = name in {annotator.name for annotator in store.annotators()}
        if there and own["role"]:
            raise SpecError(f"{name} is enrolled already, and keeps their role; without --role they get a new invite")
        secret = accounts.invite(name) if there else accounts.enrol(name, own["role"] or "annotator", {})
    print(f"/invite/{secret}")


def serve(words: Sequence[str]) -> None:
    left, own = take(
        words, host="127.0.0.1", port=8900, behind_https=False, certificate="", key="", guideline="", guideline_version="1",
        lease_seconds=900.0, gold_share=0.08, repeat_share=0.04, held=2, embedder="hashed", least=0.3, control=0.2,
    )  # fmt: skip
    (place,) = arguments("serve", left, own, "STORE")
    require("feedback serve", "feedback", "starlette", "uvicorn", "argon2", "nh3", "markdown_it")
    from penstock.feedback.corrections.search import Retrieval
    from penstock.feedback.product.source import embedder_of
    from penstock.feedback.queue import QueuePolicy
    from penstock.feedback.service.context import GUIDELINE, Context, Settings
    from penstock.feedback.service.server import Transport
    from penstock.feedback.service.server import run as serve_forever
    from penstock.web.server import listen

    transport = Transport(own["host"], own["behind_https"], own["certificate"], own["key"])
    settings = Settings(
        local=transport.local,
        https=transport.https,
        forwarded=transport.behind_https,
        guideline_version=own["guideline_version"],
        guideline=guideline(Path(own["guideline"] or GUIDELINE)),
    )
    policy = QueuePolicy(
        lease_seconds=own["lease_seconds"], held=own["held"], gold_share=own["gold_share"], repeat_share=own["repeat_share"]
    )
    retrieval = Retrieval(least=own["least"], control=own["control"])
    with opened(place, policy) as store, listen(own["host"], own["port"]) as listening:
        host, port = listening.getsockname()[:2]
        scheme, shown = "https" if transport.certificate else "http", f"[{host}]" if ":" in host else host
        line = f"serving {place} at {scheme}://{shown}:{port} · Ctrl-C ends"
        context = Context(store, settings, embedder=embedder_of(own["embedder"], Path.cwd()), retrieval=retrieval)
        serve_forever(context, transport, listening, lambda: print(line, flush=True))


def guideline(path: Path) -> str:
    """The Markdown text of a guideline. Raises SpecError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"--guideline {path}: {getattr(error, 'strerror', None) or 'no UTF-8 text'}") from error


def import_(words: Sequence[str]) -> None:
    left, own = take(words, annotator="", most=0, ask=0)
    place, kind, file = arguments("import", left, own, "STORE", "FORMAT", "FILE")
    from penstock.feedback.exchange import files, formats, imports
    from penstock.feedback.records import Annotator

    if own["most"] < 0 or not 0 <= own["ask"] <= MOST_PEOPLE:
        raise SpecError(
            f"--most {own['most']} --ask {own['ask']}; give 0 rows (all) or more, put to 0 to {MOST_PEOPLE} people each"
        )
    path, most = Path(file), own["most"] or None
    named = {"annotator": own["annotator"] or kind}
    Annotator(named["annotator"], nature="imported")  # refuses what is wrong with it, before a store is made
    readers: Mapping[str, Callable[[], formats.Imported]] = {
        "hh-rlhf": lambda: imports.hh_rlhf(path, most=most, **named),
        "rt-polarity": lambda: imports.rt_polarity(path, most=most, **named),
        "trl": lambda: formats.from_trl(files.read_rows(path)[:most], **named),
    }
    if kind not in readers:
        raise SpecError(f'no format "{kind}"{suggestion(kind, readers)}; use one of: {", ".join(readers)}')
    found = readers[kind]()
    with opened(place, new=True) as store:
        added = imports.load(store, found)
        asked = imports.ask_people(store, found, own["ask"]) if own["ask"] else 0
    people = f"; {asked} questions for people" if own["ask"] else ""
    print(f"{added} new judgements of {len(found)} tasks, by {named['annotator']}{people}")


def export(words: Sequence[str]) -> None:
    left, own = take(words, form="pairs", out="")
    (place,) = arguments("export", left, own, "STORE")
    from penstock.feedback.exchange import files
    from penstock.feedback.exchange import snapshot as exchange

    if own["form"] not in exchange.FORMS or not own["out"]:
        raise SpecError(f"penstock feedback export STORE --out FILE --form {'|'.join(exchange.FORMS)}")
    with opened(place) as store:
        taken = exchange.snapshot(store)
    rows = exchange.FORMS[own["form"]](taken)
    files.write_rows(rows, Path(own["out"]))
    print(f"wrote {len(rows)} rows after {taken.until} events to {own['out']} · content {exchange.content_hash(rows)}")


def lineage(words: Sequence[str]) -> None:
    left, own = take(words, runs="runs", event=0, stage="")
    (place,) = arguments("lineage", left, own, "STORE")
    if bool(own["event"]) == bool(own["stage"]):
        raise SpecError("penstock feedback lineage STORE --runs FOLDER: add either --event N or --stage NAME")
    from penstock.feedback import lineage as trace
    from penstock.feedback.exchange.snapshot import snapshot

    runs = [trace.recorded(folder) for folder in trace.runs_in(Path(own["runs"]).expanduser())]
    with opened(place) as store:
        taken = snapshot(store)
    print("\n".join(trace.told(own["event"], own["stage"], runs, taken)))


def status(words: Sequence[str]) -> None:
    left, own = take(words)
    (place,) = arguments("status", left, own, "STORE")
    from penstock.feedback.service.overview import overview
    from penstock.ui.feedback_status import show

    with opened(place) as store:
        show(overview(store))


def verify(words: Sequence[str]) -> None:
    left, own = take(words)
    (place,) = arguments("verify", left, own, "STORE")
    with opened(place) as store:
        state = store.verify()
        print(f"{store.length()} events, {len(state.judgements())} judgements that stand; the tables agree with the log")


def migrate(words: Sequence[str]) -> None:
    left, own = take(words)
    (place,) = arguments("migrate", left, own, "STORE")
    with opened(place) as store:
        print(f"{place} is up to date: {store.length()} events")


MOST_PEOPLE = 1_000_000
"""Most people that one question may be put to."""

COMMANDS: Mapping[str, Callable[[Sequence[str]], int | None]] = {
    "enrol": enrol,
    "serve": serve,
    "import": import_,
    "export": export,
    "lineage": lineage,
    "status": status,
    "verify": verify,
    "migrate": migrate,
    "product": lambda words: feedback_product.product(words, opened),
    "corrections": lambda words: feedback_product.corrections(words, opened),
    "rule": lambda words: feedback_product.rule(words, opened),
    "effect": lambda words: feedback_product.effect(words, opened),
}


def arguments(command: str, left: Sequence[str], own: Mapping[str, Any], *names: str) -> Sequence[str]:
    """A command's arguments, one for each name. Raises SpecError for more or fewer, and for flags that it does not have."""
    no_more_flags(left, *own, "help")
    if len(left) != len(names):
        raise SpecError(f"penstock feedback {command} {' '.join(names)}: got {len(left)} of them")
    return left


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
