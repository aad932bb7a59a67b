"""Whole runs of published pipelines, and the example of the documentation."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("diffusers")
from tiny_pipelines import SIDE, saved
from training import assert_same_tensors, metric, stopped_and_whole

from penstock.algos.denoising import ddpo, exact_kl, flow_grpo
from penstock.config.denoising import Denoising
from penstock.config.learner import LoRA
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Online, RewardSpec, RolesSpec, Run
from penstock.models.files import load_model
from penstock.runtime import launch

ADAPTER = "pytorch_lora_weights.safetensors"
REWARDS = """
import zlib
from penstock.algos import picture_of

def small(sample, columns):
    picture = picture_of(sample)
    assert picture.shape == (16, 16, 3) and picture.dtype.name == "uint8"
    return -len(zlib.compress(picture.tobytes(), 9)) / picture.size

def prompts():
    return [{"prompt": text} for text in ("a photo of a cat", "two dogs", "seven red balloons", "a painting")]
"""


def run_of(kind, folder, tmp_path, algorithm, learner, denoising, **fields):
    source = tmp_path / "small.py"
    source.write_text(REWARDS)
    data = DataSpec(source=f"{source}:prompts", name="prompts")
    reward = RewardSpec(function=f"{source}:small")
    stage = Online(
        name="draw", model=ModelSpec(path=folder), data=data, rewards=(reward,), algorithm=algorithm, learner=learner,
        denoising=denoising, samples=4, batch=2, steps=2,
        evaluation=EvaluationSpec(data=data, rewards=(reward,), temperature=0.0, samples=2, every=2),
    )  # fmt: skip
    return Run(name=kind, stages=(stage,), device="cpu", threads=1, **fields)


def assert_close(folder, gap):
    """Both steps trained on what the generator's own log-probs were the learner's of."""
    found = metric(folder, "mismatch/max")
    assert len(found) == 2
    assert max(found) < gap


RUNS = {
    "sd3": (
        flow_grpo(kl=exact_kl(0.04)), LearnerSpec(learning_rate=3e-3, lora=LoRA(rank=2)),
        Denoising(steps=4, guidance=4.5),
    ),
    "sd": (ddpo(), LearnerSpec(learning_rate=1e-3), Denoising(kernel="ddim", noise=1.0, steps=4, guidance=5.0)),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_trains_a_pipeline_on_a_reward_of_its_pictures(kind, tmp_path):
    folder = saved(kind, tmp_path / "pipeline")
    launch(run_of(kind, folder, tmp_path, *RUNS[kind]), tmp_path / "run")
    assert_close(tmp_path / "run", 1e-5)
    spread = metric(tmp_path / "run", "evaluation/diversity")
    assert spread
    assert all(0 < distance < 2 for distance in spread), "of pictures, and not of latents"
    model = load_model(str(tmp_path / "run" / "model"))
    assert model.denoising == RUNS[kind][2]
    before = load_model(folder)
    moved = [n for (n, one), (_, other) in zip(model.network.named_parameters(), before.network.named_parameters(), strict=True)
             if not np.array_equal(one.detach(), other.detach())]  # fmt: skip
    assert moved
    assert (tmp_path / "run" / "model" / "adapter").is_dir() == (kind == "sd3")


def test_a_run_that_was_stopped_goes_on_to_the_weights_that_it_would_have_had(tmp_path):
    folder = saved("sd3", tmp_path / "pipeline")
    run = run_of("sd3", folder, tmp_path, *RUNS["sd3"])
    run = replace(run, stages=(replace(run.stages[0], steps=4, evaluation=None),))
    cut, whole = stopped_and_whole(run, tmp_path, f"adapter/{ADAPTER}")
    assert_same_tensors(cut, whole)
    assert any(tensor.any() for name, tensor in whole.items() if "lora_B" in name)


@pytest.mark.usefixtures("cold")
def test_a_pipeline_is_found_by_its_name_in_the_cache_of_the_hub(tmp_path):
    snapshot = tmp_path / "hub" / "models--tiny--sd" / "snapshots" / ("0" * 40)
    saved("sd", snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    code = "from penstock.models.files import load_model; print(load_model('tiny/sd').shape)"
    offline = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True)
    assert done.stdout.strip() == "(4, 8, 8)", done.stderr


def test_in_processes_generators_load_the_pipeline_and_take_its_merged_weights(tmp_path):
    folder = saved("sd3", tmp_path / "pipeline")
    run = run_of("sd3", folder, tmp_path, *RUNS["sd3"], runtime="procs", roles=RolesSpec())
    launch(run, tmp_path / "run")
    assert_close(tmp_path / "run", 1e-4)


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "diffusion.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    folder = saved("sd3", tmp_path / "pipeline")
    smaller = {"stabilityai/stable-diffusion-3.5-medium": folder, "size=512": f"size={SIDE}", "steps=200": "steps=1",
               "samples=24": "samples=4", "batch=48": "batch=2", 'device="cuda"': 'device="cpu"'}  # fmt: skip
    for written, tiny in smaller.items():
        assert written in example
        example = example.replace(written, tiny)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "example.py"
    file.write_text(example)
    exec(compile(example, str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})
    assert json.loads((tmp_path / "runs" / "sd3" / "model" / "config.json").read_text())["denoising"]["guidance"] == 4.5
