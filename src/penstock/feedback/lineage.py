"""From a vote to the weights it has touched, and from weights to the votes behind them.

A run's folder says which part of a log each stage read (``run.json``, ``pins.json``), what was asked and until where votes were
counted (``asked/``), and which stages start from or are rewarded by which. The store says what the votes are. That both belong
together is not believed but checked: the rows of a log's part must have the hash that the run wrote down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.feedback.asking import read
from penstock.feedback.errors import FeedbackError
from penstock.feedback.exchange.snapshot import FORMS, LABELLED, Labels, Snapshot, chosen, content_hash
from penstock.feedback.records import DEFAULT, Event


@dataclass(frozen=True)
class Pin:
    """What a stage read: the first ``until`` events of a log, as rows with the hash ``content``."""

    stage: str
    until: int
    content: str
    form: str
    labels: Labels
    project: str


@dataclass(frozen=True)
class Recorded:
    """What a run's folder says."""

    name: str
    steps: Mapping[str, int]
    """Versions of the weights that each stage made; 0 for a stage that asks."""
    links: Mapping[str, Sequence[tuple[str, str]]]
    """For each stage: the earlier ones that it depends on, and how."""
    pins: Sequence[Pin]
    asked: Mapping[str, tuple[frozenset[str], int]]
    """For each stage that asked and is done: its tasks, and the length of the log that it was judged by."""


