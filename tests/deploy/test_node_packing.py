"""GPUs asked for are GPUs needed, and what comes to which node is said before anything is printed."""

from __future__ import annotations

import pytest

from penstock.config.leaves import set_leaves
from penstock.config.run import Run
from penstock.core.errors import SpecError
from penstock.deploy.options import Options
from penstock.deploy.packing import layout
from penstock.recipes.quickstart import quickstart

RANKS = (("grpo.learner.strategy", "FSDP2"),)


def run_of(generators: int, ranks: int = 1, *leaves: tuple[str, str], runtime: str = "ray") -> Run:
    spread = (*RANKS, ("grpo.learner.strategy.ranks", str(ranks))) if ranks > 1 else ()
    words = [("runtime", runtime), ("device", "cuda"), ("roles.generators", str(generators)), *spread, *leaves]
    return set_leaves(quickstart(), words)


@pytest.mark.parametrize(
    ("generators", "ranks", "rewards", "asked"),
    [
        # generators, ranks of the learner, reward workers: (nodes, GPUs of each)
        (1, 1, 1, (1, 2)),
        (3, 1, 1, (1, 4)),
        (7, 1, 1, (1, 8)),
        (7, 1, 4, (1, 8)),
        (7, 1, 40, (1, 8)),
        (4, 4, 1, (1, 8)),
        (4, 4, 16, (1, 8)),
        (6, 2, 2, (1, 8)),
        (2, 2, 1, (1, 4)),
        (8, 8, 1, (2, 8)),
        (8, 8, 32, (2, 8)),
        (12, 4, 1, (2, 8)),
        (12, 4, 8, (2, 8)),
        (15, 1, 1, (2, 8)),
        (9, 1, 2, (2, 5)),
        (8, 4, 1, (2, 6)),
        (16, 8, 1, (3, 8)),
        (20, 4, 4, (3, 8)),
        (24, 8, 64, (4, 8)),
        (56, 8, 8, (8, 8)),
    ],
)
def test_gpus_asked_for_are_gpus_needed(generators: int, ranks: int, rewards: int, asked: tuple[int, int]) -> None:
    found = layout(run_of(generators, ranks, ("roles.rewards", str(rewards))), Options())
    assert (found.nodes, found.gpus) == asked
    assert found.nodes * found.gpus == generators + ranks
    processes = sum(len(node.names) for node in found.packed)
    assert processes >= generators + rewards + 1
    assert all(node.gpus <= found.gpus and node.cpus <= found.cpus for node in found.packed)


def test_cores_follow_from_what_a_node_holds() -> None:
    assert layout(run_of(7), Options()).cpus == 9
    assert layout(run_of(1), Options()).cpus == 8


def test_fewer_cores_than_fit_next_to_the_gpus_are_refused() -> None:
    with pytest.raises(SpecError, match="--cpus 8: 2 nodes of 8 GPUs would be asked for, where 1 with 9 cores each hold"):
        layout(run_of(7), Options(cpus=8))


def test_the_table_says_what_is_where_and_what_is_left_over() -> None:
    lines = list(layout(run_of(9), Options(gpus=8)).lines())
    assert lines == [
        "node 1: 8 of 8 GPUs, 8 of 8 cores: learner, generator-0 to 6",
        "node 2: 2 of 8 GPUs, 3 of 8 cores: generator-7 to 8, reward-0",
        "16 GPUs are asked for and 10 needed: all nodes are alike",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": "r/p 1"}, '--image "r/p 1" is none'),
        ({"image": "registry.example/Penstock:1"}, "is none; write one such as registry.example/penstock:0.1.0"),
        ({"image": "r/p:"}, '--image "r/p:" is none'),
        ({"gang": "kueue", "queue": "My Queue"}, '--queue "My Queue": Kubernetes takes small letters'),
        ({"shm": "64Gi"}, "--shm 64Gi is above --memory 32Gi"),
        ({"shm": "33000M", "memory": "30Gi"}, "--shm 33000M is above --memory 30Gi"),
        ({"topology": "a rack"}, '--topology "a rack" is none'),
        ({"rdma": "rdma ib"}, '--rdma "rdma ib" is none'),
        ({"env": ("DB=postgresql://me:word@host/db",)}, "would print a secret"),
        ({"env": ("HUB=hf_abcdefghijklmnopqrst",)}, "would print a secret"),
        ({"env": ("CLOUD=AKIAABCDEFGHIJKLMNOP",)}, "would print a secret"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        Options(**given)  # type: ignore[arg-type]
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "image",
    ["penstock", "r/p:1", "localhost:5000/a/b:v1.2-rc", "ghcr.io/a/b@sha256:" + "0" * 64, "registry.example/penstock:0.1.0"],
)
def test_images_as_registries_name_them_are_taken(image: str) -> None:
    assert Options(image=image).image == image


@pytest.mark.parametrize(("memory", "shared"), [("32Gi", "8192Mi"), ("2G", "476Mi"), ("512Gi", "8192Mi")])
def test_shared_memory_is_a_part_of_the_memory_where_nothing_is_said(memory: str, shared: str) -> None:
    assert Options(memory=memory).shared_memory == shared


def test_names_of_objects_that_are_there_may_have_dots_and_begin_with_a_digit() -> None:
    assert Options(priority_class="team.high", secret="0.hub", queue="a.b", gang="kueue").priority_class == "team.high"
