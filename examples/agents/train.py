"""Trains the policy behind an agent that is a program of its own, on OpenAI's client: a calculator, from scratch, in minutes.

    python examples/agents/train.py --seed 0

SFT imitates a careless teacher as in the recipe ``tools``; then every episode is one run of ``openai_agent.py``, which is given
a base URL and a key, and GRPO learns from its rewards. ``penstock.train`` takes the same environment.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.config.parts import RewardSpec
from penstock.envs.spec import EnvironmentSpec
from penstock.recipes.tools import tools
from penstock.runtime import launch

AGENT = Path(__file__).with_name("openai_agent.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--imitation", type=int, default=250)
    parser.add_argument("--program", default=f"{AGENT}:main")
    parser.add_argument("--folder", default="")
    given = parser.parse_args()
    run = tools(seed=given.seed, imitation=given.imitation, steps=given.steps)
    sft, online = run.stages
    environment = EnvironmentSpec(function="agent", turns=3, show_tools=False, options={"function": given.program})
    stage: Any = replace(online, environment=environment, rewards=(RewardSpec(function="environment"),))
    run = replace(run, name="agent", stages=(sft, stage))
    result = launch(run, Path(given.folder or f"runs/agent-{given.seed}"))
    ends = result.summary["stages"]["grpo"]
    print(f"answers right {ends['first']['evaluation/reward']:.1%} -> {ends['last']['evaluation/reward']:.1%}")


if __name__ == "__main__":
    main()
