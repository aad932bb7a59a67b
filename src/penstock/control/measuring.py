"""How fast each way of stepping a stage's environments is on this machine: measured, since no formula knows an environment."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from penstock.config.run import Run
from penstock.control.actor import Actor
from penstock.control.environments import Environments
from penstock.control.preparing import policy_of
from penstock.control.stage import Control, EnvironmentsSpec
from penstock.core.seeds import seed_of


def ways(spec: EnvironmentsSpec, cores: int) -> dict[str, EnvironmentsSpec]:
    """By what sets it: as the stage has it, in this process, and in as many worker processes as there are cores."""
    if spec.vectorization in ("envpool", "async"):  # these have threads or processes of their own
        return {f"environments.vectorization={spec.vectorization}": spec}
    found = {f"environments.workers={spec.workers}": spec}
    for workers in (0, *(count for count in (cores, cores - 1) if count > 0 and spec.count % count == 0)):
        found.setdefault(f"environments.workers={workers}", replace(spec, workers=workers))
    return found


def acting_rates(stage: Control, run: Run, base: Path, seconds: float) -> dict[str, float]:
    """Steps a second of acting, without training, for each way; each is tried for so many seconds, after a first fragment."""
    found = {}
    for name, spec in ways(stage.environments, len(os.sched_getaffinity(0))).items():
        seed = seed_of(run.seed, stage.name)
        environments = Environments(spec, seed, base, interface=stage.interface, acting=True)
        try:
            policy = policy_of(stage, environments, seed, "cpu", None)
            actor = Actor(environments, policy, stage.fragment, seed)
            actor.collect(0)
            began, steps, number = time.perf_counter(), 0, 0
            while (taken := time.perf_counter() - began) < seconds:
                number += 1
                steps += actor.collect(0, number).steps
            found[name] = steps / taken
        finally:
            environments.close()
    return found


def acting_lines(run: Run, base: Path, seconds: float) -> list[str]:
    """What was measured of each stage that steps environments for one policy, the fastest way first."""
    import torch

    torch.set_num_threads(run.threads or torch.get_num_threads())
    lines = []
    for stage in run.stages:
        if type(stage) is not Control:
            continue
        rates = acting_rates(stage, run, base, seconds)
        lines += ["", f"stage {stage.name}: acting alone, {seconds:g} s each"]
        lines += [f"  {name:<34}{rate:>12,.0f} steps/s" for name, rate in sorted(rates.items(), key=lambda one: -one[1])]
        best, now = max(rates, key=lambda name: rates[name]), next(iter(rates))
        lines.append("  the stage is set so" if best == now else f"  set --{stage.name}.{best}".replace("=", " "))
    return lines
