"""Runs in a cluster of several nodes: the weights of one process, whatever dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.cluster_utils")

from runs_on_ray import Nodes, RunOnRay, Start, command_lines, own_cluster, parent, with_word

PARTS = ("noticing", "placing", "starting", "loading")
APART = """
[generator]
custom = {gen = 1}
"""


def left_in(nodes: Nodes) -> tuple[list[Any], list[Any]]:
    """Actors that live and placement groups that hold room, of all jobs of a cluster."""
    import ray
    from ray._private.state import actors

    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        living = [actor for actor in actors().values() if actor["State"] != "DEAD"]
        holding = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
        return living, holding
    finally:
        ray.shutdown()


def test_one_of_two_generators_loses_its_node_and_another_is_added(nodes: Nodes, start: Start, tmp_path: Path) -> None:
    for _ in range(2):
        nodes.add(gen=1)
    (tmp_path / "place.toml").write_text(APART)
    words = ("letters", "--steps", "24", "--delay", "0.02", "--hold", "4", "--roles.generators", "2")
    run = start(*words, "--roles.channel", "process group", "--placement", "place.toml", address=nodes.address)
    both = ("generator-0", "generator-1")
    run.until(lambda: all((run.run / "spans" / f"{name}.jsonl").exists() for name in both), what="two whose model is loaded")
    (tmp_path / "go").write_text("60")
    run.until(lambda: all(run.takes(name, "begin") for name in both), what="two that draw")
    run.until_step(3)
    doomed, before = run.roles["generator-0"], run.step
    nodes.kill(nodes.of(doomed))
    killed = time.monotonic()
    run.until_step(before + 2)
    went_on = time.monotonic() - killed
    nodes.add(gen=1)
    added = time.monotonic()
    run.until(lambda: run.notes("role back"), what="a successor with the current weights")
    recovered = time.monotonic() - added
    print(
        f"\ntwo more steps {went_on:.1f} s after the kill; a successor with the weights {recovered:.1f} s after its node came"
    )
    (back,) = run.notes("role back")
    print("  of the time without it: " + ", ".join(f"{what} {back[what]} s" for what in PARTS))
    (tmp_path / "go").write_text("")
    run.assert_ends(steps=24)
    assert [note["role"] for note in run.notes("role restarted")] == ["generator-0"]
    assert len(run.takes("generator-0", "begin")) == 2, "the successor drew nothing"
    assert left_in(nodes) == ([], [])


def test_the_only_generator_loses_its_node_and_the_weights_are_those_of_one_process(
    nodes: Nodes, start: Start, undisturbed: Path, tmp_path: Path
) -> None:
    nodes.add(gen=1)
    (tmp_path / "place.toml").write_text(APART)
    words = ("letters", "--steps", "10", "--hold", "20")
    run = start(*words, "--roles.channel", "disk", "--placement", "place.toml", address=nodes.address)
    run.until_step(5)
    nodes.kill(nodes.of(run.roles["generator-0"]))
    killed = time.monotonic()
    nodes.add(gen=1)
    run.go()
    run.until_step(7)
    print(f"\ntwo more steps {time.monotonic() - killed:.1f} s after the kill of the only generator's node, replaced at once")
    run.assert_ends(undisturbed, 10)


def test_a_learner_whose_actor_is_killed_goes_on_at_the_weights_of_one_process(
    three_nodes: Nodes, start: Start, undisturbed: Path
) -> None:
    """Over the disk; over a process group where a node is lost. Of a kill of the learner itself: test_ranks_on_nodes.py."""
    run = start("letters", "--steps", "10", "--hold", "30", "--roles.channel", "disk", address=three_nodes.address)
    run.until_step(5)
    assert len({id(three_nodes.of(pid)) for pid in run.roles.values()}) == 3, "each role is on a node of its own"
    learner = run.roles["learner"]
    os.kill(parent(learner), signal.SIGKILL)
    run.until(lambda: run.roles.get("learner", learner) != learner, what="a new learner")
    assert parent(learner) == 0, "the old learner outlived its actor"
    run.assert_ends(undisturbed, 10)
    assert left_in(three_nodes) == ([], [])


def test_a_role_that_cannot_start_ends_the_run_by_its_name(three_nodes: Nodes, start: Start, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        "import sys\nif sys.argv[-1] == 'reward-0':\n    raise RuntimeError('no licence on this node')\n"
        "def score(sample, columns):\n    return 0.5\n"
    )
    rewards = '--rewards=[{"function": "reward.py:score"}]'
    run = start("letters", rewards, "--roles.channel", "disk", address=three_nodes.address)
    assert run.wait() == 2, run.everything()
    said = [line for line in run.text.splitlines() if "penstock: error" in line]
    assert len(said) == 1
    assert "reward-0 cannot do its work (exit code 2)" in said[0]
    assert "no licence on this node" in said[0]
    assert left_in(three_nodes) == ([], [])


def left_of(cluster: str, run: RunOnRay) -> tuple[dict[str, int], list[str]]:
    """The roles of a run and the processes of its own cluster that live, once none does or a minute has passed."""
    deadline = time.monotonic() + 60
    while (run.roles or with_word(cluster)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return run.roles, with_word(cluster)


def test_a_cluster_of_the_runs_own_lets_nobody_in_without_its_token_and_leaves_nothing(start: Start) -> None:
    run = start("letters", "--steps", "500", "--delay", "0.05")

    def addresses() -> set[str]:
        name = own_cluster(run.process.pid)
        lines = [line for line in command_lines().values() if name and name in line]
        return {found for line in lines for found in re.findall(r"--gcs-address=(\S+)", line)}

    run.until(lambda: bool(addresses()), what="cluster")
    cluster, (address,) = own_cluster(run.process.pid), addresses()
    code = f"import ray; ray.init(address={address!r}); print(ray.get(ray.remote(lambda: 'code was run').remote()))"
    for stranger in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **stranger}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode != 0
        assert "code was run" not in done.stdout
        assert "Auth" in done.stderr
    run.until_step(1)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == 130, run.everything()
    assert left_of(cluster, run) == ({}, [])


def test_when_the_driver_is_killed_nothing_is_left(start: Start, undisturbed: Path) -> None:
    """Of an interrupt: the test above, and of what it leaves to go on with, test_ranks_on_nodes.py."""
    run = start("letters", "--steps", "10", "--delay", "0.05")
    run.until_step(3)
    cluster = own_cluster(run.process.pid)
    assert cluster
    assert len(with_word(cluster)) > 1
    os.killpg(run.process.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.everything()
    assert left_of(cluster, run) == ({}, [])
    start().assert_ends(undisturbed)
