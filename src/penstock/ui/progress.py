"""Live progress of a run, as a listener of its event log: a bar with numbers on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.config.run import Run
from penstock.core.events import Event
from penstock.ui.metrics import KNOWN, duration, numbers, order, shown, value_of

SAMPLE_SECONDS = 15.0
"""Shortest time between two looks at samples."""
SAMPLE_ROWS = 2
ALARM_LIMIT = 600
"""Characters of an alarm's message."""
REFRESH_SECONDS = 0.1
PLAIN_LINES = 20
"""Lines a stage prints where there is no terminal, apart from evaluations and faults."""
TROUBLE = ("fault", "fail", "error", "quarantine", "abort", "killed", "stale", "skip")

PLAIN_METRICS = ("reward/mean", "accuracy", "loss", "kl/reference", "entropy/sampled", "length/mean", "tokens_per_second")
"""What a plain line says, apart from evaluations: as much as fits a line."""

_QUIET = ("checkpoint", "finished")
"""Lifecycle events of healthy routine: in the log and in the report, not on the screen. The headline says the end."""


def visible(text: Any, limit: int = 160) -> str:
    """Untrusted text on one line: line ends as ``⏎``, control and direction marks as ``�``, the middle cut out if long."""
    shown_text = "".join(
        c if c.isprintable() else {"\n": "⏎", "\t": " ", "\r": ""}.get(c, "�") for c in str(text or "")
    ).strip()
    if len(shown_text) <= limit:
        return shown_text
    half = limit // 2
    return f"{shown_text[:half]} … {shown_text[-half:]}"


def troubled(what: str) -> bool:
    """Whether a lifecycle event tells of something that went wrong."""
    return any(word in what.lower() for word in TROUBLE)


def brief(name: str, value: float) -> str:
    """A metric's value without the unit that everyone knows."""
    return value_of(name, value).removesuffix(" nats")


