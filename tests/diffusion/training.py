"""Steps of a learner of pictures, short runs of the recipe of digits, and runs that are stopped in their middle."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from penstock.core.contracts import Denominator
from penstock.core.events import read_events


def accumulated(learner, algorithm, units, budget=None):
    """The gradient of units in one piece; micro-batches under the learner's budget unless another is given."""
    for batch in learner.policy.lay_out(units, budget or learner.budget, coupled=algorithm.coupled):
        learner.accumulate(batch, algorithm.loss(), Denominator.of(units))
    return torch.cat([master.grad.flatten() for master in learner.masters.masters if master.grad is not None])


def steps(learner, algorithm, units, count, budget=None):
    """The metrics of each of so many steps."""
    found = []
    for _ in range(count):
        accumulated(learner, algorithm, units, budget)
        found.append(learner.step())
    return found


def losses(learner, algorithm, units, count):
    return [metrics["loss"] for metrics in steps(learner, algorithm, units, count)]


def kept_state(learner):
    """A learner's state that further steps leave alone."""
    kept = learner.state()
    kept.arrays = {name: torch.as_tensor(array).clone() for name, array in kept.arrays.items()}
    kept.values = dict(kept.values)
    return kept


def digits_run(algorithm="flow", pretraining=20, every=None, **second):
    """The recipe of digits on one thread, with so many steps before its last stage, which has these fields and is evaluated so
    often."""
    pytest.importorskip("sklearn")
    from penstock.recipes.digits import digits

    run = digits(algorithm)
    if every is not None:
        second["evaluation"] = replace(run.stages[1].evaluation, every=every)
    stages = (replace(run.stages[0], steps=pretraining), replace(run.stages[1], **second))
    return replace(run, stages=stages, device="cpu", threads=1)


def metrics_of(folder):
    return [event["values"] for event in read_events(folder / "events.jsonl") if event["kind"] == "metrics"]


def metric(folder, name):
    """The values of a metric, in their order."""
    return [values[name] for values in metrics_of(folder) if name in values]


def stopped_and_whole(run, folder, weights):
    """Tensors of a run that was stopped after the second step of its last stage and resumed, and of one that was not; a file of
    the model's folder holds them."""
    from safetensors.torch import load_file

    from penstock.config.run import CheckpointSpec
    from penstock.runtime import launch

    run = replace(run, checkpoint=CheckpointSpec(every=1))

    def stop_after_2(event):
        if event["kind"] == "metrics" and event["step"] == 2 and event["stage"] == run.stages[-1].name:
            os.kill(os.getpid(), signal.SIGTERM)

    launch(run, folder / "whole")
    with pytest.raises(KeyboardInterrupt, match="everything is saved"):
        launch(run, folder / "cut", [stop_after_2])
    launch(run, folder / "cut", resume=True)
    return [load_file(folder / name / "model" / weights) for name in ("cut", "whole")]


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
