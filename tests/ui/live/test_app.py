"""The live page's server: what it answers, to whom, and that it can change nothing but the store."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from live_examples import log_of, row, run_folder, small_run
from penstock.core.spans import Spans
from penstock.data.blobs import Blobs
from penstock.runtime.folder import RunFolder
from penstock.ui.live import runs as runs_module
from penstock.ui.live.app import PAGE
from penstock.ui.live.runs import Runs

RUN = "/api/runs/small"
READING = [
    "/", "/static/app.js", "/health", "/api/runs", RUN, f"{RUN}/curves?stage=grpo", f"{RUN}/steps?stage=grpo",
    f"{RUN}/samples?stage=grpo&step=2", f"{RUN}/same?stage=grpo&step=2&row=0", f"{RUN}/time", f"{RUN}/spec",
    "/api/compare?runs=small",
]  # fmt: skip


@pytest.mark.parametrize("path", READING)
def test_every_answer_carries_the_content_policy(told, path: str) -> None:
    answer = told(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")


def test_a_refusal_carries_it_as_well(asked) -> None:
    answer = asked("/api/runs/none")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "content-security-policy" in answer.headers


def test_the_page_holds_no_inline_script_or_style() -> None:
    text = (PAGE / "index.html").read_text()
    assert not any(part in text for part in ("<style", "style=", "<script>"))
    assert "http:" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "app.py", "", "index.html/..", "/etc/passwd"])
def test_only_the_pages_own_files_are_served(asked, name: str) -> None:
    assert asked(f"/static/{name}").status_code == 404


def test_a_run_tells_its_stages_alarms_and_events(told) -> None:
    head = told("/api/runs/small").json()
    assert [(stage["name"], stage["done"], stage["steps"]) for stage in head["stages"]] == [("sft", 0, 10), ("grpo", 10, 10)]
    assert [(one["name"], one["step"], one["severity"]) for one in head["alarms"]] == [("log-prob gap", 3, "warning")]
    assert [one["what"] for one in head["events"]] == ["stage started"]
    assert (head["complete"], head["state"], head["sentinels"]) == (True, "running", "1 tripped")


def test_what_has_not_changed_is_not_sent_again(told) -> None:
    version = told("/api/runs/small").json()["version"]
    assert told(f"/api/runs/small?since={version}").json() == {"version": version, "same": True}
    assert told(f"/api/runs/small/curves?stage=grpo&since={version}").json() == {"version": version, "same": True}


def test_curves_come_with_label_unit_and_points(told) -> None:
    reward, loss = told("/api/runs/small/curves?stage=grpo").json()["curves"]
    assert (reward["label"], reward["steps"], reward["last"]) == ("reward", list(range(1, 11)), "1")
    assert reward["values"] == [step / 10 for step in range(1, 11)]
    assert loss["bad"] == [4]


def test_samples_come_by_page_with_their_place(told) -> None:
    answer = told("/api/runs/small/samples?stage=grpo&step=2&offset=1&limit=1").json()
    assert (answer["count"], [(one["row"], one["text"]) for one in answer["rows"]]) == (3, [(1, "The answer is four.")])


def test_the_gap_of_each_token_is_told(told) -> None:
    first, second, *_ = told("/api/runs/small/samples?stage=grpo&step=2").json()["rows"]
    assert first["tokens"] == {"pieces": ["A", "é"], "logp": [-1.5, -0.25], "gap": [0.0004, -0.3]}
    assert (first["version"], second["tokens"]) == (1, None)


NAMED = {"hash": "0" * 64, "kind": "image/png", "of": "prompt"}
SHOWN = {
    "fields that the page has no place for, by their names": (
        row("a", "b", arm="with", used=True, odd=[1], none=None), "others", {"arm": "with", "used": "true"},
    ),
    "a very long answer, cut, and the rest counted": (
        row("a", "x" * 30_000), "text", "x" * 24_000 + "… (6,000 more characters)",
    ),
    "images, without what is none": (row("?", "!", blobs=[NAMED, "nonsense"]), "blobs", [NAMED]),
}  # fmt: skip


@pytest.mark.parametrize("case", SHOWN)
def test_what_the_page_gets_of_a_sample(asked, tmp_path: Path, case: str) -> None:
    logged, field, expected = SHOWN[case]
    log_of(run_folder(tmp_path, "small", "s"), "s").samples(1, [logged])
    (shown,) = asked("/api/runs/small/samples?stage=s&step=1").json()["rows"]
    assert shown[field] == expected


DAMAGED = [3, {"pieces": ["a"]}, {"pieces": ["a"], "logp": [1, 2], "gap": [0]}, {"pieces": "a", "logp": [1], "gap": [1]}]


@pytest.mark.parametrize("tokens", DAMAGED)
def test_damaged_tokens_are_left_out(asked, tmp_path: Path, tokens: Any) -> None:
    rows = [row("a", "b", tokens=tokens), "no row", None, 7]
    event = {"kind": "samples", "time": 1.0, "stage": "s", "step": 1, "rows": rows}
    (run_folder(tmp_path, "small", "s") / "events.jsonl").write_text(json.dumps(event) + "\n")
    shown = asked("/api/runs/small/samples?stage=s&step=1").json()["rows"]
    assert [one["tokens"] for one in shown] == [None] * 4


def test_steps_at_which_a_prompt_came_again_are_named(told) -> None:
    assert told("/api/runs/small/same?stage=grpo&step=2&row=2").json() == {"steps": [2, 4, 6, 8, 10]}


def test_lanes_roles_and_lag_come_as_numbers(told) -> None:
    found = told("/api/runs/small/time").json()
    assert [(one["lag"], one["tokens"], one["share"]) for one in found["lags"]] == [(0, 30, 0.75), (1, 10, 0.25)]
    assert found["account"]["roles"][0][0] == "learner"


def test_the_time_is_drawn_again_when_more_is_recorded(tmp_path: Path) -> None:
    (run,) = Runs(small_run(tmp_path)).scan()
    drawn = [run.drawn(lambda lanes: len(lanes[0].spans)), run.drawn(lambda lanes: -1)]
    Spans(run.folder / "spans" / "learner.jsonl", "learner").close()
    assert [*drawn, run.drawn(lambda lanes: len(lanes[0].lives))] == [2, 2, 2]


def test_more_spans_than_can_be_drawn_are_refused_with_the_command_that_can(told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "LARGEST_LANES", 10)
    answer = told("/api/runs/small/time")
    assert answer.status_code == 413
    assert "penstock timeline" in answer.json()["error"]["message"]


def test_runs_are_laid_over_each_other_with_what_their_specs_differ_in(asked, tmp_path: Path) -> None:
    small_run(tmp_path, "a", seed=1)
    small_run(tmp_path, "b", seed=2)
    found = asked("/api/compare?runs=a,b").json()
    assert (found["stage"], found["families"]) == ("grpo", [["a", "b"]])
    band = next(one for one in found["metrics"] if one["name"] == "reward/mean")["bands"][0]
    assert (band["low"][0], band["median"][0], band["high"][0]) == (1.1, 1.6, 2.1)
    assert found["differences"] == [{"run": "b", "from": "a", "lines": ["seed: 1 → 2"], "left_out": 0}]


SENSELESS = [
    f"{RUN}/curves?stage=none", f"{RUN}/curves?stage=grpo&points=5", f"{RUN}/curves?stage=grpo&points=1e9",
    f"{RUN}/samples?stage=grpo&step=-1", f"{RUN}/samples?stage=grpo&step=2&limit=100000", f"{RUN}/samples",
    f"{RUN}/same?stage=grpo&step=2&row=99", "/api/compare", "/api/compare?runs=none", "/api/runs/%2e%2e/spec",
    f"/api/compare?runs={','.join(map(str, range(99)))}", "/api/nothing", "/nothing",
]  # fmt: skip


@pytest.mark.parametrize("path", SENSELESS)
def test_what_makes_no_sense_is_refused_in_one_shape(told, path: str) -> None:
    answer = told(path)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["message"]


VISITORS = [({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403), ({}, 200)]


@pytest.mark.parametrize(("headers", "status"), VISITORS)
def test_pages_of_other_hosts_get_nothing(asked, headers: dict[str, str], status: int) -> None:
    assert asked("/api/runs", headers=headers).status_code == status


def test_beyond_this_machine_reading_needs_the_token_too(asked) -> None:
    assert asked("/api/runs", local=False).status_code == 403
    assert asked("/api/runs", local=False, token=True).status_code == 200
    assert asked("/", local=False).status_code == 200


@pytest.mark.parametrize("path", READING)
def test_no_reading_route_takes_anything_else(told, path: str) -> None:
    assert {told(path, method, token=True).status_code for method in ("POST", "PUT", "DELETE", "PATCH")} == {405}


def state(root: Path) -> dict[str, tuple[int, ...]]:
    """Everything there is below a folder: inode, mode, size and time of the last change."""
    found = {}
    for folder, _, files in os.walk(root):
        for path in [Path(folder), *(Path(folder) / name for name in files)]:
            one = path.stat()
            found[str(path)] = (one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns)
    return found


def test_reading_leaves_a_run_as_it_is(asked, tmp_path: Path) -> None:
    small_run(tmp_path)
    before = state(tmp_path)
    for path in READING:
        asked(path)
    assert state(tmp_path) == before


def test_a_run_that_holds_its_folder_is_read_and_a_run_that_is_read_can_be_held(asked, tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    with closing(RunFolder(folder).hold()):
        assert asked("/api/runs/small").status_code == 200
    asked("/api/runs/small/curves?stage=grpo")
    with closing(RunFolder(folder).hold()), open(folder / "events.jsonl", "ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert log.write(b"\n") == 1


DAMAGE = [
    b"", b"\n\n", b"{", b"\xff\xfe\n", b"[1, 2]\n" * 5, b'{"kind": "metrics"}\n',
    b'{"kind": "samples", "time": 1, "stage": "\\x", "step": 1, "rows": [}\n',
]  # fmt: skip


def spoilt(folder: Path, spec: str = "", event: str = "") -> None:
    """A run beside a sound one, with something impossible in its spec or its log."""
    made = run_folder(folder, "spoilt", "sft", "grpo", steps=5)
    if spec:  # of two fields of one name the last one counts
        (made / "run.json").write_text(f"{(made / 'run.json').read_text().rstrip()[:-1]}, {spec}}}")
    with open(made / "events.jsonl", "a") as log:
        log.write(f"{event}\n")


HUGE = "9" * 400
IMPOSSIBLE = [
    {"spec": '"seed": NaN'}, {"spec": '"seed": 1e999'}, {"spec": '"seed": {"a": [1]}'},
    {"event": '{"kind": "metrics", "time": NaN, "stage": "grpo", "step": 3, "values": {"loss": NaN}}'},
    {"event": '{"kind": "metrics", "time": 1e999, "stage": "grpo", "step": 3, "values": {"loss": 1e999}}'},
    {"event": f'{{"kind": "metrics", "time": {HUGE}, "stage": "grpo", "step": 3, "values": {{"loss": -{HUGE}}}}}'},
    {"event": '{"kind": "lifecycle", "time": NaN, "what": "x"}\n{"kind": "lifecycle", "time": 1e999, "what": ["x"]}'},
    {"event": f'{{"kind": "samples", "time": 1, "stage": "grpo", "step": 3, "rows": [{{"text": ["a"], "reward": {HUGE}}}]}}'},
]  # fmt: skip


@pytest.mark.parametrize("damage", IMPOSSIBLE)
def test_numbers_that_cannot_be_spoil_neither_the_list_nor_their_run(asked, tmp_path: Path, damage: dict[str, str]) -> None:
    small_run(tmp_path)
    spoilt(tmp_path, **damage)
    assert {line["id"] for line in asked("/api/runs").json()["runs"]} == {"small", "spoilt"}
    for path in READING:
        assert asked(path.replace("small", "spoilt").replace("step=2", "step=3")).status_code in (200, 404)


def test_the_steps_of_a_spec_that_cannot_be_are_none(asked, tmp_path: Path) -> None:
    folder = small_run(tmp_path)
    for steps in ("NaN", "1e999", HUGE, '"x"', "-1"):
        (folder / "run.json").write_text(
            f'{{"name": "small", "stages": [{{"name": "grpo", "kind": "Online", "steps": {steps}}}]}}'
        )
        assert asked("/api/runs").json()["runs"][0]["steps"] == 0
        assert asked(RUN).status_code == 200


def test_spans_nested_beyond_reading_are_passed_over(asked, tmp_path: Path) -> None:
    (small_run(tmp_path) / "spans" / "learner.jsonl").write_text("[" * 100_000 + "\n")
    assert asked(f"{RUN}/time").status_code == 200


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_is_shown_as_far_as_it_goes(asked, tmp_path: Path, damage: bytes) -> None:
    log = small_run(tmp_path) / "events.jsonl"
    log.write_bytes(damage + b"\n" + log.read_bytes())
    assert asked("/api/runs/small").json()["stages"][1]["done"] == 10


def test_a_runs_images_are_sent_by_their_names(asked, tmp_path: Path) -> None:
    blob = Blobs(small_run(tmp_path) / "blobs").add(b"a red square", "image/png")
    answer = asked(f"{RUN}/blobs/{blob.hash}?kind=image/png")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"a red square", "image/png")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["..%2Frun.json?kind=image/png", "{hash}?kind=text/html", "{hash}?kind=image/svg%2Bxml", f"{'0' * 64}?kind=image/png"],
)
def test_what_is_no_image_of_a_run_is_not_sent(asked, tmp_path: Path, path: str) -> None:
    blob = Blobs(small_run(tmp_path) / "blobs").add(b"<svg/>", "image/png")
    assert asked(f"{RUN}/blobs/{path.format(hash=blob.hash)}").status_code == 404
