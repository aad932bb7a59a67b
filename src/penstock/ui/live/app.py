"""The live page's server: its files, what the page asks for as JSON, and the one route that changes something (``/api/ask``).

Reading files happens in threads, for one run at a time; the event loop only answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from penstock.core.blobs import Blob
from penstock.core.errors import DataError
from penstock.data.blobs import BLOBS, NAME, Blobs
from penstock.feedback.records import DEFAULT
from penstock.ui.live import ask, series, views
from penstock.ui.live.index import LogIndex
from penstock.ui.live.runs import RunFiles, Runs
from penstock.web.app import App
from penstock.web.fields import Fields
from penstock.web.files import HEADERS, kind_of, page_files
from penstock.web.guard import BodyLimits, read_json, require_own_host, same_secret
from penstock.web.refusals import Refusal

PAGE = Path(__file__).parent / "page"
FILES = page_files(PAGE, PAGE.parents[1] / "drawings.css")
"""What is sent by its plain name."""
Handler = Callable[[Request], Awaitable[Response]]
TOKEN_HEADER = "x-penstock-token"
TURN_SECONDS = 20.0
"""In which a request gets its turn at a run that others are reading."""
COMPARED = 24
"""Most runs that are laid over each other."""
MOST_ROWS = 100
KEPT = 64
"""Answers with curves that are kept until their log has grown."""
LIMITS = BodyLimits(body_bytes=64 << 10)


@dataclass(frozen=True)
class Access:
    """Who may do what: the token's holder everything; others read, where only this machine is served."""

    token: str
    local: bool = True
    https: bool = False
    """A proxy in front speaks https."""

    def check(self, request: Request) -> None:
        """Raises Refusal: another host's page, or a token that is missing or wrong."""
        headers = request.headers
        require_own_host(headers, self.local)
        changes = request.method not in ("GET", "HEAD")
        if not request.url.path.startswith("/api/") or (self.local and not changes):
            return
        if not same_secret(headers.get(TOKEN_HEADER, ""), self.token):
            what = "this changes something" if changes else "this server answers other machines"
            raise Refusal(403, f"{what}: open the page by the link that penstock ui printed, it holds the token", code="token")


