"""Runs whose groups lie in TransferQueue: the weights of one process, also when a storage unit or its controller dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install penstock[transferqueue]")

from runs import BATCH, weights
from runs_on_ray import Nodes, RunOnRay, parent, pids, raylet_of

pytestmark = pytest.mark.slow
Start = Callable[..., RunOnRay]
STREAM = ("--roles.stream", "TransferQueue")


def actors(run: RunOnRay, kind: str) -> list[int]:
    """The processes of a run's actors of a class, in a cluster of its own."""
    found = []
    for pid in pids():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if line.startswith(f"ray::{kind}".encode()) and parent(parent(pid)) == run.process.pid:
                found.append(pid)
    return found


def node_with_unit(nodes: Nodes, beside: int) -> Any:
    """A node that holds a storage unit, not the driver's; that of the process ``beside``, if it is one."""
    raylets = {raylet_of(node): node for node in nodes.nodes[1:]}
    found = []
    for pid in pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Unit") and parent(pid) in raylets:
                found.append(raylets[parent(pid)])
    assert found, "all units are on the driver's node"
    preferred = nodes.of(beside)
    return preferred if preferred in found else found[0]


def assert_each_trained_once(run: RunOnRay, steps: int) -> None:
    batches = run.batches()
    assert len(batches) == steps
    assert sorted(ordinal for batch in batches for ordinal in batch) == list(range(steps * BATCH))


def test_the_quickstart_ends_at_the_weights_of_one_process(tmp_path: Path) -> None:
    steps = ("--sft.steps", "6", "--grpo.steps", "4")
    found = []
    for runtime, words in (("local", ()), ("ray", STREAM)):
        folder = tmp_path / runtime
        folder.mkdir()
        run = RunOnRay(folder, "quickstart", *steps, *words, "--threads", "1", runtime=runtime)
        try:
            assert run.wait() == 0, run.everything()
        finally:
            run.kill_everyone()
        found.append(weights(run.run))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["Unit", "Controller"])
def test_when_the_store_loses_an_actor_its_groups_are_drawn_again(
    kind: str, start: Start, undisturbed: Callable[[], Path]
) -> None:
    run = start("letters", "--steps", "10", "--hold", "24", "--delay", "0.05", *STREAM)
    run.until(lambda: run.step >= 6, what="step 6")
    time.sleep(3)  # a whole batch is stored and waits for one reward; a part that is drawn alone rounds in another way
    for pid in actors(run, kind):  # both units: whatever was stored is gone
        os.kill(pid, signal.SIGKILL)
    run.until(lambda: run.notes("payload store lost"), what="note of the loss")
    (run.folder / "go").touch()
    assert run.wait() == 0, run.everything()
    assert_each_trained_once(run, 10)
    assert weights(run.run) == weights(undisturbed())


def test_across_nodes_a_group_is_drawn_again_when_the_node_of_a_unit_is_lost(nodes: Nodes, start: Start) -> None:
    """One unit of three holds part of a batch, which is drawn again in a smaller one: its last bits may differ, no more."""
    for _ in range(2):
        nodes.add()
    words = ("letters", "--steps", "10", "--hold", "24", "--delay", "0.05", "--roles.channel", "disk")
    run = start(*words, *STREAM, "--roles.stream.open_ports", "True", "--roles.stream.units", "3", address=nodes.address)
    run.until(lambda: run.step >= 6, what="step 6")
    time.sleep(3)
    nodes.kill(node_with_unit(nodes, beside=run.roles["generator-0"]))
    nodes.add()
    run.until(lambda: run.notes("payload store lost"), what="note of the loss")
    (run.folder / "go").touch()
    assert run.wait() == 0, run.everything()
    assert_each_trained_once(run, 10)
