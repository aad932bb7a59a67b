"""Peak memory and seconds of one micro-batch of a long row on rank 0: ``python long_context_program.py SEQUENCE TOKENS``.

SEQUENCE ranks share the row's tokens; at 1, two ranks have a row each, so that parameters are sharded in either case.
Prints megabytes by which the process's peak rose and the seconds it took.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny_models
from penstock.algos.sft import SFT
from penstock.config.learner import LearnerSpec
from penstock.config.strategies import FSDP2
from penstock.core.contracts import Denominator
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.models.text import train_tokenizer
from penstock.train.learner import LearnerPlan
from penstock.train.ranks import learner_of

WIDTH, LAYERS, HEADS, VOCABULARY = 256, 6, 8, 512


def unit(length: int) -> tuple:
    tokens = tiny_models.tokens(np.random.default_rng(0), length, VOCABULARY)
    return (tiny_models.row(tokens[:1], tokens[1:], weight=np.ones(length - 1, np.float32)),)


def peak() -> int:
    """Bytes of the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(sequence: int, tokens: int) -> tuple[float, float]:
    """Megabytes and seconds of one forward and backward pass, after a short one."""
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, vocab_size=VOCABULARY, max_position_embeddings=tokens, bos_token_id=None, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    model = LanguageModel(LlamaForCausalLM(config).eval(), train_tokenizer(tiny_models.CORPUS, 300))
    spec = LearnerSpec(strategy=FSDP2(ranks=max(2, sequence), sequence_parallel=sequence), token_budget=tokens)
    learner = learner_of(LanguagePolicy(model), spec, LearnerPlan(total_steps=2))
    try:
        for length in (64, tokens):
            units = [unit(length)] * learner.copies
            before, start = peak(), time.perf_counter()
            for batch in [lay_out([one], tokens, True)[0] for one in units]:
                learner.accumulate(batch, SFT().loss(), Denominator.of(units))
            learner.flush()
            found = (peak() - before) / 1e6, time.perf_counter() - start
            learner.step()
        return found
    finally:
        learner.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    megabytes, seconds = measure(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{megabytes:.0f} MB, {seconds:.1f} s")
