"""What the page gets of a run: plain JSON values, every text cleaned and cut."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.config.spec import difference
from penstock.core.events import Event, unpacked
from penstock.observe.alarms import tripped, verdict
from penstock.observe.lanes import Lane
from penstock.observe.timeline import account
from penstock.ui import metrics
from penstock.ui.lanes import pictures
from penstock.ui.live.index import LogIndex, StageIndex
from penstock.ui.live.runs import RunFiles, seed_of, state_of
from penstock.ui.live.series import gains_of
from penstock.ui.progress import troubled
from penstock.ui.text import clean, plain_text, spread, written
from penstock.ui.timeline_text import account_view
from penstock.web.refusals import Refusal

SHOWN_TOKENS = 1024
"""Most tokens of a sample that are sent one by one."""
LONGEST_TEXT, PIECE = 24_000, 200
"""Characters of a prompt or an answer, and of a token or a small field; the rest is counted."""
KNOWN = ("prompt", "text", "reward", "rewards", "length", "finish", "error", "key", "version", "held_out", "tokens", "blobs")
"""Fields of a row that have a place on the page; others are shown by their names."""
MOST_BLOBS = 16
"""Blobs of a sample that are shown."""
EVENTS = 400
"""Lifecycle events that are sent."""
DIFFERENCES = 60
"""Most lines in which two specs are compared."""


def reading(index: LogIndex) -> dict[str, Any]:
    """How far the log is read, and the number by which the page knows whether anything has changed."""
    return {
        "version": f"{index.generation}.{index.changes}",
        "complete": index.complete,
        "share": index.offset / index.size if index.size else 1.0,
    }


def run_view(run: RunFiles, index: LogIndex, now: float) -> dict[str, Any]:
    """A run's head: stages and how far they are, what tripped, what happened."""
    spec, summary = run.spec(), run.summary()
    alarms = {name: tripped(stage.alarms) for name, stage in index.stages.items()}
    specs = {str(stage.get("name")): stage for stage in spec.get("stages", ()) if isinstance(stage, Mapping)}
    return reading(index) | {
        "id": run.id,
        "name": clean(spec.get("name") or run.name),
        "folder": run.name,
        "state": state_of(summary, run.end(), now),
        "headline": clean(summary.get("headline") or ""),
        "sentinels": verdict(list(alarms.values()), spec),
        "seed": seed_of(spec),
        "stages": [stage_view(name, specs.get(name, {}), index) for name in {**specs, **index.stages}],
        "alarms": [
            {"stage": clean(name), "name": clean(one.name), "severity": clean(one.severity), "step": one.step,
             "until": one.until, "message": clean(one.message), "fatal": one.fatal}
            for name, found in alarms.items() for one in found
        ],
        "events": timeline_view(index.lifecycle[:EVENTS]),
        "events_left_out": index.left_out + max(0, len(index.lifecycle) - EVENTS),
        "summary": summary_rows(summary),
    }  # fmt: skip


def stage_view(name: str, spec: Mapping[str, Any], index: LogIndex) -> dict[str, Any]:
    """One stage: steps done of how many, time, first and last evaluation."""
    stage = index.stages.get(name) or StageIndex(name)
    seconds = stage.last - stage.first if stage.first is not None and stage.last is not None else None
    return {
        "name": name,
        "kind": str(spec.get("kind", "")),
        "steps": metrics.count(spec.get("steps")),
        "done": stage.done,
        "took": "" if seconds is None else metrics.duration(seconds),
        "gains": gains_of(stage),
        "sampled": len(stage.steps),
    }


