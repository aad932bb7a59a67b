"""DeepSpeed's ZeRO gives the losses and weights of one device, and its checkpoints resume on other numbers of ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

HERE = Path(__file__).parent


def run(*words, **environment):
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "deepspeed_program.py"), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": path, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[2, 3])
def equal(request, tmp_path_factory):
    """The gaps of each algorithm, and the folder in which a compiler would have left something."""
    folder = tmp_path_factory.mktemp("extensions")
    return run("equal", request.param, TORCH_EXTENSIONS_DIR=str(folder)), folder


@pytest.mark.parametrize("algorithm", ["SFT", "DPO", "GRPO"])
def test_losses_and_weights_over_20_steps(algorithm, equal):
    gaps = equal[0][algorithm]
    assert gaps["metrics"] < 1e-5
    assert gaps["weights"] < 1e-5


def test_ranks_begin_without_a_compiler_and_its_locks(equal):
    assert list(equal[1].iterdir()) == []


@pytest.mark.parametrize("stage", [2, 3])
def test_a_checkpoint_of_2_ranks_resumes_bit_by_bit_and_on_one_device_1_and_3_ranks(stage, tmp_path):
    run("write", stage, 2, tmp_path)
    assert run("resume", stage, 2, tmp_path) == {"metrics": 0.0, "weights": 0.0}
    for ranks in (0, 1, 3):
        gaps = run("resume", stage, ranks, tmp_path)
        assert gaps["metrics"] < 1e-5
        assert gaps["weights"] < 1e-5


def test_saving_a_model_does_not_import_deepspeed(tmp_path):
    code = (
        "import sys, tiny_models; from pathlib import Path; from penstock.models.files import save_model;"
        "from penstock.models.text import train_tokenizer; text = train_tokenizer(tiny_models.CORPUS, 300);"
        f"save_model(tiny_models.build('qwen2', text), Path({str(tmp_path / 'model')!r}));"
        "assert 'deepspeed' not in sys.modules"
    )
    around = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    around["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=around)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