def recorded(folder: Path) -> Recorded:
    """Read a run's folder. Raises FeedbackError: there is no run in it, or its files are damaged."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        pins = folder / "pins.json"
        later = json.loads(pins.read_text(encoding="utf-8")) if pins.exists() else {}
        stages = {stage["name"]: stage for stage in run["stages"]}
        return Recorded(
            run["name"],
            {name: 0 if stage["kind"] == "Ask" else int(stage["steps"]) for name, stage in stages.items()},
            {name: list(_links(stage)) for name, stage in stages.items()},
            [pin for name, stage in stages.items() for pin in _pins(name, stage, later.get(f"{name}.data", {}))],
            {name: found for name in stages if (found := _asked(folder / "asked", name)) is not None},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FeedbackError(f"{folder}: not the folder of a run ({error!r:.200})") from error


def _links(stage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    asks = stage["kind"] == "Ask"
    for field, how in (("model", "samples" if asks else "starts from"), ("against", "is judged against")):
        yield from ((other, how) for other in _named((stage.get(field) or {}).get("path", "")))
    for reward in stage.get("rewards") or ():
        if reward["function"].startswith(("model:", "process:")):
            yield from ((other, "is rewarded by") for other in _named(reward["function"].partition(":")[2]))
    yield from ((other, "chooses questions by") for other in _named(stage.get("scorers", "")))


def _named(text: str) -> list[str]:
    """The stages in ``@a+@b``."""
    return [part[1:] for part in re.split(r"\+(?=@)", text) if part.startswith("@")]


def _pins(name: str, stage: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[Pin]:
    options = {**stage["data"]["options"], **later}
    form = options.get("form", "pairs")
    votes = stage["kind"] != "Ask" and stage["data"]["source"].startswith("feedback:") and form in FORMS
    if votes and "content" in options:
        yield Pin(
            name, int(options["until"]), options["content"], form, chosen(Labels, options), options.get("project", DEFAULT)
        )


def _asked(folder: Path, name: str) -> tuple[frozenset[str], int] | None:
    done, questions = folder / f"{name}.json", folder / f"{name}.jsonl"
    if not done.exists() or not questions.exists():
        return None
    tasks = frozenset(one.task.id for one in read(questions))
    return tasks, int(json.loads(done.read_text(encoding="utf-8"))["until"])


def reads(pin: Pin, taken: Snapshot) -> bool:
    """Whether a stage read this very store: the rows of that part of the log have the hash that the run wrote down."""
    return (
        pin.until <= taken.until
        and content_hash(FORMS[pin.form](taken.part(pin.until, pin.project), pin.labels)) == pin.content
    )


def standing(pin: Pin, taken: Snapshot) -> dict[int, str]:
    """The events that a stage learned from, and how: by their sequence.

    Votes on ordinary questions make its rows; those on gold and repeats only weigh annotators; edits count where the
    stage reads corrections.
    """
    state = taken.part(pin.until, pin.project).state
    found = {}
    for event in state.edits() if pin.form == "corrections" else state.judgements():
        if taken.natures[event.annotator] in pin.labels.natures:
            labelled = pin.form == "corrections" or taken.tasks[event.task].purpose in LABELLED
            found[event.sequence] = "learns from it" if labelled else "weighs its annotator by it"
    return found


def influence(sequence: int, run: Recorded, taken: Snapshot) -> dict[str, str]:
    """Every stage of a run that an event has touched, in the order of the run, and how: directly, or through another stage.

    Raises:
        FeedbackError: there is no such event.
    """
    event = _event(sequence, taken)
    touched: dict[str, str] = {}
    direct = {pin.stage: standing(pin, taken).get(sequence) for pin in run.pins if reads(pin, taken)}
    for stage in run.steps:
        tasks, until = run.asked.get(stage, (frozenset(), 0))
        if direct.get(stage):
            touched[stage] = str(direct[stage])
        elif event.task in tasks and sequence <= until:
            touched[stage] = "asked for it"
        through = [f"{how} {on}" for on, how in run.links[stage] if on in touched]
        if stage not in touched and through:
            touched[stage] = ", ".join(through)
    return touched


def behind(stage: str, run: Recorded, taken: Snapshot) -> dict[str, list[int]]:
    """The events behind a stage's weights: those that it or a stage before it on the way learned from, by that stage.

    Raises:
        FeedbackError: the run has no such stage.
    """
    if stage not in run.steps:
        raise FeedbackError(f"{run.name} has no stage {stage!r}; it has: {', '.join(run.steps)}")
    way, queue = {stage}, [stage]
    while queue:
        fresh = {on for on, _ in run.links[queue.pop()]} - way
        way |= fresh
        queue += fresh
    return {pin.stage: sorted(standing(pin, taken)) for pin in run.pins if pin.stage in way and reads(pin, taken)}


def origins(sequence: int, taken: Snapshot) -> list[str]:
    """What wrote the responses that an event speaks of, such as ``run/stage version 30``; [] for one about a person."""
    if not (name := _event(sequence, taken).task):
        return []
    return [response.model or "unknown" for response in taken.tasks[name].item.responses]


def told(sequence: int, stage: str, runs: Sequence[Recorded], taken: Snapshot) -> list[str]:
    """What is to be said of an event (or, where that is 0, of a stage) over some runs, a line each.

    Raises:
        FeedbackError: there is no such event, or no run has such a stage.
    """
    if not sequence:
        able = [run for run in runs if stage in run.steps]
        if not able:
            raise FeedbackError(f"no stage {stage!r} in {', '.join(run.name for run in runs)}")
        return [line for run in able for line in _stage_lines(stage, run, behind(stage, run, taken), taken)]
    event = _event(sequence, taken)
    lines = [f"event {sequence}: {event.kind} by {event.annotator} ({taken.natures[event.annotator]}) on task {event.task}"]
    lines += [f"  about a response of {origin}" for origin in origins(sequence, taken)]
    found = []
    for run in runs:
        for touched, how in influence(sequence, run, taken).items():
            versions = f"versions 1 to {run.steps[touched]}" if run.steps[touched] else "asks"
            found.append(f"  {run.name}/{touched} ({versions}): {how}")
    return [*lines, *(found or ["  no weights of these runs"])]


def _stage_lines(stage: str, run: Recorded, found: Mapping[str, Sequence[int]], taken: Snapshot) -> list[str]:
    lines = [f"{run.name}/{stage}:"]
    for reader, events in found.items():
        names = sorted({taken.events[sequence - 1].annotator for sequence in events})
        span = f"{events[0]} to {events[-1]}" if events else "none"
        lines.append(f"  {reader} learned from {len(events)} events ({span}) by {', '.join(names)}")
    return lines if found else [*lines, "  no votes of this store"]


def _event(sequence: int, taken: Snapshot) -> Event:
    if not 1 <= sequence <= taken.until:
        raise FeedbackError(f"there is no event {sequence}; the log has {taken.until}")
    return taken.events[sequence - 1]


def runs_in(folder: Path) -> list[Path]:
    """The run's folder itself, or the runs in a folder of runs, by name. Raises FeedbackError if there is none."""
    found = [folder] if (folder / "run.json").exists() else sorted(path.parent for path in folder.glob("*/run.json"))
    if not found:
        raise FeedbackError(f"{folder}: no run in it, and no folder with a run.json")
    return found
