"""Running a generator from a test: requests in, samples out, and pauses in the middle of a generation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

import tiny_models
from penstock.core.types import Request, Row, Sample
from penstock.models.language_model import LanguageModel
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import Scoring


def run(generator: Any, requests: Sequence[Request]) -> list[Sample]:
    """The samples of requests that are made at the same time, in their order."""

    async def all_of_them() -> list[Sample]:
        return list(await asyncio.gather(*(generator.generate(request) for request in requests)))

    return asyncio.run(all_of_them())


async def started(generator: Any, requests: Sequence[Request], tokens: int) -> list[asyncio.Task[Sample]]:
    """Tasks that generate, once ``tokens`` tokens in all have been drawn."""
    before = generator.stats().generated_tokens
    tasks = [asyncio.create_task(generator.generate(request)) for request in requests]
    while generator.stats().generated_tokens - before < tokens:
        assert not all(task.done() for task in tasks), "everything ended before the pause"
        await asyncio.sleep(0)
    return tasks


async def resumed(generator: Any, requests: Sequence[Request], samples: Sequence[Sample]) -> list[Sample]:
    """Samples of requests that go on where those that were drawn before ended."""
    again = [Request(r.key, r.tokens_T, r.sampling, resume=s) for r, s in zip(requests, samples, strict=True)]
    return list(await asyncio.gather(*(generator.generate(one) for one in again)))


def ragged(count: int = 6, seed: int = 0, longest: int = 24, **sampling: Any) -> list[Request]:
    """Requests with prompts of different lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest, count)
    return [tiny_models.request(tiny_models.tokens(rng, int(n)), ordinal, **sampling) for ordinal, n in enumerate(lengths)]


def learner_logp(model: LanguageModel, sample: Sample, temperature: float = 1.0) -> np.ndarray:
    """What a learner computes for the action tokens of a sample."""
    unit = (Row(sample.columns, sample.action_T, {}),)
    return Scoring(LanguagePolicy(model, temperature)).score([unit], frozenset({"logp"}))["logp"][0]


def assert_each_token_is_its_versions(samples: Sequence[Sample], models: Sequence[LanguageModel]) -> None:
    """Every action token has the log-prob of the version that drew it, an index of ``models``; each drew some."""
    seen = set()
    for sample in samples:
        versions, logp_A = sample.version_T[sample.action_T], sample.logp_T[sample.action_T]
        for version, model in enumerate(models):
            chosen = versions == version
            np.testing.assert_allclose(logp_A[chosen], learner_logp(model, sample)[chosen], atol=1e-4)
            seen |= {version} if chosen.any() else set()
    assert seen == set(range(len(models)))


def drawn(sample: Sample) -> list[int]:
    """The action tokens."""
    return sample.tokens_T[sample.action_T].tolist()


def assert_same_draws(found: Sequence[Sample], expected: Sequence[Sample]) -> None:
    """Equal tokens and finishes; log-probs equal up to rounding."""
    for one, other in zip(found, expected, strict=True):
        assert one.key == other.key
        assert drawn(one) == drawn(other)
        assert (one.finish, one.text) == (other.finish, other.text)
        np.testing.assert_allclose(one.logp_T, other.logp_T, atol=1e-4)
