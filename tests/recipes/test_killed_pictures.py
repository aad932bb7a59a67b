"""Runs of media, drawn, seen, watched and heard, are killed after some checkpoint and end as if nothing had been."""

import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from penstock.core.events import read_events

RECIPES = {
    "digits": ["digits", "--steps", "6", "--denoise.steps", "40", "--flow.batch", "4", "--flow.evaluation", "null"],
    "see": ["see", "--pictures", "shapes", "--imitated", "4", "--steps", "8", "--grpo.batch", "8", "--grpo.evaluation", "null"],
    "watch": ["watch", "--imitated", "4", "--steps", "8", "--grpo.batch", "8", "--grpo.evaluation", "null"],
    "hear": ["hear", "--imitated", "4", "--steps", "8", "--grpo.batch", "8", "--grpo.evaluation", "null"],
}
SHOWN = {
    "see": '<img alt="a picture of the prompt" src="data:image/png',
    "watch": '<img alt="a picture of the prompt" src="data:image/apng',
    "hear": '<audio controls title="a sound of the prompt" src="data:audio/wav',
}


def penstock_train(runs, *words):
    """The process of a run; its output is in ``runs``."""
    runs.mkdir(exist_ok=True)
    with open(runs / "out.txt", "a") as out:
        command = [sys.executable, "-m", "penstock.cli.main", "train", *words]
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)


def train(words, runs):
    """A run that begins."""
    return penstock_train(runs, *words, "--runs", str(runs), "--threads", "1", "--device", "cpu")


def again(folder):
    """The run of a folder goes on."""
    return penstock_train(folder.parent, "--resume", str(folder))


def saves(folder):
    """Checkpoints that are durable, over all stages."""
    log = folder / "events.jsonl"
    return sum(event.get("what") == "checkpoint" for event in read_events(log)) if log.exists() else 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_that_was_killed_twice_ends_with_the_weights_of_one_that_was_not(recipe, tmp_path):
    pytest.importorskip("sklearn")
    words = [*RECIPES[recipe], "--checkpoint.every", "2", "--name", "run"]
    whole = train(words, tmp_path / "whole")
    folder = tmp_path / "killed" / "run"
    for count in (2, 5):
        process = again(folder) if folder.exists() else train(words, tmp_path / "killed")
        deadline = time.monotonic() + 120
        while saves(folder) < count and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, (tmp_path / "killed" / "out.txt").read_text()
        process.kill()
        process.wait()
    assert again(folder).wait(timeout=240) == 0
    assert whole.wait(timeout=240) == 0
    assert SHOWN.get(recipe, "") in (folder / "report.html").read_text()
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (folder, tmp_path / "whole" / "run"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
