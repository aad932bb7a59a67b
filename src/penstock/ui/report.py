"""A run's report: one self-contained HTML page from the run folder's spec, event log and summary."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from penstock.core.errors import DataError
from penstock.core.events import Event, read_events
from penstock.observe.alarms import Tripped, tripped, verdict
from penstock.observe.lanes import read_lanes
from penstock.observe.timeline import account
from penstock.ui import metrics
from penstock.ui.curves import Curve, curve
from penstock.ui.lanes import pictures
from penstock.ui.progress import troubled
from penstock.ui.timeline_text import account_view
from penstock.web.files import SHARED

HERE = Path(__file__).parent
STYLES = (SHARED / "common.css", HERE / "drawings.css", HERE / "report.css")
SAMPLE_STEPS = 60
"""Steps of a stage whose samples the page holds; evenly spread, first and last included."""
SAMPLE_ROWS = 16
TEXT_LIMIT = 4000
"""Characters of a prompt or completion shown; the rest is counted."""
TIMELINE_ROWS = 400

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class StageView:
    """What the page shows of one stage."""

    name: str
    kind: str = ""
    steps: int = 0
    done: int = 0
    first: float | None = None
    last: float | None = None
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    samples: dict[int, list[Any]] = field(default_factory=dict)
    alarms: list[Event] = field(default_factory=list)

    @property
    def took(self) -> str:
        return metrics.duration(self.last - self.first) if self.first is not None and self.last is not None else "—"

    def sections(self) -> list[tuple[str, list[Curve]]]:
        """Curves under their section titles."""
        found: dict[str, list[Curve]] = {}
        for name in sorted(self.series, key=metrics.order):
            points = sorted((float(step), value) for step, value in self.series[name].items())
            found.setdefault(metrics.group(name), []).append(curve(name, points))
        return list(found.items())

    def gains(self) -> list[tuple[str, str, str]]:
        """(label, before, after) of every evaluation metric measured at least twice."""
        found = []
        for name in sorted(self.series, key=metrics.order):
            steps = sorted(self.series[name])
            if name.startswith("evaluation/") and len(steps) > 1:
                before, after = (metrics.value_of(name, self.series[name][step]) for step in (steps[0], steps[-1]))
                found.append((metrics.shown(name).label, before, after))
        return found

    def tripped(self) -> list[Tripped]:
        """The stage's sentinels that tripped."""
        return [replace(one, name=clean(one.name), message=clean(one.message)) for one in tripped(self.alarms)]

    def sample_steps(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """The samples shown, step by step."""
        steps = sorted(self.samples)
        if len(steps) > SAMPLE_STEPS:
            steps = [steps[round(i * (len(steps) - 1) / (SAMPLE_STEPS - 1))] for i in range(SAMPLE_STEPS)]
        return [(step, [sample_view(row) for row in self.samples[step][:SAMPLE_ROWS]]) for step in steps]

    def reward_names(self) -> list[str]:
        """Names of the single rewards of a mixture; none where there is only one, which is the reward itself."""
        names = {
            str(name)
            for rows in self.samples.values()
            for row in rows
            if isinstance(row, Mapping) and isinstance(row.get("rewards"), Mapping)
            for name in row["rewards"]
        }
        return sorted(names) if len(names) > 1 else []


def clean(text: Any, limit: int = TEXT_LIMIT) -> str:
    """Untrusted text fit for a file: half characters (lone surrogates) and NUL replaced, very long text cut with a note."""
    whole = _LONE_SURROGATE.sub("�", str(text)).replace("\0", "�")
    rest = len(whole) - limit
    return whole if rest <= 0 else f"{whole[:limit]}… ({rest:,} more characters)"


def cell(value: Any) -> str:
    """A table cell: a number written well, a missing value as a dash, anything else as text."""
    found = metrics.number(value)
    if found is not None:
        return metrics.text_of(found)
    return "–" if value is None else clean(value)


def plain_text(value: Any) -> str:
    """A field's value: numbers written well, text as it is, the rest as JSON."""
    if isinstance(value, str):
        return clean(value)
    return cell(value) if isinstance(value, int | float) and not isinstance(value, bool) else clean(json.dumps(value))


def sample_view(row: Any) -> dict[str, Any]:
    """One row of the sample table."""
    row = row if isinstance(row, Mapping) else {"text": row}
    rewards = row.get("rewards")
    return {
        "prompt": clean(row.get("prompt") or ""),
        "text": clean(row.get("text") or ""),
        "reward": cell(row.get("reward")),
        "rewards": {str(k): cell(v) for k, v in rewards.items()} if isinstance(rewards, Mapping) else {},
        "length": cell(row.get("length")),
        "finish": cell(row.get("finish")),
        "kl": cell(row.get("kl")),
        "error": clean(row.get("error") or ""),
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        DataError: the file does not hold a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); is this a run folder?") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds a {type(value).__name__} instead of an object; is this a run folder?")
    return value


