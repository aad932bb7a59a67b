"""TransferQueue's side of ``benchmarks/stream.py``; run by a Python that has ``TransferQueue==0.1.11``.

Its documented pattern with its simple storage: a producer puts batches of columns (a partition for each step), a consumer
asks for the metadata of a batch that nobody consumed, gets the data, and clears the partition. Both are Ray actors, that is
processes, beside the controller and the storage units. Prints one line of JSON: for each measured round its seconds by the
clock and those of the processors, over all processes that Ray started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")

import itertools

import psutil
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

TOKENS = ("tokens_T", "action_T", "logp_T", "version_T", "reward_T")
POLL = 0.001
"""Seconds between two questions for a batch that is not there yet; the controller's own waiting blocks it for 5 seconds."""


def batch_of(rows: int, width: int, payload: int) -> TensorDict:
    """Rows of ``width`` tokens in five columns, or of ``payload`` bytes in one."""
    if payload:
        return TensorDict({"payload": torch.zeros(rows, payload, dtype=torch.uint8)}, batch_size=rows)
    whole, real = torch.zeros(rows, width, dtype=torch.int32), torch.zeros(rows, width)
    columns = (whole, torch.ones(rows, width, dtype=torch.bool), real, whole.clone(), real.clone())
    return TensorDict(dict(zip(TOKENS, columns, strict=True)), batch_size=rows)


def processor_seconds(driver: int) -> float:
    """What the driver and all processes below it have used so far."""
    above = psutil.Process(driver)
    return sum(one.cpu_times().user + one.cpu_times().system for one in (above, *above.children(recursive=True)))


@ray.remote(num_cpus=1)
class Producer:
    def __init__(self, options: argparse.Namespace) -> None:
        tq.init()
        self.options, self.client = options, tq.get_client()

    async def run(self, steps: int) -> None:
        batch = batch_of(self.options.batch, self.options.width, self.options.payload)
        todo = iter(range(steps))

        async def worker() -> None:
            for step in todo:
                await self.client.async_put(data=batch, partition_id=f"train_{step}")

        await asyncio.gather(*(worker() for _ in range(self.options.in_flight)))


@ray.remote(num_cpus=1)
class Consumer:
    def __init__(self, options: argparse.Namespace) -> None:
        tq.init()
        self.options, self.client = options, tq.get_client()

    async def run(self, steps: int) -> list[tuple[float, float]]:
        """Seconds by the clock and of the processors at the end of each round."""
        fields = ["payload"] if self.options.payload else list(TOKENS)
        todo, ends, done = iter(range(steps)), [], itertools.count(1)

        async def worker() -> None:
            for step in todo:
                asked = {"data_fields": fields, "batch_size": self.options.batch, "partition_id": f"train_{step}"}
                while not (meta := await self.client.async_get_meta(**asked, mode="fetch", task_name="train")).size:
                    await asyncio.sleep(POLL)
                data = await self.client.async_get_data(meta)
                assert len(data[fields[0]]) == self.options.batch
                await self.client.async_clear_partition(f"train_{step}")
                if next(done) % self.options.steps == 0:
                    ends.append((time.perf_counter(), processor_seconds(self.options.driver)))

        await asyncio.gather(*(worker() for _ in range(self.options.in_flight)))
        return ends


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--width", type=int, default=0)
    options.add_argument("--payload", type=int, default=0)
    options.add_argument("--in-flight", type=int, default=1)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, required=True)
    chosen = options.parse_args()
    chosen.driver = os.getpid()
    # More CPUs than there are: Ray places processes by the count, and none of them may wait for a place.
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    tq.init(OmegaConf.create({"controller": {"polling_mode": True}}))
    producer, consumer = Producer.remote(chosen), Consumer.remote(chosen)
    steps = chosen.steps * (chosen.rounds + 1)  # the first round warms up
    consuming, producing = consumer.run.remote(steps), producer.run.remote(steps)
    ends = ray.get(consuming)
    ray.get(producing)
    rounds = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(ends)]
    print(json.dumps(rounds), flush=True)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
