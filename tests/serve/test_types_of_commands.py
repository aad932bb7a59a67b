"""``penstock serve`` and ``penstock generate`` as processes compute in the type that ``--dtype`` names."""

import json
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
from penstock.core.types import Row
from penstock.models.files import save_model
from penstock.observe.rules import thresholds
from serving import Process

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


DRAWN = """
import asyncio, json, sys
from penstock.core.types import Prompt, PromptKey, Request, SampleKey, Sampling
from penstock.data.texts import prompt_tokens
from penstock.engine.encoder_decoder import embedded_generator
from penstock.models.files import load_model

folder, dtype, text, tokens, seed = sys.argv[1:]
model, key = load_model(folder, dtype=dtype), PromptKey("prompt", 0, 0)
sampling = Sampling(max_new_tokens=int(tokens), seed=int(seed))
request = Request(SampleKey(key, 0), prompt_tokens(Prompt(key, text), model.text), sampling)
sample = asyncio.run(embedded_generator(model).generate(request))
columns = {"tokens": sample.tokens_T, "action": sample.action_T, "logp": sample.logp_T}
print(json.dumps({"text": sample.text} | {name: column.tolist() for name, column in columns.items()}))
"""
GENERATE = "import sys; from penstock.cli.main import main; sys.exit(main())"


def said_by(code, *words):
    """What a fresh process prints: another test in this one may have changed how bfloat16 is computed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()  # from bytes: the text may have a carriage return


@each_type
def test_generated_answers_are_drawn_in_the_type(dtype, folder):
    prompt, tokens, seed = "3 + 4 =", "200", "1"
    words = ["--prompt", prompt, "--max-new-tokens", tokens, "--seed", seed, "--device", "cpu", "--dtype", dtype]
    printed = said_by(GENERATE, "generate", folder, *words)
    sample, other = (json.loads(said_by(DRAWN, folder, one, prompt, tokens, seed)) for one in (dtype, "float32"))
    assert printed == f"{prompt}{sample['text']}\n"
    action_T = np.array(sample["action"])
    row = Row({"tokens_T": np.array(sample["tokens"])}, action_T)
    assert_computed_in(dtype, folder, [row], [np.array(sample["logp"], np.float32)[action_T]])
    assert sample["text"] != other["text"]