def stages_of(run: Mapping[str, Any]) -> dict[str, StageView]:
    """Empty views of the stages that the spec names, in order."""
    specs = [spec for spec in run.get("stages") or [] if isinstance(spec, Mapping)]
    views = (StageView(str(s.get("name")), str(s.get("kind", "")), metrics.count(s.get("steps"))) for s in specs)
    return {view.name: view for view in views}


def gather(stages: dict[str, StageView], events: Iterable[Event]) -> list[Event]:
    """Sort events into their stages and give the lifecycle events. Stages that no spec names are added."""
    timeline: list[Event] = []
    for event in events:
        name, step, time = str(event.get("stage") or ""), event.get("step"), metrics.moment(event.get("time"))
        if event["kind"] == "lifecycle":
            timeline.append(event)
        if not name or not isinstance(step, int):
            continue
        stage = stages.setdefault(name, StageView(name))
        if time is not None:
            stage.first, stage.last = (time if stage.first is None else stage.first), time
        if event["kind"] == "metrics":
            stage.done = max(stage.done, step)
            for metric, value in metrics.numbers(event.get("values")).items():
                stage.series.setdefault(metric, {})[step] = value
        elif event["kind"] == "sentinel":
            stage.alarms.append(event)
        elif event["kind"] == "samples" and isinstance(event.get("rows"), list):
            stage.samples.setdefault(step, []).extend(event["rows"])
    return timeline


def timeline_view(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Rows of the timeline, with times relative to the first."""
    start = next((t for event in events if (t := metrics.moment(event.get("time"))) is not None), 0.0)
    rows = []
    for event in events[:TIMELINE_ROWS]:
        fields = {k: v for k, v in event.items() if k not in ("kind", "time", "stage", "step", "what")}
        time = metrics.moment(event.get("time"))
        what = clean(event.get("what", ""))
        rows.append(
            {
                "after": "" if time is None else f"+{metrics.duration(time - start)}",
                "stage": clean(event.get("stage") or ""),
                "step": cell(event.get("step")),
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


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run's folder and give its path. Needs ``run.json``; the log may be empty or cut short.

    Raises:
        DataError: ``run.json`` is missing or is not a JSON object; ``summary.json`` exists and is not one.
    """
    folder = Path(run_folder)
    run = read_json(folder / "run.json")
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    log = folder / "events.jsonl"
    lanes = read_lanes(folder / "spans")
    stages = stages_of(run)
    timeline = gather(stages, read_events(log) if log.exists() else [])
    shown = [stage for stage in stages.values() if stage.series or stage.samples or stage.steps or stage.alarms]
    times = [time for stage in shown for time in (stage.first, stage.last) if time is not None]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.jinja").render(
        name=clean(run.get("name") or folder.resolve().name),
        headline=clean(summary.get("headline") or ""),
        stages=shown,
        sentinels=verdict([stage.tripped() for stage in shown], run),
        pictures=pictures(lanes),
        time_spent=account_view(account(lanes)),
        timeline=timeline_view(timeline),
        timeline_left_out=max(0, len(timeline) - TIMELINE_ROWS),
        summary=summary_rows(summary),
        finished=bool(summary),
        started=datetime.fromtimestamp(min(times), UTC).strftime("%Y-%m-%d %H:%M UTC") if times else "",
        took=metrics.duration(max(times) - min(times)) if times else "",
        spec=clean_spec(run),
        style="".join(path.read_text(encoding="utf-8") for path in STYLES),
        script=(HERE / "report.js").read_text(encoding="utf-8"),
    )
    target, temporary = folder / "report.html", folder / ".report.html.writing"
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, target)
    return target


def clean_spec(run: Mapping[str, Any]) -> str:
    """The whole spec as indented JSON."""
    return _LONE_SURROGATE.sub("�", json.dumps(run, indent=2, ensure_ascii=False))
