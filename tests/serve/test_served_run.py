"""A run whose generator is a server of ours ends where the local runtime does."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from serving import TOKEN, Process

RECIPE = f"{Path(__file__).parents[1] / 'runtime' / 'procs' / 'procs_recipes.py'}:letters"


def train(folder, *words):
    code = "import sys; from penstock.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", RECIPE, "--steps", "3", "--runs", str(folder), *words], capture_output=True,
        text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1", "PENSTOCK_TOKEN": TOKEN},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_served_generator_gives_the_weights_of_the_local_runtime(tmp_path):
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(TOKEN)
    train(tmp_path, "--name", "local")
    server = Process(str(tmp_path / "local"), "--port", "0", "--token-file", str(tmp_path / "token"))
    try:
        train(tmp_path, "--name", "served", "--generator", "served", "--roles.engine.url", server.url)
    finally:
        code = server.end()
    local, served = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("local", "served"))
    assert code == 0
    assert local.keys() == served.keys()
    for name, tensor in local.items():  # batches of other sizes round otherwise
        torch.testing.assert_close(served[name], tensor, atol=1e-5, rtol=0)
