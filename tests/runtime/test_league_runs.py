"""Leagues carried out by ``launch``: each team learns, a killed run goes on as if it had not been, games without agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import run_of

pytest.importorskip("gymnasium")

from penstock.config.keeping import CheckpointSpec
from penstock.config.run import Run
from penstock.control.league import League, Opponents
from penstock.control.stage import EnvironmentsSpec, Episodes, PolicyNetwork
from penstock.core.errors import SpecError
from penstock.runtime import launch

HIDING = EnvironmentsSpec(id="penstock.control.hide_and_seek:hide_and_seek", count=4, options={"horizon": 6, "preparation": 2})
DIES = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_league_runs as runs
from penstock.control.teams import TeamActor
from penstock.runtime import launch
collect = TeamActor.collect
def dying(self, version, number=None):
    if version == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return collect(self, version, number)
TeamActor.collect = dying
launch(runs.a_run(), Path(sys.argv[1]))
"""


def a_run(steps: int = 8, **fields: Any) -> Run:
    usual: dict[str, Any] = {
        "environments": HIDING,
        "teams": {"hider_.*": "hiders", "seeker_.*": "seekers"},
        "opponents": Opponents(query="prioritised", share=0.5, every=2, keep=3),
        "model": PolicyNetwork(hidden=(8,), memory=4),
        "fragment": 12,
        "minibatches": 2,
        "epochs": 1,
        "evaluation": Episodes(episodes=4, longest=6),
    }
    return run_of(League(name="league", steps=steps, **(usual | fields)), checkpoint=CheckpointSpec(every=2))


def saved(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.parent.name: load_file(path) for path in sorted(folder.glob("**/model/*/model.safetensors"))}


def test_every_team_learns_and_its_versions_are_saved_with_it(tmp_path: Path) -> None:
    launch(a_run(), tmp_path / "run")
    found = saved(tmp_path / "run")
    assert {name.split("-")[0] for name in found} == {"hiders", "seekers"}
    assert len(found) == 2 * (1 + 3)
    for team in ("hiders", "seekers"):
        assert any(not torch.equal(found[team][name], found[f"{team}-0"][name]) for name in found[team])


def test_a_killed_league_goes_on_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "killed"), here], env=os.environ, timeout=120)
    assert died.returncode == -signal.SIGKILL
    launch(a_run(), tmp_path / "killed", resume=True)
    launch(a_run(), tmp_path / "whole")
    killed, whole = saved(tmp_path / "killed"), saved(tmp_path / "whole")
    assert killed.keys() == whole.keys()
    for team, named in whole.items():
        for name, tensor in named.items():
            assert torch.equal(killed[team][name], tensor), f"{team} {name}"


def test_an_environment_without_agents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="it has no agents"):
        launch(a_run(environments=EnvironmentsSpec(id="CartPole-v1", count=4)), tmp_path / "run")
