"""What a generator records: every token in a busy period, a span for each update that was taken and none for a refused one."""

import asyncio

import pytest

from engine_examples import ragged, run, started
from penstock.core.errors import WeightError
from penstock.core.spans import Spans
from penstock.core.types import WeightUpdate
from penstock.engine.generator import EmbeddedGenerator
from penstock.observe.lanes import read_lane


@pytest.fixture
def generator(tiny, tmp_path):
    made = EmbeddedGenerator(tiny("qwen2"), max_running=4)
    made.spans = Spans(tmp_path / "generator-0.jsonl", "generator-0")
    return made


def spans_of(generator, name):
    generator.spans.close()
    return [span for span in read_lane(generator.spans.path).spans if span.name == name]


def test_busy_periods_hold_every_token_and_the_busy_seconds(generator):
    samples = run(generator, ragged(6, max_new_tokens=8))
    periods = spans_of(generator, "generate")
    assert sum(span.fields["tokens"] for span in periods) == sum(int(sample.action_T.sum()) for sample in samples)
    assert sum(span.busy for span in periods) == pytest.approx(generator.busy_seconds, abs=1e-3)
    assert max(span.fields["in_flight"] for span in periods) == 6


async def test_an_update_that_was_taken_is_a_span_and_a_refused_one_is_not(generator):
    tasks = await started(generator, ragged(4, max_new_tokens=20), tokens=10)
    await generator.load(WeightUpdate(1, None))
    with pytest.raises(WeightError):
        await generator.load(WeightUpdate(1, None))
    await asyncio.gather(*tasks)
    assert [span.fields for span in spans_of(generator, "update")] == [{"version": 1}]
