"""OTLP: what a collector over HTTP decodes, and what happens where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from monitor_examples import BEGAN, STORY, answering, event, folder, free_port, metrics, run_of, silent, told

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from penstock.observe.monitors import monitors_of, otlp


class Collector(NamedTuple):
    url: str
    requests: list[ExportMetricsServiceRequest]
    paths: list[str]
    status: list[int]
    """The answer; the last of them is kept."""

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """By metric, attributes and value of each point, in the order in which they came."""
        found: dict[str, list[tuple[dict[str, Any], float]]] = {}
        for request in self.requests:
            for resource in request.resource_metrics:
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    data = getattr(metric, metric.WhichOneof("data"))
                    for point in data.data_points:
                        about = {pair.key: pair.value.string_value for pair in point.attributes}
                        found.setdefault(metric.name, []).append((about, float(getattr(point, point.WhichOneof("value")))))
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    """An OTLP receiver, which decodes what it is sent."""
    requests: list[ExportMetricsServiceRequest] = []
    paths: list[str] = []
    status = [200]

    def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        paths.append(f"{method} {path}")
        requests.append(ExportMetricsServiceRequest.FromString(body))
        return status[0], b""

    with answering(answer) as url:
        yield Collector(url, requests, paths, status)


def monitor_to(destination: str, tmp_path: Path) -> Any:
    return monitors_of(run_of(f"otlp:{destination}" if destination else "otlp"), folder(tmp_path))[0]


ABOUT = {"run": "run", "stage": "grpo"}


def test_metrics_are_gauges_with_run_and_stage(collector: Collector, tmp_path: Path) -> None:
    assert told(monitor_to(collector.url, tmp_path), STORY) == []
    found = collector.points()
    assert found["penstock.reward.mean"][-1] == (ABOUT, 0.5)
    assert found["penstock.step"][-1] == (ABOUT, 2.0)
    assert set(collector.paths) == {"POST /v1/metrics"}


def test_alarms_are_a_counter(collector: Collector, tmp_path: Path) -> None:
    told(monitor_to(collector.url, tmp_path), [*STORY, STORY[3]])
    assert collector.points()["penstock.alarms"][-1] == ({**ABOUT, "sentinel": "flat groups", "severity": "warning"}, 2.0)


def test_the_resource_is_the_run(collector: Collector, tmp_path: Path) -> None:
    told(monitor_to(collector.url, tmp_path), STORY)
    about = {pair.key: pair.value.string_value for pair in collector.requests[0].resource_metrics[0].resource.attributes}
    expected = {"service.name": "penstock", "penstock.run": "run", "penstock.stages": "sft grpo", "penstock.seed": "0"}
    assert expected.items() <= about.items()


def test_the_newest_numbers_go_out_with_every_batch(collector: Collector, tmp_path: Path) -> None:
    monitor = monitor_to(collector.url, tmp_path)
    for step in (1, 2, 3):
        monitor(metrics(step, loss=float(step)))
        monitor.flush()
    monitor.ended()
    assert [value for _, value in collector.points()["penstock.loss"]][:3] == [1.0, 2.0, 3.0]


def test_gauges_beyond_the_most_are_left_out(collector: Collector, tmp_path: Path) -> None:
    values = {f"other/{place}": 1.0 for place in range(otlp.MOST + 5)}
    told(monitor_to(collector.url, tmp_path), [event("metrics", values=values)])
    assert len(collector.points()) == otlp.MOST


def test_the_usual_environment_names_the_collector(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    told(monitor_to("", tmp_path), STORY)
    assert collector.points()["penstock.reward.mean"][-1] == (ABOUT, 0.5)


def test_two_stages_are_told_apart(collector: Collector, tmp_path: Path) -> None:
    told(monitor_to(collector.url, tmp_path), [metrics(1, "sft", loss=2.0), metrics(1, "grpo", loss=1.0)])
    assert collector.points()["penstock.loss"][-2:] == [({"run": "run", "stage": "sft"}, 2.0), (ABOUT, 1.0)]


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_collector_that_refuses_is_one_warning(collector: Collector, status: int, tmp_path: Path) -> None:
    collector.status[0] = status
    (warned,) = told(monitor_to(collector.url, tmp_path), STORY)
    assert "otlp failed (ConnectionLost: the collector did not take the metrics; look at OTEL_EXPORTER_OTLP_ENDPOINT" in warned
    assert warned.endswith("the run goes on")


@pytest.mark.parametrize("address", [f"http://127.0.0.1:{free_port()}", "nonsense"], ids=["a dead one", "no address"])
def test_a_collector_that_is_not_there_is_one_warning(address: str, tmp_path: Path) -> None:
    (warned,) = told(monitor_to(address, tmp_path), STORY)
    assert "the collector did not take the metrics" in warned


def test_a_collector_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "WAIT", 0.3)
    with silent() as url:
        (warned,) = told(monitor_to(url, tmp_path), STORY, seconds=20.0)
    assert "the collector did not take the metrics" in warned  # and not that it is too slow


def test_a_collector_that_comes_back_gets_what_is_new(collector: Collector, tmp_path: Path) -> None:
    collector.status[0] = 400
    monitor = monitor_to(collector.url, tmp_path)
    monitor(metrics(1, loss=1.0))
    with pytest.raises(Exception, match="did not take"):
        monitor.flush()
    collector.status[0] = 200
    monitor._again = 0.0
    assert told(monitor, [metrics(2, loss=2.0)]) == []
    assert collector.points()["penstock.loss"][-1] == (ABOUT, 2.0)


def test_points_carry_the_time_of_sending(collector: Collector, tmp_path: Path) -> None:
    told(monitor_to(collector.url, tmp_path), STORY)
    metric = collector.requests[0].resource_metrics[0].scope_metrics[0].metrics[0]
    data = getattr(metric, metric.WhichOneof("data"))
    assert data.data_points[0].time_unix_nano / 1e9 > BEGAN
