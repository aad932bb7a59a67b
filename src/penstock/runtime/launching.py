"""The one door to a run: ``launch(run, folder, listeners)``, for the command line, Python, benchmarks and tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.ckpt.lease import Claims, StoreClaims, free, require_free
from penstock.ckpt.objects import Objects
from penstock.config.run import Run
from penstock.config.spec import parse, plain
from penstock.core.errors import DataError, SpecError
from penstock.core.events import Event, read_events
from penstock.data.resolve import LOCAL, load_modules, resolve
from penstock.observe.monitors import monitors_of
from penstock.runtime.folder import RunFolder
from penstock.runtime.listeners import Listener, delivering
from penstock.runtime.pinning import pinned
from penstock.runtime.stopping import Interrupted, StopSignal

AT_HAND = f"{LOCAL}rows-"
"""What the names of rows at hand begin with."""


@contextlib.contextmanager
def travelling(run: Run, folder: Path) -> Iterator[Run]:
    """The run as other processes can carry it out, with its rows at hand in ``folder``/data; gone again if no run begins.

    Raises:
        SpecError: a function that no other process can find.
        DataError: a row holds what JSON does not.
    """
    rows, written = (folder / "data").absolute(), list[Path]()

    def moved(text: str) -> str:
        if not text.startswith(AT_HAND):
            raise SpecError(
                f'runtime="{run.runtime}" has processes that cannot find {text.removeprefix(LOCAL)}, which lives in this '
                'one: define it at the top level of a file, or set runtime="local"'
            )
        file = rows / f"{text.removeprefix(LOCAL)}.jsonl"  # whose stem is the name in prompt keys, as it was
        _write(resolve(text)(), file, written)
        return str(file)

    try:
        yield parse(Run, _local_texts(plain(run), moved))
    finally:
        if not (folder / "run.json").exists():
            for file in written:
                file.unlink(missing_ok=True)
            for parent in (folder / "data", folder) if written else ():
                with contextlib.suppress(OSError):
                    parent.rmdir()


def _local_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Plain values with every text in them changed that names what lives in this process only."""
    if isinstance(value, Mapping):
        return {name: _local_texts(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_local_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) and value.startswith(LOCAL) else value


def _write(rows: list[dict[str, Any]], file: Path, written: list[Path]) -> None:
    lines = []
    for index, row in enumerate(rows):
        try:
            lines.append(json.dumps(row))
        except (TypeError, ValueError) as error:
            raise DataError(f"row {index} of the rows at hand cannot go to other processes: {error}") from error
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written.append(file)


IN_A_ROLE = "PENSTOCK_ROLE"
"""Environment variable that every process of a run has."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Result:
    """What came of a run: its folder, its summary, and the event log behind them."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def headline(self) -> str:
        """The closing line."""
        return str(self.summary["headline"])

    @property
    def model_path(self) -> Path:
        """The trained model of the last stage, in Hugging Face format."""
        return self.folder / "model"

    @functools.cached_property
    def model(self) -> Any:
        """That model, loaded: a :class:`penstock.models.language_model.LanguageModel`."""
        from penstock.models.files import load_model

        return load_model(str(self.model_path))

    @property
    def metrics(self) -> list[Event]:
        """The metric events in order: ``stage``, ``step`` and ``values``."""
        return self._events("metrics")

    @property
    def samples(self) -> list[Event]:
        """The sample events in order: ``stage``, ``step`` and ``rows`` (prompt, text, reward, …)."""
        return self._events("samples")

    def _events(self, kind: str) -> list[Event]:
        return [event for event in read_events(self.folder / "events.jsonl") if event["kind"] == kind]


def launch(
    run: Run,
    folder: Path | str,
    listeners: Sequence[Listener] = (),
    *,
    resume: bool = False,
    take_over: bool = False,
    base: Path | None = None,
    command: Sequence[str] = (),
) -> Result:
    """Carry a run out in its folder, wherever its roles live; returns when it is finished.

    Works in any thread, and in one whose event loop is running (a notebook's cell): the work then has a thread of its own.

    Args:
        run: the spec.
        folder: where the run lives; it is made.
        listeners: called with every event of the log, each in a thread of its own. One that is slow or fails slows or ends
            nothing: it misses events, and a warning says so.
        resume: go on with the run in ``folder``, or, where there is none, with that in the run's store. One that is finished is
            left as it is.
        take_over: take the run away from the process that is training in it, wherever that is: it ends before it writes again.
        base: where relative paths of the spec start from; None: the working directory.
        command: what starts the process of a role; empty: this Python.

    Raises:
        PenstockError: anything the user can mend; the message says how to go on with a run that has begun.
        KeyboardInterrupt: Ctrl-C or SIGTERM; what was saved and how to go on.
    """
    if os.environ.get(IN_A_ROLE):
        raise SpecError('a process of a run began a run: put penstock.train(…) of your script below if __name__ == "__main__":')
    if take_over and not resume:
        raise SpecError("take_over is for a run that has begun; add resume=True")
    folder, base, apart = Path(folder), base or Path.cwd(), _in_a_loop()
    target = RunFolder(folder)
    load_modules(run.modules, base)
    with ExitStack() as held:
        deliveries = held.enter_context(delivering(listeners, monitors_of(run, folder)))
        stop = held.enter_context(StopSignal(elsewhere=apart))
        if run.runtime != "local":
            run = held.enter_context(travelling(run, folder))
        _bring(run, target, deliveries, base if take_over else None) if resume else target.require_free()
        made = pinned(run, base, target.read() if resume else None)
        try:
            carry_out: Callable[[bool], Mapping[str, Any]]
            if made.runtime == "local":
                from penstock.runtime.session import Session

                carry_out = Session(made, folder, deliveries, base, stop=stop).execute
            else:
                from penstock.runtime.supervise import COMMAND, Supervised

                supervised = Supervised(made, folder, deliveries, base, stop=stop, command=tuple(command) or COMMAND)
                carry_out = supervised.execute
            return Result(folder, _in_thread(carry_out, resume) if apart else carry_out(resume))
        except Interrupted as stopped:
            raise KeyboardInterrupt(str(stopped)) from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {target.way_on}") from None


def _take_over(run: Run, target: RunFolder, base: Path) -> None:
    """Take the run from the process that holds it, in its folder and its store."""
    if target.spec.exists():  # nobody is ended for what is refused then
        target.require_same(pinned(run, base, target.read()))
    for place in (target.claims, *_claims_of_store(run, target)):
        if holder := free(place):
            print(f"penstock: {place.place}: taken over from {holder}; it writes no more", file=sys.stderr, flush=True)


def _bring(run: Run, target: RunFolder, listeners: Sequence[Listener], taking: Path | None) -> None:
    """A run that goes on is in its folder, as far as it came anywhere; ``taking``: taken from its holder first, and where
    relative paths of its spec start from."""
    if taking is not None:
        _take_over(run, target, taking)
    if target.spec.exists():
        # Before any process of the run is started; a learner whose supervisor was killed ends within seconds.
        require_free(target.claims, patience=15.0 if run.runtime != "local" else 0.0)
    for place in _claims_of_store(run, target):
        from penstock.ckpt.fetch import catch_up, fetch_run

        if not target.spec.exists():
            fetch_run(place.place, target.path, listeners)
        require_free(place)
        if found := catch_up(place.place, target.path):
            said = f"{target.path}: the run went on elsewhere; {found} was brought from {place.place}"
            print(f"penstock: {said}", file=sys.stderr, flush=True)


def _claims_of_store(run: Run, target: RunFolder) -> list[Claims]:
    """The claims in the run's store, where it has one."""
    store = run.checkpoint.store.rstrip("/")
    return [StoreClaims(Objects(f"{store}/{target.path.name}"))] if store else []


def _in_a_loop() -> bool:
    """Whether this thread's event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(work: Callable[[bool], Found], resume: bool) -> Found:
    """Do some work in a thread of its own, which is waited for; a KeyboardInterrupt leaves it to end at its next step."""
    found: Future[Found] = Future()

    def run() -> None:
        try:
            found.set_result(work(resume))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="run", daemon=True).start()
    return found.result()
