"""What is counted of an engine in other processes: hand values."""

from __future__ import annotations

from penstock.core.spans import Spans
from penstock.serve.meter import Meter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_seconds_with_a_request_in_flight_are_busy(tmp_path) -> None:
    clock, meter = Clock(), Meter()
    spans = Spans(tmp_path / "spans.jsonl", "generator-0", clock)
    meter.enter(spans.clock())
    clock.now = 2.0
    meter.drew(10, spans)
    clock.now = 3.0
    meter.leave(spans)
    clock.now = 100.0
    meter.enter(spans.clock())
    clock.now = 100.5
    meter.drew(1, spans)
    meter.leave(spans)
    spans.close()
    assert (meter.tokens, meter.busy) == (11, 3.5)


def test_tokens_of_one_step_become_one_span(tmp_path) -> None:
    clock, meter = Clock(), Meter()
    spans = Spans(tmp_path / "spans.jsonl", "generator-0", clock)
    for _ in range(3):
        meter.enter(spans.clock())
    clock.now = 0.004
    meter.drew(1, spans)
    meter.drew(1, spans)
    assert meter.busy == 0.0
    clock.now = 0.006
    meter.drew(1, spans)
    spans.close()
    assert meter.busy == 0.006
    assert '"tokens": 3' in (tmp_path / "spans.jsonl").read_text()
