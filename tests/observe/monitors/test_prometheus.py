"""Prometheus: what a scrape over HTTP reads, alone and of real runs."""

from __future__ import annotations

import math
import socket
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest
from monitor_examples import ALARM, BEGAN, STORY, event, folder, metrics, one_stage, run_of

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from penstock.core.errors import SpecError
from penstock.core.events import Event
from penstock.observe.monitors import Monitor, monitors_of
from penstock.observe.monitors.prometheus import MOST

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(port: int) -> Scrape:
    """What Prometheus would read: values by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples), "each number is there once"
    return found


def after(tmp_path: Path, events: Iterable[Event]) -> Scrape:
    """The scrape of a monitor that has heard some events."""
    (monitor,) = monitors_of(run_of("prometheus:0"), folder(tmp_path))
    try:
        for one in events:
            monitor(one)
        monitor.flush()
        return scraped(port_of(monitor))
    finally:
        monitor.ended()


def port_of(monitor: Monitor) -> int:
    return int(monitor.port)  # type: ignore[attr-defined]


GRPO = (("run", "run"), ("stage", "grpo"))
RUN = (("run", "run"),)
MACHINES = {"machine/role/learner/cpu_cores": 1.5, "machine/node/box/memory": 0.5, "machine/gpu/box:1/sm_active": 0.75}


SCRAPED = {
    "a metric is a gauge by run and stage": (STORY, {("penstock_reward_mean", GRPO): 0.5}),
    "a number that is none is served as such": (STORY, {("penstock_loss", GRPO): pytest.approx(math.nan, nan_ok=True)}),
    "steps, samples and tokens are counted": (
        STORY,
        {
            ("penstock_step", GRPO): 2,
            ("penstock_steps_total", GRPO): 2,
            ("penstock_samples_total", GRPO): 2 * 4 * 4,  # steps, prompts of a batch, samples of each
            ("penstock_tokens_total", GRPO): 40 + 60,
        },
    ),
    "a step has its time and its duration": (
        STORY,
        {("penstock_last_step_timestamp_seconds", GRPO): BEGAN + 4, ("penstock_step_seconds", GRPO): 2},
    ),
    "an evaluation is no step": (
        [metrics(1, loss=1.0), metrics(2, evaluation__reward=0.7)],
        {("penstock_evaluation_reward", GRPO): 0.7, ("penstock_steps_total", GRPO): 1},
    ),
    "a rollback counts the steps that are done again": (
        [metrics(step, loss=1.0) for step in (1, 2, 3, 2, 3)],
        {("penstock_step", GRPO): 3, ("penstock_steps_total", GRPO): 4},
    ),
    "a resumed run counts from where it goes on": (
        [metrics(step, loss=1.0) for step in (101, 102)],
        {("penstock_step", GRPO): 102, ("penstock_steps_total", GRPO): 2},
    ),
    "a run that is under way has not finished": (STORY, {("penstock_finished", RUN): 0}),
    "a checkpoint has its time and the end is told": (
        [*STORY, event("lifecycle", "", 0, what="finished", headline="done")],
        {("penstock_checkpoint_timestamp_seconds", RUN): BEGAN + 4, ("penstock_finished", RUN): 1},
    ),
    "machines have labels of their own": (
        [event("metrics", values=MACHINES)],
        {
            ("penstock_machine_role_cpu_cores", (("role", "learner"), ("run", "run"))): 1.5,
            ("penstock_machine_node_memory", (("node", "box"), ("run", "run"))): 0.5,
            ("penstock_machine_gpu_sm_active", (("gpu", "1"), ("node", "box"), ("run", "run"))): 0.75,
        },
    ),
    "the run is described once": (
        [],
        {("penstock_run_info", (("run", "run"), ("runtime", "local"), ("seed", "0"), ("stages", "sft grpo"))): 1},
    ),
    "a name that the page has already is left out": (
        [event("metrics", values={"step": 7.0, "reward/a_b": 1.0}), metrics(1, reward__a__b=2.0)],
        {("penstock_step", GRPO): 1, ("penstock_reward_a_b", GRPO): 1},
    ),
    "names become those that Prometheus allows": (
        [event("metrics", values={"reward/größe 2.0": 1.0})],
        {("penstock_reward_gr__e_2_0", GRPO): 1},
    ),
}


@pytest.mark.parametrize(("events", "expected"), SCRAPED.values(), ids=SCRAPED)
def test_a_scrape_reads(events: list[Event], expected: Scrape, tmp_path: Path) -> None:
    found = after(tmp_path, events)
    assert {name: found[name] for name in expected} == expected


def test_alarms_are_counted_by_sentinel_and_cleared_ones_are_none(tmp_path: Path) -> None:
    fatal = event("sentinel", step=4, **{**ALARM, "severity": "fatal"})
    found = after(tmp_path, [*STORY, STORY[3], fatal])
    labels = (*GRPO[:1], ("sentinel", "flat groups"), ("severity", "warning"), *GRPO[1:])
    assert found["penstock_alarms_total", labels] == 2
    assert found["penstock_alarm_timestamp_seconds", labels] == BEGAN + 4
    assert sum(value for (name, _), value in found.items() if name == "penstock_alarms_total") == 3


def test_metrics_beyond_the_most_are_left_out(tmp_path: Path) -> None:
    values = {f"other/{place}": 1.0 for place in range(MOST + 7)}
    found = after(tmp_path, [event("metrics", values=values)])
    assert sum(name.startswith("penstock_other_") for name, _ in found) == MOST


def test_it_listens_on_loopback_alone(tmp_path: Path) -> None:
    (monitor,) = monitors_of(run_of("prometheus:0"), folder(tmp_path))
    try:
        assert monitor.server.server_address[0] == "127.0.0.1"  # type: ignore[attr-defined]
    finally:
        monitor.ended()


def test_a_port_is_free_again_once_the_run_has_ended(tmp_path: Path) -> None:
    (first,) = monitors_of(run_of("prometheus:0"), folder(tmp_path))
    first.ended()
    (second,) = monitors_of(run_of(f"prometheus:{port_of(first)}"), folder(tmp_path))
    second.ended()
    assert port_of(second) == port_of(first)


def test_a_scraper_that_stays_connected_holds_no_end_up(tmp_path: Path) -> None:
    (monitor,) = monitors_of(run_of("prometheus:0"), folder(tmp_path))
    with socket.create_connection(("127.0.0.1", port_of(monitor))):
        monitor.ended()
    with pytest.raises(OSError):
        scraped(port_of(monitor))


@pytest.mark.parametrize("port", ["no", "-1", "65536", "1:", "127.0.0.1"])
def test_what_names_no_port_is_refused(port: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="names no port"):
        monitors_of(one_stage(f"prometheus:{port}"), tmp_path)


def test_a_refused_run_gives_its_ports_back(tmp_path: Path) -> None:
    (probe,) = monitors_of(one_stage("prometheus:0"), tmp_path)
    probe.ended()
    with pytest.raises(SpecError, match="there is no"):
        monitors_of(one_stage(f"prometheus:{port_of(probe)}", "nothing"), tmp_path)
    with socket.create_server(("127.0.0.1", port_of(probe))) as again:
        assert again.getsockname()[1] == port_of(probe)
