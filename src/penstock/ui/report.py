"""A run's report: one self-contained HTML page from the run folder's spec, event log and summary."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from penstock.core.blobs import FILM
from penstock.core.errors import DataError
from penstock.core.files import replaced
from penstock.data.blobs import BLOBS, NAME
from penstock.observe.lanes import read_lanes
from penstock.observe.timeline import account
from penstock.ui import metrics
from penstock.ui.curves import Curve, curve
from penstock.ui.lanes import pictures
from penstock.ui.live.index import LogIndex, StageIndex
from penstock.ui.live.runs import RunFiles
from penstock.ui.live.views import run_view, sample_view
from penstock.ui.text import TEXT_LIMIT, clean, spread
from penstock.ui.timeline_text import account_view
from penstock.web.files import SHARED

HERE = Path(__file__).parent
STYLES = (SHARED / "common.css", HERE / "drawings.css", HERE / "report.css")
SAMPLE_STEPS = 60
"""Steps of a stage whose samples the page holds; evenly spread, first and last included."""
SAMPLE_ROWS = 16
MEDIUM = 64 << 10
"""Bytes of a picture, film or sound that the page holds, at most."""
TAGS = {"image/png": "img", "image/jpeg": "img", "image/webp": "img", FILM: "img", "audio/wav": "audio"}
"""Media types that the page shows, and by what; none of them can hold a script."""


def sections(stage: StageIndex) -> dict[str, list[Curve]]:
    """A stage's curves under their section titles."""
    found: dict[str, list[Curve]] = {}
    for name in sorted(stage.series, key=metrics.order):
        found.setdefault(metrics.group(name), []).append(curve(name, *stage.series[name].columns()))
    return found


def sample_steps(index: LogIndex, stage: StageIndex, folder: Path) -> list[tuple[int, list[dict[str, Any]]]]:
    """The samples shown, step by step."""
    found = []
    for step in spread(stage.sampled(), SAMPLE_STEPS):
        rows = [sample_view(row, place, TEXT_LIMIT) for place, row in enumerate(index.rows(stage.name, step)[:SAMPLE_ROWS])]
        for row in rows:
            asked = [blob for blob in row["blobs"] if blob["of"] == "prompt"]
            row["asked"] = embedded(asked, folder)
            row["made"] = embedded([blob for blob in row["blobs"] if blob not in asked], folder)
        found.append((step, rows))
    return found


def embedded(blobs: list[dict[str, str]], folder: Path) -> list[tuple[str, str]]:
    """The media among a sample's blobs, small enough for a page: each by its tag and an address that holds it whole."""
    names = [one for one in blobs if NAME.fullmatch(one["hash"]) and one["kind"] in TAGS]
    files = [(one["kind"], folder / BLOBS / one["hash"]) for one in names]
    return [
        (TAGS[kind], f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}")
        for kind, file in files
        if file.is_file() and file.stat().st_size <= MEDIUM
    ]


def stage_page(shown: Mapping[str, Any], index: LogIndex, folder: Path) -> dict[str, Any]:
    """A stage as the live page has it, with its curves and samples, and the names of the single rewards of a mixture."""
    stage = index.stages.get(shown["name"]) or StageIndex(shown["name"])
    steps = sample_steps(index, stage, folder)
    names = sorted({name for _, rows in steps for row in rows for name in row["rewards"]})
    return {
        **shown,
        "name": clean(shown["name"]),
        "sections": sections(stage),
        "samples": steps,
        "logged": len(stage.sampled()),
        "rewards": names if len(names) > 1 else [],  # a single one is the reward itself
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


def rendered(template: str, **values: Any) -> str:
    """A page of this folder with the styles that all reports share; every value is escaped unless the page says otherwise."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = "".join(path.read_text(encoding="utf-8") for path in STYLES)
    return environment.get_template(template).render(style=style, **values)


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run's folder and give its path. Needs ``run.json``; the log may be empty or cut short.

    Raises:
        DataError: ``run.json`` is missing or is not a JSON object; ``summary.json`` exists and is not one.
    """
    folder = Path(run_folder)
    spec = read_json(folder / "run.json")
    summary = read_json(folder / "summary.json") if (folder / "summary.json").exists() else {}
    run = RunFiles("", folder.resolve().name, folder)
    index, lanes = LogIndex(run.log), read_lanes(folder / "spans")
    index.refresh()
    view = run_view(run, index, time.time())
    shown = [stage for stage in view["stages"] if stage["steps"] or stage["name"] in index.stages]
    times = [at for stage in index.stages.values() for at in (stage.first, stage.last) if at is not None]
    page = rendered(
        "report.html.jinja",
        run=view | {"stages": [stage_page(stage, index, folder) for stage in shown]},
        pictures=pictures(lanes),
        time_spent=account_view(account(lanes)),
        finished=bool(summary),
        started=datetime.fromtimestamp(min(times), UTC).strftime("%Y-%m-%d %H:%M UTC") if times else "",
        took=metrics.duration(max(times) - min(times)) if times else "",
        spec=clean(json.dumps(spec, indent=2, ensure_ascii=False), limit=1 << 62),
        script=(HERE / "report.js").read_text(encoding="utf-8"),
    )
    target = folder / "report.html"
    with replaced(target) as out:
        out.write(page)
    return target
