"""The timeline: sums by hand, a trace that viewers read, and a picture that loses no second whatever the spans."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from live_examples import run_folder
from penstock.core.spans import Span
from penstock.observe.lanes import Lane
from penstock.observe.timeline import account, percentile, trace_events, waiting_share, write_trace
from penstock.ui.lanes import AROUND, COLUMNS, FINE_COLUMNS, LEFT, RIGHT, TALL, coverage, lane_view, pictures, time_ticks
from penstock.ui.report import write_report
from penstock.ui.timeline_text import account_lines, seconds


def span(name, start, end, *, busy=None, count=1, **fields):
    return Span(name, start, end, end - start if busy is None else busy, count, fields)


def lane(role, *spans, lives=None):
    return Lane(role, spans, lives or ((0.0, 10.0),))


LEARNER = lane(
    "learner",
    span("save", 0.0, 2.0),
    span("wait", 2.0, 5.0, step=0),
    span("label", 5.0, 5.5, step=0),
    span("train", 5.5, 7.5, step=0, lag={"0": 30, "1": 10}),
    span("publish", 7.5, 7.6, version=1),
    span("wait", 7.6, 8.6, step=1),
    span("train", 8.6, 9.6, step=1, lag={"1": 30, "2": 10}),
)
GENERATOR = lane(
    "generator-0",
    span("generate", 2.0, 5.0, busy=2.0, count=20, tokens=400, in_flight=8),
    span("update", 7.5, 7.501, version=1),
    span("generate", 7.6, 8.6, count=10, tokens=100, in_flight=4),
)


def test_seconds_by_kind_of_each_role():
    learner, generator = account([LEARNER, GENERATOR]).roles
    assert list(learner.seconds) == ["train", "label", "publish", "save", "wait"]
    assert learner.seconds == pytest.approx({"train": 3.0, "label": 0.5, "publish": 0.1, "save": 2.0, "wait": 4.0})
    assert (learner.alive, learner.work, learner.idle) == pytest.approx((10.0, 5.6, 0.4))
    assert (generator.work, generator.idle) == pytest.approx((3.001, 6.999))


def test_bubbles_of_learner_and_generators():
    found = account([LEARNER, GENERATOR, lane("generator-1", span("generate", 0, 10, busy=5.0))])
    assert found.learner_waits == pytest.approx(4.0 / 8.0)
    assert found.generators_idle == pytest.approx(1 - (3.001 + 5.0) / 20)


def test_the_time_in_which_no_process_was_alive_is_no_bubble():
    learner = lane("learner", span("wait", 4, 6), span("train", 6, 10), span("wait", 100, 104), lives=((0, 10), (100, 108)))
    assert waiting_share(learner) == pytest.approx(6 / 14)


def test_a_run_that_waits_for_nothing_has_no_bubble():
    found = account([lane("learner", span("train", 0.0, 9.0))])
    assert (found.learner_waits, found.generators_idle, found.lags, found.stalls) == (None, None, {}, ())


def test_the_lag_histogram_counts_tokens():
    found = account([LEARNER])
    assert found.lags == {0: 30, 1: 40, 2: 10}
    assert found.mean_lag == pytest.approx(60 / 80)


def test_malformed_lag_is_left_out():
    broken = lane("learner", span("train", 0, 1, lag="many"), span("train", 1, 2, lag={"x": 1, "1": "two", "2": 5}))
    assert account([broken]).lags == {2: 5}


def test_percentiles_by_hand():
    assert percentile([(3.0, 1), (1.0, 1), (2.0, 1), (4.0, 1)], 0.5) == 2.0
    assert percentile([(1.0, 94), (9.0, 6)], 0.95) == 9.0
    assert percentile([(1.0, 95), (9.0, 5)], 0.95) == 1.0
    assert percentile([], 0.5) == 0.0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1), st.floats(0.01, 1))
def test_a_percentile_bounds_its_share(counted, share):
    value = percentile(counted, share)
    total = sum(count for _, count in counted)
    assert sum(count for found, count in counted if found <= value) >= share * total - 1e-6


def test_stalls_are_those_of_single_updates():
    spans = [span("update", i, i + 0.001 * (1 + i)) for i in range(20)]
    found = account([lane("generator-0", *spans)])
    assert (found.stall(0.5), found.stall(0.95), found.stall(1.0)) == pytest.approx((0.010, 0.019, 0.020))


def test_the_account_in_words():
    text = "\n".join(account_lines(account([LEARNER, GENERATOR])))
    assert re.search(r"learner +10\.0 s +56%  train 3\.00 s, label 500\.0 ms, .*wait 4\.00 s, idle 400\.0 ms", text)
    assert "the learner waits: 50.0% of its time" in text
    assert "lag of trained tokens: 0: 37.5%, 1: 50.0%, 2: 12.5% (mean 0.75 versions)" in text
    assert "stall of a weight update: p50 1.00 ms, p95 1.00 ms, longest 1.00 ms, of 1" in text


def test_many_lags_are_told_in_one_line():
    wide = lane("learner", span("train", 0, 1, lag={str(lag): 1 for lag in range(20)}))
    (line,) = [line for line in account_lines(account([wide])) if line.startswith("lag")]
    assert line.endswith("8: 5.0%, 9 to 19: 55.0% (mean 9.50 versions)")


def test_times_in_words():
    assert [seconds(value) for value in (7500.0, 12.34, 1.0, 0.0456, 0.00123, 0.000045, 0.0)] == [
        "2 h 05 min", "12.3 s", "1.00 s", "45.6 ms", "1.23 ms", "45 µs", "0 µs",
    ]  # fmt: skip


def test_a_trace_has_a_process_per_role_a_thread_per_kind_and_counters():
    events = list(trace_events([LEARNER, GENERATOR]))
    names = {(e["pid"], e.get("tid"), e["args"]["name"]) for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert {(1, None, "learner"), (2, None, "generator-0"), (1, 1, "train"), (2, 1, "generate"), (2, 2, "update")} <= names
    first = next(e for e in events if e["ph"] == "X" and e["name"] == "generate")
    assert (first["pid"], first["tid"], first["ts"], first["dur"]) == (2, 1, 2e6, 3e6)
    assert first["args"] == {"tokens": 400, "in_flight": 8, "busy_ms": 2000.0, "pieces": 20}
    counters = [(e["name"], e["ts"], e["args"]["value"]) for e in events if e["ph"] == "C"]
    assert [value for name, _, value in counters if name == "lag"] == [0.25, 1.25]
    assert ("generate: in flight", 2e6, 8) in counters
    assert ("tokens per second", 2e6, 200.0) in counters


def test_threads_of_a_trace_hold_no_overlapping_spans():
    events = [e for e in trace_events([LEARNER, GENERATOR]) if e["ph"] == "X"]
    for thread in {(e["pid"], e["tid"]) for e in events}:
        own = sorted((e["ts"], e["dur"]) for e in events if (e["pid"], e["tid"]) == thread)
        assert all(a + dur <= b + 0.1 for (a, dur), (b, _) in itertools.pairwise(own))


def test_a_written_trace_is_standard_json(tmp_path):
    write_trace([LEARNER, GENERATOR], tmp_path / "t.json")
    read = json.loads((tmp_path / "t.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read["traceEvents"] == list(trace_events([LEARNER, GENERATOR]))
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


SPANS = st.lists(
    st.tuples(st.sampled_from(["train", "wait", "odd"]), st.floats(-5, 15), st.floats(0, 20), st.floats(0, 1)).map(
        lambda t: span(t[0], t[1], t[1] + t[2], busy=t[2] * t[3])
    ),
    max_size=30,
)


@given(SPANS)
def test_coverage_loses_no_second(spans):
    found = coverage(spans, 0.0, 10.0, COLUMNS)
    for kind, share_C in found.items():
        inside = [(max(0.0, min(10.0, s.end) - max(0.0, s.start)) / (s.end - s.start), s.busy) for s in spans
                  if s.name == kind and s.end > s.start]  # fmt: skip
        expected = sum(share * busy for share, busy in inside if share > 0)
        assert share_C.sum() * 10.0 / COLUMNS == pytest.approx(expected, abs=1e-6)
        assert (share_C >= -1e-9).all()


@given(SPANS)
def test_bands_stay_in_their_lane_and_do_not_overlap(spans):
    view = lane_view(lane("learner", *spans), 100, 0.0, 10.0)
    filled = np.zeros((TALL, FINE_COLUMNS), int)
    for band in view.bands:
        for x, y, width, height in re.findall(r"M([\d.]+) (\d+)h([\d.]+)v-(\d+)h-[\d.]+z", band.path):
            top, left, wide = int(y) - int(height) - 100, round((float(x) - LEFT) * 4), round(float(width) * 4)
            filled[top : top + int(height), left : left + wide] += 1
            assert top >= 0
            assert left + wide <= FINE_COLUMNS
    assert filled.max(initial=0) <= 1


def test_a_lane_by_hand():
    half = COLUMNS // 2
    view = lane_view(lane("learner", span("train", 0.0, 5.0), span("wait", 5.0, 10.0, busy=2.5)), 6, 0.0, 10.0)
    assert [(band.kind, band.path) for band in view.bands] == [
        ("train", f"M{LEFT} {6 + TALL}h{half}v-{TALL}h-{half}z"),
        ("wait", f"M{LEFT + half} {6 + TALL}h{half}v-{TALL // 2}h-{half}z"),
    ]
    assert view.lives == ((LEFT, COLUMNS),)


def test_updates_are_marked_where_they_can_be_told_apart():
    few = [span("update", i + 0.5, i + 0.5001) for i in range(5)]
    assert lane_view(lane("generator-0", *few), 6, 0.0, 5.0).updates == (185.4, 364.2, 543.0, 721.8, 900.6)
    many = [span("update", i / 100, i / 100 + 0.0001) for i in range(500)]
    assert lane_view(lane("generator-0", *many), 6, 0.0, 5.0).updates == ()
    assert len(lane_view(lane("generator-0", *many), 6, 2.0, 2.5).updates) == 51


def steps(count):
    spans = [s for i in range(count) for s in (span("wait", i, i + 0.5), span("train", i + 0.5, i + 1.0, lag={"0": 1}))]
    return lane("learner", *spans, lives=((0.0, float(count)),))


def test_a_long_run_gets_a_close_up_of_steps_in_its_middle():
    whole, close = pictures([steps(1000)])
    assert (whole.title, close.title) == ("the whole run", "12 steps in its middle")
    tall = [part for part in close.lanes[0].bands[0].path.split("z") if f"v-{TALL}h" in part]
    assert len(tall) == 2 * AROUND
    assert [tick.label for tick in close.ticks][:2] == ["496 s", "498 s"]
    assert all(len(band.path) < 25 * COLUMNS for band in whole.lanes[0].bands)


def test_a_short_run_is_one_picture_and_an_empty_one_none():
    assert len(pictures([steps(5)])) == 1
    assert pictures([]) == []
    assert pictures([Lane("learner", (), ())]) == []
    assert len(pictures([Lane("learner", (), ((5.0, 5.0),))])) == 1


@pytest.mark.parametrize(("span", "unit"), [(0.5, "ms"), (30.0, "s"), (600.0, "min"), (20_000.0, "h"), (1e6, "d")])
def test_the_axis_has_round_times_in_a_unit_that_suits(span, unit):
    ticks = time_ticks(0.0, span)
    assert 3 <= len(ticks) <= 12
    assert ticks[0].label == f"0 {unit}"
    assert all(LEFT <= tick.at <= RIGHT for tick in ticks)


def test_the_report_shows_the_lanes_and_stays_small(tmp_path):
    folder = run_folder(tmp_path, "r")
    (folder / "spans").mkdir()
    with open(folder / "spans" / "learner.jsonl", "w") as file:
        file.write('{"opened": 100.0}\n{"name": "<b>", "start": 1.0, "end": 2.0}\n{"name": "train", "star\n')
        for i in range(8000):
            for name, at in (("wait", 0.0), ("train", 0.5)):
                file.write(json.dumps({"name": name, "start": 100 + i + at, "end": 100.5 + i + at}) + "\n")
    text = write_report(folder).read_text()
    assert all(part in text for part in ("the whole run", 'class="kind train"', "the learner waits"))
    assert "<b>" not in text.split("<body>")[1].split("<h2>Events")[0].replace("<b>{{", "")
    assert len(text) < 200_000


def test_a_report_of_a_run_without_spans_has_no_lanes(tmp_path):
    assert "the whole run" not in write_report(run_folder(tmp_path, "r")).read_text()