class Page:
    """What the routes do. ``store`` takes questions; None: there is none."""

    def __init__(self, runs: Runs, store: ask.Asking | None = None, project: str = DEFAULT) -> None:
        self.runs, self.store, self.project = runs, store, project
        self._curves: OrderedDict[tuple[Any, ...], tuple[str, bytes]] = OrderedDict()

    def routes(self) -> Mapping[str, Mapping[str, Handler]]:
        async def file(request: Request) -> Response:
            name = request.path_params.get("name", "index.html")
            if name not in FILES:
                raise Refusal(404, f"there is nothing at {request.url.path[:100]}", code="not_found")
            return Response(FILES[name].read_bytes(), media_type=kind_of(FILES[name]))

        async def health(request: Request) -> Response:
            return JSONResponse({})

        run = "/api/runs/{run}"
        read: Mapping[str, Handler] = {
            "/": file,
            "/static/{name}": file,
            "/health": health,
            "/api/runs": threaded(self.listing),
            run: threaded(self.head),
            f"{run}/curves": threaded(self.curves),
            f"{run}/samples": threaded(self.samples),
            f"{run}/steps": threaded(self.steps),
            f"{run}/same": threaded(self.same),
            f"{run}/time": threaded(self.time),
            f"{run}/spec": threaded(self.spec),
            run + "/blobs/{blob}": threaded(self.blob),
            "/api/compare": threaded(self.compare),
        }
        return {path: {"GET": handler} for path, handler in read.items()} | {"/api/ask": {"POST": self.ask}}

    def listing(self, request: Request) -> Any:
        return {
            "runs": self.runs.listing(),
            "now": self.runs.now(),
            "root": str(self.runs.root),
            "store": self.store is not None,
        }

    def head(self, request: Request) -> Any:
        with self._index(request) as (run, index):
            version = views.reading(index)["version"]
            if request.query_params.get("since") == version and index.complete:
                return {"version": version, "same": True}
            return views.run_view(run, index, self.runs.now())

    def curves(self, request: Request) -> Any:
        points = whole(request, "points", series.POINTS, 20, series.MOST_POINTS)
        smooth = request.query_params.get("smooth") != "0"
        with self._index(request) as (run, index):
            head, stage = views.reading(index), views.stage_in(index, request.query_params.get("stage", ""))
            if request.query_params.get("since") == head["version"]:
                return {"version": head["version"], "same": True}
            key = (run.id, stage.name, points, smooth)
            kept = self._curves.get(key)
            if kept is None or kept[0] != head["version"]:
                made = head | {"stage": stage.name, "curves": series.curves_of(stage, points, smooth)}
                kept = self._curves[key] = (head["version"], json.dumps(made, allow_nan=False).encode())
            self._curves.move_to_end(key)
            while len(self._curves) > KEPT:
                self._curves.popitem(last=False)
            return Response(kept[1], media_type="application/json")

    def steps(self, request: Request) -> Any:
        with self._index(request) as (_, index):
            stage = views.stage_in(index, request.query_params.get("stage", ""))
            return views.reading(index) | {"stage": stage.name, "steps": stage.sampled()}

    def samples(self, request: Request) -> Any:
        step = whole(request, "step", 0, 0, 1 << 50)
        offset, limit = whole(request, "offset", 0, 0, 1 << 30), whole(request, "limit", 20, 1, MOST_ROWS)
        with self._index(request) as (_, index):
            return views.samples_view(index, request.query_params.get("stage", ""), step, offset, limit)

    def same(self, request: Request) -> Any:
        step, row = whole(request, "step", 0, 0, 1 << 50), whole(request, "row", 0, 0, 1 << 30)
        with self._index(request) as (_, index):
            return views.same_prompt(index, request.query_params.get("stage", ""), step, row)

    def time(self, request: Request) -> Any:
        run = self.runs.find(request.path_params["run"])
        with turn(run):
            return run.drawn(views.time_view)

    def spec(self, request: Request) -> Any:
        run = self.runs.find(request.path_params["run"])
        with turn(run):
            return {"run": run.id, "spec": json.dumps(run.spec(), indent=2, ensure_ascii=True)}

    def blob(self, request: Request) -> Any:
        folder, name = self.runs.find(request.path_params["run"]).folder / BLOBS, request.path_params["blob"]
        kind = request.query_params.get("kind", "")
        try:
            size = (folder / name).stat().st_size if NAME.fullmatch(name) else 0
            content = Blobs(folder).read(Blob(name, kind, size))
        except (DataError, OSError):
            raise Refusal(404, f"this run keeps no blob {name[:12]} of kind {kind[:40]}", code="not_found") from None
        if "svg" in kind:  # it may hold scripts
            raise Refusal(404, f"{kind} is not shown", code="not_found")
        return Response(content, media_type=kind)

    def compare(self, request: Request) -> Any:
        points = whole(request, "points", series.POINTS, 20, series.MOST_POINTS)
        names = list(dict.fromkeys(name for name in request.query_params.get("runs", "").split(",") if name))
        if not 1 <= len(names) <= COMPARED:
            raise Refusal(400, f"{len(names)} runs; choose 1 to {COMPARED}", param="runs")
        wanted = request.query_params.get("stage", "")
        stages, specs, lines, complete = {}, {}, [], True
        known: dict[str, None] = {}
        for name in names:
            run = self.runs.find(name)
            with turn(run):
                index = self.runs.index(run)
                complete = complete and index.complete
                known |= dict.fromkeys(index.stages)
                wanted = wanted or next(reversed(index.stages), "")
                lines.append(self.runs.line(run))
                specs[name] = run.spec()
                if wanted in index.stages:
                    stages[name] = series.copied(index.stages[wanted], request.query_params.get("smooth") == "1")
        families: dict[str, list[str]] = {}
        for line in lines:
            families.setdefault(line["family"] or line["id"], []).append(line["id"])
        return {
            "runs": lines,
            "stage": wanted,
            "stages": list(known),
            "complete": complete,
            "families": list(families.values()),
            "metrics": series.compared(stages, list(families.values()), points),
            "differences": views.spec_differences(specs),
        }

    async def ask(self, request: Request) -> Response:
        if self.store is None:
            raise Refusal(409, "there is no store to ask in; start again with penstock ui --store feedback.db", code="no_store")
        given = Fields(await read_json(request, LIMITS))
        name, stage, overlap = given.text("run"), given.text("stage"), given.whole("overlap", 3, 1, 50)
        listed = given.take("samples")
        samples = [pair_of(one) for one in listed] if isinstance(listed, list) else []
        given.done()
        return JSONResponse(await asyncio.to_thread(self._ask, name, stage, samples, overlap))

    def _ask(self, name: str, stage: str, samples: list[tuple[int, int]], overlap: int) -> dict[str, Any]:
        assert self.store is not None
        run = self.runs.find(name)
        with turn(run):
            index = self.runs.index(run)
            views.stage_in(index, stage)
            found = []
            for step, row in samples:
                rows = index.rows(stage, step)
                if row >= len(rows):
                    raise Refusal(404, f"step {step} of {stage} has no sample {row}; it has {len(rows)}", code="not_found")
                found.append((step, rows[row]))
            task = replace(ask.task_of({"name": run.name} | run.spec(), stage, found, overlap), project=self.project)
        exact = all(response.tokens for response in task.item.responses)
        return {"tasks": ask.put(self.store, task), "exact": exact}

    @contextmanager
    def _index(self, request: Request) -> Iterator[tuple[RunFiles, LogIndex]]:
        run = self.runs.find(request.path_params["run"])
        with turn(run):
            yield run, self.runs.index(run)


