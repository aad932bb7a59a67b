"""What all monitors share: what is refused before a run begins, what is sent, and that no monitor holds a run up."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from monitor_examples import STORY, event, folder, free_port, metrics, one_stage, run_of, silent, told

from penstock.config.run import Run
from penstock.core.errors import SpecError
from penstock.observe import monitors as module
from penstock.observe.monitors import MONITORS, Monitor, monitors_of
from penstock.observe.monitors.monitor import LONGEST, RETRY, ROWS, TEXT, At, leaves, merged, table, watched, without_secrets
from penstock.runtime import launch
from penstock.runtime.listeners import Delivery

RECIPES = Path(__file__).parents[2] / "cli" / "tiny_recipes.py"


class Remembering(Monitor):
    """Keeps what it is told; ``failing`` is how often it cannot be opened."""

    def __init__(self, run: Any, name: str = "remembering", destination: str = "", failing: int = 0) -> None:
        super().__init__(run, name, destination)
        self.heard: list[tuple[Any, ...]] = []
        self.failing = failing

    def open(self) -> None:
        self.heard.append(("open",))
        self.failing -= 1
        if self.failing >= 0:
            raise ConnectionError("nobody there")

    def metrics(self, steps: Any) -> None:
        self.heard += [("metrics", at.total, dict(values)) for at, values in steps]

    def samples(self, at: Any, rows: Any) -> None:
        self.heard.append(("samples", len(rows)))

    def alarm(self, at: Any, event: Any) -> None:
        self.heard.append(("alarm", event["sentinel"]))

    def lifecycle(self, at: Any, event: Any) -> None:
        self.heard.append(("lifecycle", event["what"]))

    def close(self, summary: Any) -> None:
        self.heard.append(("close", dict(summary)))


def remembering(tmp_path: Path, run: Run | None = None, **given: Any) -> Remembering:
    return Remembering(watched(run or run_of(), folder(tmp_path)), **given)


@pytest.mark.parametrize(
    ("monitors", "said"),
    [
        (("prometeus",), 'monitors: there is no "prometeus"; do you mean "prometheus"?'),
        (("nothing:at:all",), 'monitors: there is no "nothing"'),
        (("tensorboard", "tensorboard:elsewhere"), "monitors: tensorboard is named twice; a run has one of each"),
    ],
)
def test_wrong_names_are_refused_in_one_line(monitors: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        launch(one_stage(*monitors), tmp_path / "run")
    assert str(refused.value).startswith(said.partition(";")[0])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", MONITORS)
def test_a_package_that_is_missing_is_refused_and_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    with pytest.raises(SpecError) as refused:
        launch(one_stage(name), tmp_path / "run")
    _, extra, package = MONITORS[name]
    assert str(refused.value) == f"monitors: {name} needs {package.partition('.')[0]}: pip install 'penstock[{extra}]'"
    assert not (tmp_path / "run").exists()


def test_a_parent_package_that_is_missing_is_refused_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MONITORS, "otlp", ("OTLP", "monitors", "no_such_package.within.it"))
    with pytest.raises(SpecError, match=r"otlp needs no_such_package: pip install"):
        monitors_of(one_stage("otlp"), tmp_path)


def test_every_extra_that_is_named_exists() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in text for _, extra, _ in MONITORS.values())


def test_a_taken_port_refuses_the_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        expected = rf"^monitors: prometheus cannot listen on port {port} \(.*\); name another one"
        with pytest.raises(SpecError, match=expected):
            launch(one_stage(f"prometheus:{port}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_steps_are_counted_over_all_stages(tmp_path: Path) -> None:
    monitor = remembering(tmp_path)
    told(monitor, [metrics(4, "sft", loss=1.0), metrics(1, "grpo", loss=2.0)])
    assert monitor.heard[1:3] == [("metrics", 4, {"sft/loss": 1.0}), ("metrics", 5, {"grpo/loss": 2.0})]


def test_in_a_run_of_one_stage_metrics_have_their_own_names(tmp_path: Path) -> None:
    monitor = remembering(tmp_path, one_stage())
    told(monitor, [metrics(1, "sft", loss=1.0)])
    assert monitor.heard[1] == ("metrics", 1, {"loss": 1.0})


def test_machines_belong_to_no_stage(tmp_path: Path) -> None:
    monitor = remembering(tmp_path)
    told(monitor, [event("metrics", values={"machine/node/box/cpu": 0.5})])
    assert monitor.heard[1][2] == {"machine/node/box/cpu": 0.5}


def test_a_service_is_opened_once_a_stage_is_under_way(tmp_path: Path) -> None:
    monitor = remembering(tmp_path)
    for one in STORY:
        monitor(one)
    monitor.flush()
    monitor.ended()
    assert [one[0] for one in monitor.heard] == ["open", "alarm", "samples", "lifecycle", "metrics", "metrics", "close"]


def test_a_run_that_is_refused_leaves_nothing_at_the_service(tmp_path: Path) -> None:
    monitor = remembering(tmp_path)
    told(monitor, STORY[:1])
    assert monitor.heard == []


def test_samples_are_sent_now_and_then_and_evaluations_always(tmp_path: Path) -> None:
    own, held_out = event("samples", rows=[{"text": "a"}]), event("samples", rows=[{"text": "a", "held_out": True}] * 2)
    monitor = remembering(tmp_path)
    told(monitor, [own, own, held_out, own, held_out])
    assert [one for one in monitor.heard if one[0] == "samples"] == [("samples", 1), ("samples", 2), ("samples", 2)]


def test_a_service_that_cannot_be_opened_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = remembering(tmp_path, failing=1)
    (warned,) = told(monitor, [metrics(step, loss=1.0) for step in range(1, 50)])
    assert monitor.heard == [("open",)]
    assert warned == "the listener remembering failed (ConnectionError: nobody there); the run goes on"
    monitor._again = 0.0
    assert told(monitor, [metrics(50, loss=1.0)]) == []
    assert [one[0] for one in monitor.heard] == ["open", "open", "metrics", "close"]


def test_a_service_that_stays_away_is_asked_less_and_less_often(tmp_path: Path) -> None:
    monitor, waits = remembering(tmp_path, failing=8), []
    for _ in range(8):
        before, monitor._again = time.monotonic(), 0.0
        with pytest.raises(ConnectionError):
            monitor(metrics(1, loss=1.0))
        waits.append(round(monitor._again - before))
    assert waits == [RETRY, 2 * RETRY, 4 * RETRY, 8 * RETRY, 16 * RETRY, 32 * RETRY, LONGEST, LONGEST]


def test_a_service_that_is_back_is_trusted_again(tmp_path: Path) -> None:
    monitor = remembering(tmp_path, failing=3)
    for _ in range(3):
        monitor._again = 0.0
        with pytest.raises(ConnectionError):
            monitor(metrics(1, loss=1.0))
    monitor._again = 0.0
    told(monitor, [metrics(2, loss=1.0)])
    assert monitor._wait == RETRY


def test_a_service_that_fails_after_it_was_opened_is_left_alone_for_a_while(tmp_path: Path) -> None:
    class Gone(Remembering):
        def metrics(self, steps: Any) -> None:
            super().metrics(steps)
            raise ConnectionError("gone")

    monitor = Gone(watched(run_of(), folder(tmp_path)))
    for step in (1, 2, 3):
        monitor(metrics(step, loss=1.0))
        with contextlib.suppress(ConnectionError):
            monitor.flush()
    assert monitor.heard == [("open",), ("metrics", 5, {"grpo/loss": 1.0})]


def test_numbers_of_many_steps_are_one_call(tmp_path: Path) -> None:
    calls: list[list[int]] = []

    class Counting(Remembering):
        def metrics(self, steps: Any) -> None:
            calls.append([at.step for at, _ in steps])

    monitor = Counting(watched(run_of(), folder(tmp_path)))
    for step in (1, 2, 3):
        monitor(metrics(step, loss=1.0))
    monitor.flush()
    monitor.flush()
    assert calls == [[1, 2, 3]]


def test_merged_steps_have_the_newest_of_each_number() -> None:
    first, second, third = (At("grpo", step, step, 10.0 * step) for step in (1, 2, 3))
    steps = [(first, {"a": 1.0, "b": 1.0}), (second, {"a": 2.0}), (third, {"a": 3.0})]
    assert merged(steps, lambda at, values: at.step > 2) == [(second, {"a": 2.0, "b": 1.0}), (third, {"a": 3.0})]


def test_the_end_knows_whether_the_run_has_finished(tmp_path: Path) -> None:
    monitor = remembering(tmp_path)
    (folder(tmp_path) / "summary.json").write_text('{"headline": "done"}', encoding="utf-8")
    told(monitor, STORY)
    assert monitor.heard[-1] == ("close", {"headline": "done"})


def test_a_full_queue_is_a_warning_and_nobody_waits(tmp_path: Path) -> None:
    release = threading.Event()

    class Stuck(Remembering):
        def metrics(self, steps: Any) -> None:
            release.wait(60)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stuck = Stuck(watched(run_of(), folder(tmp_path)))
        delivery = Delivery(stuck, 5, stuck)
        for step in range(1, 101):
            delivery(metrics(step, loss=1.0))
        delivery.close(0.1)
        release.set()
    (warned,) = (str(one.message) for one in said)
    assert "is too slow and missed" in warned
    assert delivery.missed >= 94


def test_secrets_stay_here() -> None:
    given = {"api_key": "k", "hub_token": "t", "tokens": "4", "token_budget": "9", "list": [{"Password": "p"}], "secret": ""}
    assert without_secrets(given) == {
        "api_key": "***", "hub_token": "***", "tokens": "4", "token_budget": "9", "list": [{"Password": "***"}], "secret": ""
    }  # fmt: skip


def test_leaves_have_dotted_names() -> None:
    assert leaves({"a": {"b": [1, {"c": None}]}, "d": "x"}) == {"a.b.0": 1, "a.b.1.c": None, "d": "x"}


def test_a_table_has_the_same_columns_in_every_row() -> None:
    rows = [{"prompt": "p", "text": "t" * (TEXT + 9), "rewards": {"a": 1}}, {"text": "u", "rewards": {"b": True}}]
    first, second = table(rows)
    assert list(first) == list(second)
    assert (len(str(first["text"])), first["reward/a"], first["reward/b"], second["reward/b"]) == (TEXT, 1.0, "", 1.0)


def test_a_table_is_not_too_long() -> None:
    assert len(table([{"text": "t"}] * (ROWS + 1))) == ROWS


def test_a_monitor_sees_what_the_log_of_a_real_run_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Remembering] = []

    def instead(run: Run, path: Path) -> list[Remembering]:
        made.append(Remembering(watched(run, path)))
        return made

    monkeypatch.setattr("penstock.runtime.launching.monitors_of", instead)
    found = launch(run_of(), tmp_path / "run")
    heard = [one[2] for one in made[0].heard if one[0] == "metrics"]
    logged = [{f"{one['stage']}/{name}": value for name, value in one["values"].items()} for one in found.metrics]
    assert heard == logged
    assert ("lifecycle", "finished") in made[0].heard
    assert made[0].heard[-1] == ("close", json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8")))


def test_watching_is_no_part_of_what_a_run_is(tmp_path: Path) -> None:
    """A finished run may be resumed with other monitors, and a run with all of them ends as one without."""
    pytest.importorskip("tensorboard")
    alone = launch(run_of(), tmp_path / "alone")
    watched_one = launch(run_of("tensorboard", "prometheus:0"), tmp_path / "watched")
    own = [event["values"]["reward/mean"] for event in alone.metrics if "reward/mean" in event["values"]]
    assert own == [event["values"]["reward/mean"] for event in watched_one.metrics if "reward/mean" in event["values"]]
    launch(run_of("prometheus:0"), tmp_path / "watched", resume=True)


@pytest.mark.parametrize("server", ["dead", "silent"])
def test_a_whole_run_ends_in_time_whatever_its_services_do(server: str, tmp_path: Path) -> None:
    """All monitors at once, in a process of its own, whose end is waited for too."""
    for _, _, package in MONITORS.values():
        pytest.importorskip(package)
    environment = {"WANDB_API_KEY": "0" * 40, "TRACKIO_WRITE_TOKEN": "wrong", "OMP_NUM_THREADS": "1"}
    with silent() as url:
        url = url if server == "silent" else f"http://127.0.0.1:{free_port()}"
        environment |= {"WANDB_BASE_URL": url, "TRACKIO_SERVER_URL": url}
        (tmp_path / "tensorboard").write_text("in the way")
        named = ("prometheus:0", f"otlp:{url}", f"mlflow:{url}", "wandb", "trackio", f"tensorboard:{tmp_path / 'tensorboard'}")
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", "train", f"{RECIPES}:one_step", "--name", "run", "--monitors",
             json.dumps(named)],
            env={**dict(os.environ), **environment},
            cwd=tmp_path, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "run" / "summary.json").exists()
    warned = [name for name in ("otlp", "mlflow", "wandb", "tensorboard") if f"the listener {name} " in done.stderr]
    assert warned, done.stderr
