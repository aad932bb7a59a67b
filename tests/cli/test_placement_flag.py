"""``--placement`` and ``--debug`` as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_examples import RECIPES, Penstock

TINY = f"{RECIPES}:tiny"
FILE = """
[learner]
cpus = 2
node = "big"

[generator]
cpus = 1
gpus = 0.5
custom = {fast = 1}

[reward]
node = "big"
"""

MISTAKES = {
    "split.toml": ("split.toml", "No such file"),
    "spilt": ("--placement spilt", "use colocate, split or a FILE.toml"),
    "[lerner]\ncpus = 1": ('unknown role "lerner"', 'did you mean "learner"'),
    "learner = 3": ("learner is no section", "[learner]"),
    "[learner]\ncores = 1": ("[learner]", 'unknown field "cores"'),
    "[learner]\ncpus = -1": ("[learner]", "cpus=-1.0 is negative"),
    '[learner]\ncpus = "many"': ("[learner]", "cpus='many'"),
    "[learner\n": ("place.toml", "line 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["train", "explain"])
def test_a_wrong_placement_is_one_line(command: str, mistake: str, penstock: Penstock, tmp_path: Path) -> None:
    text = mistake
    if "\n" in mistake or "=" in mistake:
        (tmp_path / "place.toml").write_text(mistake)
        text = "place.toml"
    penstock(command, TINY, "--runtime", "ray", "--placement", text).assert_refused(*MISTAKES[mistake])
    assert not (tmp_path / "runs").exists()


def test_a_placement_without_a_cluster_is_refused(penstock: Penstock) -> None:
    penstock("train", TINY, "--placement", "split").assert_refused("Ray cluster", "--runtime ray")


def test_without_ray_the_extra_is_named(penstock: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    monkeypatch.setitem(sys.modules, "ray", None)
    penstock("train", TINY, "--runtime", "ray").assert_refused('pip install "penstock[ray]"')
    assert not (tmp_path / "runs").exists()


def test_explain_shows_what_lands_where_and_what_is_moved(penstock: Penstock, tmp_path: Path) -> None:
    (tmp_path / "place.toml").write_text(FILE)
    words = ("--runtime", "ray", "--roles.generators", "2", "--roles.channel", "disk", "--placement", "place.toml")
    said = penstock("explain", TINY, *words)
    assert said.code == 0, said.err
    assert "placement placed: 3 bundles" in said.out
    assert "learner, reward-0: 3 CPU" in said.out
    assert "generator-1: 1 CPU, 0.5 GPU, 1 fast" in said.out
    moved = [line for line in said.out.splitlines() if "moved a step" in line]
    assert "from the learner to 2 generator(s) by disk" in moved[0]
    assert "answers" in moved[1]


def test_debug_carries_a_run_of_processes_out_in_this_one(penstock: Penstock, tmp_path: Path) -> None:
    done = penstock(
        "train", TINY, "--runtime", "ray", "--roles.generators", "2", "--grpo.kv", "drain", "--steps", "1", "--fast", "--debug"
    )
    assert done.code == 0, done.err
    kept = json.loads((tmp_path / "runs" / "tiny" / "run.json").read_text())
    assert kept["runtime"] == "local"


def test_debug_does_not_go_on_with_another_run(penstock: Penstock) -> None:
    penstock("train", "--resume", "runs/tiny", "--debug").assert_refused("--debug", "leave --resume out")
