"""Short runs of the recipes that see, watch or hear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.config.run import Run


def shortened(run: Run, algorithm: Any = None, environment: Any = None, **changes: Any) -> Run:
    """Few rows and answers for each of the two stages, with another algorithm or environment if one is given."""
    sft, grpo = run.stages
    evaluation = replace(grpo.evaluation, data=replace(grpo.evaluation.data, size=6, shuffle=False))
    sft = replace(sft, batch=4, data=replace(sft.data, size=64), evaluation=None)
    others = {"algorithm": algorithm or grpo.algorithm, "environment": environment or grpo.environment}
    grpo = replace(grpo, batch=4, samples=4, evaluation=evaluation, **others)
    return replace(run, stages=(sft, grpo), headline="", **changes)


def trained(result: Any) -> list[dict[str, float]]:
    """The metrics of the steps of GRPO."""
    return [event["values"] for event in result.metrics if "mismatch/max" in event["values"]]
