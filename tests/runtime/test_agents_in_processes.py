"""An agent's program as episodes of generators in processes of their own, while weights move under it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.config.parts import RewardSpec
from penstock.envs.spec import EnvironmentSpec
from penstock.recipes.tools import tools
from penstock.runtime import launch

pytest.importorskip("openai")
AGENT = Path(__file__).parents[2] / "examples" / "agents" / "openai_agent.py"


def run_of(**changes):
    """Two steps of imitation, then six of GRPO on few rows."""
    sft, grpo = tools(imitation=2, steps=6).stages
    sft = replace(sft, batch=4, data=replace(sft.data, size=64))
    environment = EnvironmentSpec(function="agent", turns=3, show_tools=False, options={"function": f"{AGENT}:main"})
    rewards = (RewardSpec(function="environment"),)
    grpo = replace(grpo, batch=2, samples=4, environment=environment, rewards=rewards, evaluation=None, max_lag=2)
    return replace(tools(), stages=(sft, grpo), headline="", **changes)


def test_episodes_of_an_agent_are_trained_with_the_versions_that_wrote_them(tmp_path):
    result = launch(run_of(runtime="procs"), tmp_path / "run")
    steps = [event["values"] for event in result.metrics if "episode/turns" in event["values"]]
    assert len(steps) == 6
    assert all(values["samples/failed"] == 0 for values in steps)
    assert all(values["episode/turns"] >= 1 for values in steps)
    assert max(values["lag/max"] for values in steps) <= 2
    assert np.isfinite([values["loss"] for values in steps]).all()
    assert steps[0]["mismatch/max"] < 1e-4