@contextmanager
def turn(run: RunFiles) -> Iterator[None]:
    """A run for this thread alone. Raises Refusal when others take too long."""
    if not run.lock.acquire(timeout=TURN_SECONDS):
        raise Refusal(503, f"{run.name}: others have been reading this run for {TURN_SECONDS:g} s; try again")
    try:
        yield
    finally:
        run.lock.release()


def threaded(handler: Callable[[Request], Any]) -> Handler:
    """A route whose handler runs in a thread and gives JSON values, or a response."""

    def answer(request: Request) -> Response:
        found = handler(request)
        return found if isinstance(found, Response) else JSONResponse(found)

    async def route(request: Request) -> Response:
        return await asyncio.to_thread(answer, request)

    return route


def whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query. Raises Refusal."""
    text = request.query_params.get(name)
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
    if not low <= value <= high:
        raise Refusal(400, f"{name}={text[:60]}; give a whole number from {low} to {high}", param=name)
    return value


def pair_of(value: Any) -> tuple[int, int]:
    """A sample as (step, row). Raises Refusal."""
    if isinstance(value, dict):
        fields = Fields(value)
        found = fields.whole("step", -1, 0, 1 << 50), fields.whole("row", -1, 0, 1 << 30)
        fields.done()
        return found
    raise Refusal(400, "give each sample as an object with step and row", param="samples")


class LiveApp(App[Handler]):
    """The application over one page."""

    headers = HEADERS
    log = logging.getLogger("penstock.ui")

    def __init__(self, page: Page, access: Access) -> None:
        super().__init__(page.routes())
        self.access = access
        self.https = self.forwarded = access.https

    async def permit(self, request: Request, route: Handler | None) -> None:
        self.access.check(request)

    async def answer(self, request: Request, route: Handler) -> Response:
        return await route(request)


def app_of(root: Path, access: Access, store: ask.Asking | None = None, project: str = DEFAULT) -> ASGIApp:
    """The live page of a folder of runs."""
    return GZipMiddleware(LiveApp(Page(Runs(root), store, project), access), 2000, compresslevel=1)
