"""Prometheus: what a scrape over HTTP reads, alone and of real runs."""

from __future__ import annotations

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


def test_a_metric_is_a_gauge_by_run_and_stage(tmp_path: Path) -> None:
    found = after(tmp_path, STORY)
    assert found["penstock_reward_mean", GRPO] == 0.5


def test_a_number_that_is_none_is_served_as_such(tmp_path: Path) -> None:
    found = after(tmp_path, STORY)["penstock_loss", GRPO]
    assert found != found


def test_steps_samples_and_tokens_are_counted(tmp_path: Path) -> None:
    found = after(tmp_path, STORY)
    assert found["penstock_step", GRPO] == 2
    assert found["penstock_steps_total", GRPO] == 2
    assert found["penstock_samples_total", GRPO] == 2 * 4 * 4  # steps, prompts of a batch, samples of each
    assert found["penstock_tokens_total", GRPO] == 40 + 60


def test_a_step_has_its_time_and_its_duration(tmp_path: Path) -> None:
    found = after(tmp_path, STORY)
    assert found["penstock_last_step_timestamp_seconds", GRPO] == BEGAN + 4
    assert found["penstock_step_seconds", GRPO] == 2


def test_an_evaluation_is_no_step(tmp_path: Path) -> None:
    found = after(tmp_path, [metrics(1, loss=1.0), metrics(2, evaluation__reward=0.7)])
    assert found["penstock_evaluation_reward", GRPO] == 0.7
    assert found["penstock_steps_total", GRPO] == 1


def test_a_rollback_counts_the_steps_that_are_done_again(tmp_path: Path) -> None:
    found = after(tmp_path, [metrics(step, loss=1.0) for step in (1, 2, 3, 2, 3)])
    assert (found["penstock_step", GRPO], found["penstock_steps_total", GRPO]) == (3, 4)


def test_a_resumed_run_counts_from_where_it_goes_on(tmp_path: Path) -> None:
    found = after(tmp_path, [metrics(step, loss=1.0) for step in (101, 102)])
    assert (found["penstock_step", GRPO], found["penstock_steps_total", GRPO]) == (102, 2)


def test_alarms_are_counted_by_sentinel_and_cleared_ones_are_none(tmp_path: Path) -> None:
    fatal = event("sentinel", step=4, **{**ALARM, "severity": "fatal"})
    found = after(tmp_path, [*STORY, STORY[3], fatal])
    labels = (*GRPO[:1], ("sentinel", "flat groups"), ("severity", "warning"), *GRPO[1:])
    assert found["penstock_alarms_total", labels] == 2
    assert found["penstock_alarm_timestamp_seconds", labels] == BEGAN + 4
    assert sum(value for (name, _), value in found.items() if name == "penstock_alarms_total") == 3


def test_a_checkpoint_has_its_time_and_the_end_is_told(tmp_path: Path) -> None:
    assert after(tmp_path, STORY)["penstock_finished", RUN] == 0
    found = after(tmp_path, [*STORY, event("lifecycle", "", 0, what="finished", headline="done")])
    assert (found["penstock_checkpoint_timestamp_seconds", RUN], found["penstock_finished", RUN]) == (BEGAN + 4, 1)


def test_machines_have_labels_of_their_own(tmp_path: Path) -> None:
    seen = {"machine/role/learner/cpu_cores": 1.5, "machine/node/box/memory": 0.5, "machine/gpu/box:1/sm_active": 0.75}
    found = after(tmp_path, [event("metrics", values=seen)])
    assert found["penstock_machine_role_cpu_cores", (("role", "learner"), ("run", "run"))] == 1.5
    assert found["penstock_machine_node_memory", (("node", "box"), ("run", "run"))] == 0.5
    assert found["penstock_machine_gpu_sm_active", (("gpu", "1"), ("node", "box"), ("run", "run"))] == 0.75


def test_the_run_is_described_once(tmp_path: Path) -> None:
    about = (("run", "run"), ("runtime", "local"), ("seed", "0"), ("stages", "sft grpo"))
    assert after(tmp_path, [])["penstock_run_info", about] == 1


def test_a_name_that_the_page_has_already_is_left_out(tmp_path: Path) -> None:
    found = after(tmp_path, [event("metrics", values={"step": 7.0, "reward/a_b": 1.0}), metrics(1, reward__a__b=2.0)])
    assert found["penstock_step", GRPO] == 1
    assert found["penstock_reward_a_b", GRPO] == 1


def test_names_become_those_that_prometheus_allows(tmp_path: Path) -> None:
    found = after(tmp_path, [event("metrics", values={"reward/größe 2.0": 1.0})])
    assert found["penstock_reward_gr__e_2_0", GRPO] == 1


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


def test_a_taken_port_is_refused_and_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(SpecError, match=rf"^monitors: prometheus cannot listen on port {port} \(.*\); name another one"):
            monitors_of(one_stage(f"prometheus:{port}"), tmp_path)


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