def timeline_view(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Lifecycle events as rows, with times relative to the first."""
    start = next((t for event in events if (t := metrics.moment(event.get("time"))) is not None), 0.0)
    rows = []
    for event in events:
        fields = {k: v for k, v in event.items() if k not in ("kind", "time", "stage", "step", "what")}
        time = metrics.moment(event.get("time"))
        what = clean(event.get("what", ""))
        rows.append(
            {
                "after": "" if time is None else f"+{metrics.duration(time - start)}",
                "stage": clean(event.get("stage") or ""),
                "step": plain_text(event.get("step")),
                "what": what,
                "fields": [(clean(k), plain_text(v)) for k, v in fields.items()],
                "trouble": troubled(what),
            }
        )
    return rows


def summary_rows(summary: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """The summary's leaves by dotted name."""
    rows: list[tuple[str, str]] = []
    for key, value in summary.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            rows += summary_rows(value, f"{name}.")
        elif name != "headline":
            rows.append((clean(name), plain_text(value)))
    return rows


def stage_in(index: LogIndex, name: str) -> StageIndex:
    """A stage by its name. Raises Refusal."""
    if name not in index.stages:
        known = ", ".join(index.stages) or "none yet"
        raise Refusal(404, f'the log has no stage "{name[:100]}"; it has: {known[:300]}', code="not_found")
    return index.stages[name]


def sample_view(row: Any, place: int, limit: int = LONGEST_TEXT) -> dict[str, Any]:
    """One sample as a page shows it; ``row`` is its place among those of its step, ``limit`` characters of a text are shown."""
    row = row if isinstance(row, Mapping) else {"text": row}
    rewards = row.get("rewards")
    return {
        "row": place,
        "prompt": clean(row.get("prompt") or "", limit),
        "text": clean(row.get("text") or "", limit),
        "reward": written(row.get("reward")),
        "rewards": {clean(k): written(v) for k, v in rewards.items()} if isinstance(rewards, Mapping) else {},
        "length": written(row.get("length")),
        "finish": clean(row.get("finish") or ""),
        "error": clean(row.get("error") or ""),
        "key": clean(row.get("key") or ""),
        "version": row["version"] if isinstance(row.get("version"), int) else None,
        "held_out": row.get("held_out") is True,
        "tokens": tokens_view(row.get("tokens")),
        "blobs": blobs_view(row.get("blobs")),
        "others": {clean(name)[:PIECE]: plain_text(value)[:PIECE] for name, value in row.items() if other(name, value)},
    }


def blobs_view(found: Any) -> list[dict[str, str]]:
    """Names and media types of the blobs of a row, as far as they are some, and whose they are: prompt or sample."""
    made = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    return [{name: clean(one.get(name) or "") for name in ("hash", "kind", "of")} for one in made[:MOST_BLOBS]]


def other(name: str, value: Any) -> bool:
    """Whether a field of a row is one that the page has no place for, and small enough to be sent as it is."""
    return name not in KNOWN and isinstance(value, str | int | float | bool)


def tokens_view(tokens: Any) -> dict[str, list[Any]] | None:
    """Pieces, log-probs and gaps if all are there and of one length; None otherwise. What is not finite becomes null."""
    if not isinstance(tokens, Mapping):
        return None
    pieces, gap, logp = tokens.get("pieces"), tokens.get("gap"), tokens.get("logp")
    if not isinstance(pieces, list) or not isinstance(gap, list):
        return None
    if not isinstance(logp, list):  # older logs have a list of the same tokens, newer ones all of them
        try:
            logp = unpacked(logp, "<f4")[: len(pieces)]
        except ValueError:
            return None
    if not len(pieces) == len(gap) == len(logp):
        return None
    return {
        "pieces": [clean(piece)[:PIECE] for piece in pieces[:SHOWN_TOKENS]],
        "logp": _finite(logp[:SHOWN_TOKENS]),
        "gap": _finite(gap[:SHOWN_TOKENS]),
    }


def _finite(values: Sequence[Any]) -> list[float | None]:
    found = [metrics.number(value) for value in values]
    return [value if value is not None and abs(value) < 1e30 else None for value in found]


def samples_view(index: LogIndex, stage: str, step: int, offset: int, limit: int) -> dict[str, Any]:
    """Some of the samples of a step."""
    rows = index.rows(stage_in(index, stage).name, step)
    shown = [sample_view(row, place) for place, row in enumerate(rows)][offset : offset + limit]
    return {"stage": stage, "step": step, "count": len(rows), "rows": shown}


def same_prompt(index: LogIndex, stage: str, step: int, row: int, most: int = 200) -> dict[str, Any]:
    """Other steps at which the prompt of a sample was sampled: all of them, or ``most`` spread evenly. Raises Refusal."""
    rows = index.rows(stage_in(index, stage).name, step)
    if not 0 <= row < len(rows) or not isinstance(rows[row], Mapping):
        raise Refusal(404, f"step {step} of {stage} has no sample {row}; it has {len(rows)}", code="not_found")
    prompt = rows[row].get("prompt")
    if not isinstance(prompt, str):
        return {"steps": []}
    wanted = b'"prompt": ' + json.dumps(prompt, ensure_ascii=False).encode("utf-8", "surrogatepass") + b","
    found = sorted(set(index.steps_with(stage, wanted)))
    return {"steps": spread(found, most)}


def time_view(lanes: Sequence[Lane]) -> dict[str, Any]:
    """Where the time went: drawings of the lanes, a table of the roles, idle shares, tokens by lag."""
    found = account(lanes)
    total = sum(found.lags.values())
    return {
        "pictures": [asdict(picture) for picture in pictures(lanes)],
        "account": account_view(found),
        "lags": [{"lag": lag, "tokens": count, "share": count / total} for lag, count in found.lags.items()],
        "mean_lag": found.mean_lag if found.lags else None,
    }


def spec_differences(specs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How each run's spec differs from the first one's, name left out."""
    (first, base), *others = specs.items()
    found = []
    for name, spec in others:
        lines = [clean(line) for line in difference(dict(base), dict(spec)) if not line.startswith("name:")]
        found.append({"run": name, "from": first, "lines": lines[:DIFFERENCES], "left_out": max(0, len(lines) - DIFFERENCES)})
    return found
