"""``penstock serve`` and ``penstock generate`` as processes compute in the type that ``--dtype`` names."""

import asyncio
import os
import subprocess
import sys

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import naive
import tiny_models
from penstock.core.types import Prompt, PromptKey, Request, Row, SampleKey, Sampling
from penstock.data.texts import prompt_tokens
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.files import load_model, save_model
from penstock.observe.rules import thresholds
from serving import Process

pytestmark = pytest.mark.slow
each_type = pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
SAMPLES = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory, text):
    return str(save_model(tiny_models.build("qwen2", text), tmp_path_factory.mktemp("types") / "model"))


def gaps_to(stored, folder, rows, logp):
    """How far log-probs of rows' actions are from those of transformers in a type."""
    expected, _ = naive.token_outputs(AutoModelForCausalLM.from_pretrained(folder, dtype=stored), rows)
    return np.abs(np.concatenate(logp) - torch.cat(expected).detach().numpy())


def assert_computed_in(dtype, folder, rows, logp):
    """Near transformers in this type but for its rounding, and farther from float32 than float32 would be."""
    stored = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    assert gaps_to(stored, folder, rows, logp).mean() < thresholds(dtype, 2).gap_warning
    assert gaps_to(torch.float32, folder, rows, logp).mean() > 1e-3


@each_type
def test_a_server_answers_with_log_probs_of_its_type(dtype, folder):
    prompt = np.arange(20, 28)
    server = Process(folder, "--port", "0", "--device", "cpu", "--dtype", dtype)
    try:
        asked = {"prompt": prompt.tolist(), "n": SAMPLES, "max_tokens": 40, "logprobs": 0, "seed": 1, "return_token_ids": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=300).json()
    finally:
        server.end()
    rows = [tiny_models.row(prompt, np.array(one["token_ids"])) for one in answer["choices"]]
    assert_computed_in(dtype, folder, rows, [one["logprobs"]["token_logprobs"] for one in answer["choices"]])


def drawn(folder, dtype, text, sampling):
    """What ``penstock generate`` draws for a prompt, by a generator in this process: one, since bfloat16 rounds by batch."""
    model = load_model(folder, dtype=dtype)
    key, generator = PromptKey("prompt", 0, 0), embedded_generator(model)
    tokens = prompt_tokens(Prompt(key, text), model.text)

    return asyncio.run(generator.generate(Request(SampleKey(key, 0), tokens, sampling)))


@each_type
def test_generated_answers_are_drawn_in_the_type(dtype, folder):
    prompt, sampling = "3 + 4 =", Sampling(max_new_tokens=200, seed=1)
    words = ["generate", folder, "--prompt", prompt, "--max-new-tokens", "200", "--seed", "1"]
    code = "import sys; from penstock.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--device", "cpu", "--dtype", dtype],
        capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    sample = drawn(folder, dtype, prompt, sampling)
    assert done.stdout.decode() == f"{prompt}{sample.text}\n", done.stderr  # as bytes: the text may have a carriage return
    assert_computed_in(dtype, folder, [Row(sample.columns, sample.action_T)], [sample.logp_T[sample.action_T]])
    assert sample.text != drawn(folder, "float32", prompt, sampling).text
