"""The benchmarks that train by hand still fit the learner."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import tiny_models
from penstock.core.types import Sample
from penstock.engine.generator import EmbeddedGenerator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import gpu
import memory


@pytest.mark.usefixtures("cold")
def test_memory_that_is_measured_is_what_is_computed() -> None:
    """One of the settings of docs/memory.md, in a process of its own, whose allocator reads the environment as it starts."""
    (row,) = memory.measured("10M")
    assert float(row.split("|")[4]) == pytest.approx(1, abs=0.15)


def test_training_is_measured_on_samples_that_were_drawn(tiny) -> None:
    model, work = tiny(), gpu.Workload(groups=2, samples=2, prompt=3, new=4)
    generator = EmbeddedGenerator(model, max_running=4)

    async def drawn() -> list[Sample]:
        requests = [tiny_models.request([20, 21, 22], g, s, max_new_tokens=work.new) for g in range(2) for s in range(2)]
        return await asyncio.gather(*(generator.generate(request) for request in requests))

    found = gpu.measure_training(model, asyncio.run(drawn()), work, peak=1e9)
    assert found["log-prob gap, mean (nats)"] < 0.1
    assert found["training step (s)"] > 0
