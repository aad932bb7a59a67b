"""Spans: hand values of what is joined, files that a kill cannot spoil, and bounds on memory and size."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.spans import BUFFER, GAP, NO_SPANS, Recorder, Span, Spans, now
from penstock.observe.lanes import read_lane, read_lanes


class Clock:
    """A clock that a test sets."""

    time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def spans(tmp_path, clock):
    made = Spans(tmp_path / "spans" / "learner.jsonl", "learner", clock)
    yield made
    made.close()


def recorded(spans):
    """(name, start, end, busy, count) of what stands in the file."""
    return [(s.name, s.start, s.end, s.busy, s.count) for s in read_lane(spans.path).spans]


def test_the_clock_is_unix_time_that_never_goes_back():
    assert now() > 1.6e9
    times = [now() for _ in range(1000)]
    assert times == sorted(times)


def test_a_block_is_recorded_with_its_fields(spans, clock):
    with spans.span("train", step=3):
        clock.time += 2.0
    spans.flush()
    (span,) = read_lane(spans.path).spans
    assert span == Span("train", 1000.0, 1002.0, 2.0, 1, {"step": 3})
    line = spans.path.read_text().splitlines()[-1]
    assert json.loads(line) == {"name": "train", "start": 1000.0, "end": 1002.0, "step": 3}


def test_a_block_that_raises_is_recorded_and_still_raises(spans, clock):
    def fail():
        with spans.span("save"):
            clock.time += 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    spans.flush()
    assert recorded(spans) == [("save", 1000.0, 1001.0, 1.0, 1)]


def test_steps_with_hardly_a_pause_become_one_span_whose_pauses_are_not_busy(spans):
    for step in range(5):
        spans.extend("generate", 1000 + step * (0.1 + GAP / 2), 1000.1 + step * (0.1 + GAP / 2), tokens=7, in_flight=step)
    spans.extend("generate", 1000.7, 1000.8, tokens=1, in_flight=9)
    spans.flush()
    first, second = read_lane(spans.path).spans
    assert (first.start, first.end, first.busy, first.count) == pytest.approx((1000, 1000.54, 0.5, 5))
    assert first.fields == {"tokens": 35, "in_flight": 4}
    assert (second.start, second.count, second.fields) == (1000.7, 1, {"tokens": 1, "in_flight": 9})


def test_pieces_that_are_added_one_by_one_stay_apart(spans):
    for step in range(3):
        spans.add("train", 1000.0 + step, 1001.0 + step)
    spans.flush()
    assert [span[1] for span in recorded(spans)] == [1000.0, 1001.0, 1002.0]


def test_overlapping_blocks_are_one_period(spans, clock):
    async def work(begin, end):
        while clock.time < begin:
            await asyncio.sleep(0)
        with spans.overlapping("reward"):
            while clock.time < end:
                await asyncio.sleep(0)

    async def tick():
        for _ in range(20):
            for _ in range(4):
                await asyncio.sleep(0)
            clock.time += 0.1

    async def everything():
        await asyncio.gather(work(1000.05, 1000.45), work(1000.15, 1000.25), work(1000.95, 1001.05), tick())

    asyncio.run(everything())
    spans.flush()
    periods = read_lane(spans.path).spans
    assert [(round(s.start, 3), round(s.end, 3), s.count, s.fields) for s in periods] == [
        (1000.1, 1000.5, 2, {"in_flight": 2}),
        (1001.0, 1001.1, 1, {"in_flight": 1}),
    ]


def test_a_long_period_can_be_read_before_it_ends(spans, clock):
    with spans.overlapping("reward"):
        clock.time += 5.0
        spans.flush()
        assert recorded(spans) == [("reward", 1000.0, 1005.0, 5.0, 0)]
        clock.time += 1.0
    spans.flush()
    assert recorded(spans)[1:] == [("reward", 1005.0, 1006.0, 1.0, 1)]


def test_spans_reach_the_file_within_a_second_of_work(spans, clock):
    for _ in range(30):
        with spans.span("train"):
            clock.time += 0.1
    assert 18 <= len(recorded(spans)) <= 30


def test_memory_is_bounded(spans, clock):
    for _ in range(3 * BUFFER):
        spans.add("train", clock.time, clock.time)
        spans.add("wait", clock.time, clock.time)
    assert len(spans._lines) <= BUFFER + 10


def test_a_line_cut_by_a_kill_is_passed_over_and_the_next_process_goes_on(tmp_path, clock):
    path = tmp_path / "generator-0.jsonl"
    first = Spans(path, "generator-0", clock)
    first.add("generate", 1000.0, 1001.0)
    first.flush()
    with open(path, "ab") as file:
        file.write(b'{"name": "generate", "start": 1001.0, "e')
    clock.time = 1010.0
    second = Spans(path, "generator-0", clock)
    second.add("generate", 1010.0, 1011.0)
    clock.time = 1012.0
    second.close()
    lane = read_lane(path)
    assert [(s.start, s.end) for s in lane.spans] == [(1000.0, 1001.0), (1010.0, 1011.0)]
    assert lane.lives == ((1000.0, 1001.0), (1010.0, 1012.0))


@given(st.binary(max_size=300), st.lists(st.sampled_from(['{"name": 3}', "[]", '{"name": "x", "start": 2, "end": 1}', "NaN"])))
def test_any_bytes_can_be_read(tmp_path_factory, garbage, lines):
    path = tmp_path_factory.mktemp("garbage") / "learner.jsonl"
    good = b'{"name": "train", "start": 5.0, "end": 6.0, "step": 1}'
    path.write_bytes(b"\n".join([garbage, *(line.encode() for line in lines), good]) + b"\n")
    assert read_lane(path).spans[-1] == Span("train", 5.0, 6.0, 1.0, 1, {"step": 1})


def test_a_file_grows_with_the_logarithm_of_time_and_loses_no_second(tmp_path, clock):
    spans = Spans(tmp_path / "learner.jsonl", "learner", clock, chunk=10_000)
    sizes = []
    for _ in range(5):
        for _ in range(2000):
            with spans.span("wait"):
                clock.time += 0.01
            with spans.span("train", lag={"0": 2, "1": 1}, tokens=3):
                clock.time += 0.03
        spans.flush()
        sizes.append(os.path.getsize(spans.path))
    spans.close()
    found = read_lane(spans.path).spans
    trained = [span for span in found if span.name == "train"]
    assert sum(span.busy for span in trained) == pytest.approx(300.0, abs=0.1)
    assert sum(span.count for span in trained) == 10_000
    assert sum(span.fields["tokens"] for span in trained) == 30_000
    assert sum(span.fields["lag"]["1"] for span in trained) == 10_000
    assert sizes[-1] - sizes[-2] < sizes[0] / 2
    assert sizes[-1] < 200_000


def test_a_full_disk_ends_the_recording_and_not_the_run(spans, clock):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

    file, spans._file = spans._file, Full()
    with pytest.warns(UserWarning, match=r"learner\.jsonl: the timeline is not recorded any more: No space left"):
        spans.add("train", 1000.0, 1002.0)
    with spans.span("train"):
        clock.time += 5.0
    spans.close()
    file.close()
    assert recorded(spans) == []


def test_a_place_that_cannot_be_written_ends_the_recording_and_not_the_run(tmp_path):
    (tmp_path / "spans").write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="the timeline is not recorded"):
        spans = Recorder(tmp_path / "spans").role("learner")
    with spans.span("train"):
        pass
    spans.close()
    assert (tmp_path / "spans").is_file()


def test_without_a_folder_nothing_is_recorded(tmp_path):
    recorder = Recorder(None)
    spans = recorder.role("learner")
    with spans.span("train", step=1), spans.overlapping("reward"):
        spans.extend("generate", 1.0, 2.0)
    spans.flush()
    recorder.close()
    assert spans is NO_SPANS
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_keeps_one_file_per_role_and_they_are_read_in_their_order(tmp_path):
    recorder = Recorder(tmp_path)
    for role in ("evaluation", "reward-0", "generator-10", "generator-2", "learner", "other"):
        assert recorder.role(role) is recorder.role(role)
    recorder.close()
    roles = [lane.role for lane in read_lanes(tmp_path)]
    assert roles == ["learner", "generator-2", "generator-10", "reward-0", "evaluation", "other"]


def test_a_role_that_is_given_up_and_taken_up_again_has_two_lives(tmp_path):
    recorder = Recorder(tmp_path)
    first = recorder.role("generator-0")
    recorder.end("generator-0", "reward-0")
    assert recorder.role("generator-0") is not first
    recorder.close()
    (lane,) = read_lanes(tmp_path)
    (_, ended), (begun, _) = lane.lives
    assert ended <= begun


IMPORTS = "import os; from pathlib import Path; from penstock.core.spans import Spans"


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)


def test_a_process_that_ends_in_order_leaves_nothing_unwritten(tmp_path):
    path = tmp_path / "reward-0.jsonl"
    run_python(f"{IMPORTS}; spans = Spans(Path({str(path)!r}), 'reward-0')\nwith spans.span('reward', ordinal=3): pass")
    assert [json.loads(line).get("ordinal", "-") for line in path.read_text().splitlines()] == ["-", 3, "-"]
    assert "closed" in path.read_text().splitlines()[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_nothing(tmp_path):
    path = tmp_path / "learner.jsonl"
    run_python(
        f"{IMPORTS}; spans = Spans(Path({str(path)!r}), 'learner')\n"
        "with spans.span('train'): pass\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0)"
    )
    assert len(path.read_text().splitlines()) == 3