class Screen(Console):
    """A console whose reader may leave (``| head``): the display falls silent and the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Progress:
    """Shows events as they come; pass the object itself as a listener of the event log and ``close`` it at the end.

    ``stages`` are (name, steps) in order. An event that it does not understand is passed over. When
    the terminal is gone the display falls silent: the log holds everything and the run goes on.
    """

    def __init__(
        self, stages: Sequence[tuple[str, int]], console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = dict(stages)
        self._names = [name for name, _ in stages]
        self._console = console or Screen(highlight=False)
        self._clock = clock
        self._stage = ""
        self._step = 0
        self._values: dict[str, float] = {}
        self._first: tuple[int, float] = (0, clock())
        self._printed_step: int | None = None
        self._sampled = self._refreshed = float("-inf")
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __call__(self, event: Event) -> None:
        """Take one event of the log."""
        stage, step = event.get("stage") or self._stage, event.get("step")
        if stage != self._stage:
            with self._unless_gone():
                self._begin(stage, step if isinstance(step, int) else 0)
        handler = {
            "metrics": self._metrics,
            "samples": self._samples,
            "lifecycle": self._lifecycle,
            "sentinel": self._sentinel,
        }.get(event.get("kind", ""))
        if handler:
            with self._unless_gone():
                handler(event)

    def close(self) -> None:
        """Leave the last state on the screen and give the terminal back."""
        with self._unless_gone():
            self._stop()

    def _stop(self) -> None:
        if self._live and self._live.is_started:
            self._live.update(self._view(), refresh=True)
            self._live.stop()

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """Fall silent where writing fails, as it does when the terminal was closed under a run."""
        try:
            yield
        except OSError:
            self._console.quiet = True

    # Events

    def _begin(self, stage: str, step: int) -> None:
        self._stop()
        if self._live:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._stage, self._step, self._values = stage, step, {}
        self._first, self._printed_step = (step, self._clock()), None
        if self._live and stage in self._steps:
            self._live.start()

    def _metrics(self, event: Event) -> None:
        fresh = numbers(event.get("values"))
        self._values |= fresh
        step = event.get("step")
        self._step = max(self._step, step if isinstance(step, int) else 0)
        if self._live:
            self._refresh()
            return
        every = max(1, -(-self._total // PLAIN_LINES))
        evaluated = sorted((name for name in fresh if name.startswith("evaluation/")), key=order)
        # The first step is said at once: a reader of a log wants to see that it moves.
        due = self._step % every == 0 or self._step == self._total or self._printed_step is None
        names = [*(name for name in PLAIN_METRICS if name in fresh), *evaluated]
        if names and (evaluated or (due and self._step != self._printed_step)):
            self._printed_step = self._step
            said = "  ".join(f"{shown(name).label} {brief(name, fresh[name])}" for name in names)
            self._print(Text(f"{self._stage} {self._step}/{self._total}  {said}{self._remaining('  ')}"))

    def _samples(self, event: Event) -> None:
        rows = event.get("rows")
        if not isinstance(rows, Sequence) or self._clock() - self._sampled < SAMPLE_SECONDS:
            return
        self._sampled = self._clock()
        for row in rows[:SAMPLE_ROWS]:
            if isinstance(row, Mapping):
                self._print(self._sample(row))

    def _lifecycle(self, event: Event) -> None:
        what = str(event.get("what", ""))
        if what in _QUIET:
            return
        fields = [
            f"{key}={visible(value)}" for key, value in event.items() if key not in ("kind", "time", "stage", "step", "what")
        ]
        line = Text(f"{self._stage} {visible(what)}".strip(), style="bold red" if troubled(what) else "bold")
        line.append(f" {' '.join(fields)}" if fields else "", style="not bold")
        self._print(line)

    def _sentinel(self, event: Event) -> None:
        state, fatal = str(event.get("state", "")), event.get("severity") == "fatal"
        style = "bold red" if fatal else "bold green" if state == "cleared" else "bold yellow"
        line = Text(f"{self._stage} sentinel {visible(state)}: {visible(event.get('sentinel'))}", style=style)
        detail = f", step {event.get('step')}"
        if not fatal:  # the error that ends the run says the rest
            detail += f": {visible(event.get('message'), ALARM_LIMIT)}"
        line.append(detail, style="not bold")
        self._print(line)

    # Views

    @property
    def _total(self) -> int:
        return self._steps.get(self._stage, self._step)

    def _remaining(self, before: str) -> str:
        """The time left at the mean pace of this process, or nothing before a pace is known."""
        first_step, first_time = self._first
        if self._step <= first_step or self._step >= self._total:
            return ""
        pace = (self._clock() - first_time) / (self._step - first_step)
        return f"{before}{duration(pace * (self._total - self._step))} left"

    def _sample(self, row: Mapping[str, Any]) -> Text:
        reward = row.get("reward")
        line = Text("  ")
        line.append(visible(row.get("prompt")), style="dim")
        line.append(" → ", style="dim")
        line.append(visible(row.get("text")) or ("(a picture)" if row.get("blobs") else "(nothing)"))
        if row.get("error"):
            line.append(f"  {visible(row['error'])}", style="red")
        elif isinstance(reward, int | float | str):
            line.append(f"  {visible(f'{reward:.3g}' if not isinstance(reward, str) else reward)}", style="bold")
        return line

    def _view(self) -> RenderableType:
        head = Table.grid(padding=(0, 1))
        place = f"{self._names.index(self._stage) + 1} of {len(self._names)}" if self._stage in self._names else ""
        head.add_row(
            Text(self._stage, style="bold"),
            Text(place, style="dim"),
            ProgressBar(total=max(1, self._total), completed=self._step, width=36),
            Text(f"{self._step:,}/{self._total:,}"),
            Text(self._remaining("") or duration(self._clock() - self._first[1]), style="dim"),
        )
        names = [name for name in KNOWN if name in self._values]
        columns = max(1, min(4, self._console.width // 36))
        cells = Table.grid(padding=(0, 1))
        for column in range(columns):
            if column:
                cells.add_column(width=1)  # a value is apart from the next one's name
            cells.add_column(style="dim", no_wrap=True)
            cells.add_column(justify="right", no_wrap=True, min_width=9)
        for start in range(0, len(names), columns):
            row = [[shown(name).label, brief(name, self._values[name])] for name in names[start : start + columns]]
            cells.add_row(*[text for pair in row for text in (*pair, "")][:-1])
        return Group(head, cells)

    def _refresh(self) -> None:
        now = self._clock()
        if self._live and self._live.is_started and (now - self._refreshed > REFRESH_SECONDS or self._step >= self._total):
            self._refreshed = now
            self._live.update(self._view(), refresh=True)

    def _print(self, line: Text) -> None:
        """Print above the bar, or just print."""
        self._console.print(line, soft_wrap=not self._console.is_terminal)


@contextmanager
def following(run: Run) -> Iterator[list[Progress]]:
    """The listeners of a launch that show it live, until the block ends."""
    shown = Progress([(stage.name, stage.steps) for stage in run.stages])
    try:
        yield [shown]
    finally:
        shown.close()
