"""Drawing tokens: the distributions are those that the limits promise, and the streams behind them are uniform and stable."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.types import PromptKey, SampleKey, Sampling
from penstock.models import draws
from penstock.models.draws import TokenFilters, draw, needs_filters, uniform_stream

KEY = SampleKey(PromptKey("test", 0, 0), 0)
PROBABILITIES = np.array([0.15, 0.5, 0.1, 0.25])
LOGITS = torch.tensor(np.log(PROBABILITIES) + 3.0, dtype=torch.float32)  # a shift changes no distribution
LAST = 1 - 2.0**-53
"""The largest number a stream can hold."""
CRITICAL = {1: 10.8, 2: 13.8, 3: 16.3, 15: 37.7}
"""Chi-square values that a fair draw exceeds once in a thousand, by degrees of freedom."""


def draw_many(sampling, count=20_000, logits=LOGITS):
    uniform = torch.from_numpy(uniform_stream(1, KEY, count))
    cuts = TokenFilters([sampling] * count, torch.device("cpu")) if needs_filters(sampling) else None
    return draw(logits.expand(count, -1), uniform, torch.full((count,), sampling.temperature), cuts)


def draw_one(logits, uniform, sampling):
    cuts = TokenFilters([sampling], torch.device("cpu")) if needs_filters(sampling) else None
    temperature = torch.tensor([float(sampling.temperature)])
    token, logp = draw(torch.as_tensor(logits)[None], torch.tensor([uniform], dtype=torch.float64), temperature, cuts)
    return int(token), float(logp)


def assert_distribution(tokens, expected):
    counts = np.bincount(tokens, minlength=len(expected))
    possible = expected > 0
    assert counts[~possible].sum() == 0, "a token was drawn that the limits exclude"
    wanted = expected[possible] / expected[possible].sum() * len(tokens)
    statistic = float(((counts[possible] - wanted) ** 2 / wanted).sum())
    if possible.sum() > 1:
        assert statistic < CRITICAL[int(possible.sum()) - 1]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.15, 0.5, 0.1, 0.25]),
        (Sampling(temperature=0.5), [0.0225, 0.25, 0.01, 0.0625]),  # squares
        (Sampling(temperature=2.0), [0.15**0.5, 0.5**0.5, 0.1**0.5, 0.25**0.5]),
        (Sampling(top_k=2), [0, 0.5, 0, 0.25]),
        (Sampling(top_k=4), [0.15, 0.5, 0.1, 0.25]),
        (Sampling(top_k=9), [0.15, 0.5, 0.1, 0.25]),
        (Sampling(top_p=0.7), [0, 0.5, 0, 0.25]),  # the fewest tokens that hold 0.7
        (Sampling(top_p=0.8), [0.15, 0.5, 0, 0.25]),
        (Sampling(top_p=0.01), [0, 1, 0, 0]),
        (Sampling(min_p=0.25), [0.15, 0.5, 0, 0.25]),  # at least 0.125
        (Sampling(min_p=0.9), [0, 1, 0, 0]),
        (Sampling(top_k=3, min_p=0.4), [0, 0.5, 0, 0.25]),
        (Sampling(top_p=0.9, top_k=2), [0, 0.5, 0, 0.25]),
        (Sampling(temperature=0.5, top_k=2), [0, 0.25, 0, 0.0625]),
        (Sampling(temperature=0.0), [0, 1, 0, 0]),
        # Limits look at the distribution at its temperature: the most probable token holds 0.38, so a top_p of 0.4 needs two.
        (Sampling(temperature=2.0, top_p=0.4), [0, 0.5**0.5, 0, 0.25**0.5]),
        # top_p after top_k: of 0.5 and 0.25 the first holds two thirds, enough for 0.6, which it was not of all.
        (Sampling(top_k=2, top_p=0.6), [0, 1, 0, 0]),
    ],
)
def test_tokens_follow_the_distribution(sampling, expected):
    assert_distribution(draw_many(sampling)[0].numpy(), np.array(expected))


@pytest.mark.parametrize(
    ("sampling", "power"),
    [(Sampling(), 1), (Sampling(top_k=2), 1), (Sampling(top_p=0.6), 1), (Sampling(min_p=0.4), 1),
     (Sampling(temperature=0.5, top_k=2), 2)],
)  # fmt: skip
def test_log_probs_are_those_of_the_uncut_distribution_at_its_temperature(sampling, power):
    tokens, logps = draw_many(sampling, count=500)
    expected = PROBABILITIES**power / (PROBABILITIES**power).sum()
    np.testing.assert_allclose(logps.numpy(), np.log(expected)[tokens.numpy()], atol=1e-6)


def test_the_log_prob_of_a_greedy_token_is_that_at_temperature_one():
    assert draw_one(LOGITS, 0.3, Sampling(temperature=0.0)) == (1, pytest.approx(np.log(0.5), abs=1e-6))


def test_each_row_obeys_its_own_limits():
    samplings = [Sampling(), Sampling(top_k=1), Sampling(temperature=0.0), Sampling(top_p=0.7)]
    temperature = torch.tensor([float(s.temperature) for s in samplings])
    cuts = TokenFilters(samplings, torch.device("cpu"))
    tokens, _ = draw(LOGITS.expand(4, -1), torch.full((4,), LAST, dtype=torch.float64), temperature, cuts)
    assert tokens.tolist() == [3, 1, 1, 3]  # the last possible token in the order of the vocabulary


distinct_logits = st.lists(st.integers(-200, 200), min_size=2, max_size=12, unique=True).map(
    lambda values: torch.tensor(values, dtype=torch.float32) / 10
)


@given(distinct_logits, st.floats(0, LAST))
def test_top_k_of_one_equals_greedy(logits, uniform):
    assert draw_one(logits, uniform, Sampling(top_k=1)) == draw_one(logits, uniform, Sampling(temperature=0.0))


@given(distinct_logits, st.sampled_from([0.0, 2.0**-53, 0.5, LAST]), st.floats(0.01, 1), st.floats(0, 0.99), st.integers(0, 4))
def test_an_excluded_token_is_never_drawn(logits, uniform, top_p, min_p, top_k):
    """Worked out the slow way in float64, with room for rounding at the borders of the limits."""
    token, _ = draw_one(logits, uniform, Sampling(top_p=top_p, min_p=min_p, top_k=top_k))
    probability = torch.softmax(logits.double(), -1).numpy()
    order = np.argsort(-probability)
    rank = int(np.flatnonzero(order == token)[0])
    before = probability[order[:rank]].sum()
    assert rank == 0 or before < top_p + 1e-6
    assert rank == 0 or probability[token] >= min_p * probability.max() - 1e-6
    assert rank == 0 or top_k == 0 or rank < top_k


@given(distinct_logits, st.integers(1, 6), st.floats(0.05, 1))
def test_top_k_and_top_p_leave_what_transformers_leaves(logits, top_k, top_p):
    """top_p is a share of what top_k has left."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    expected = TopPLogitsWarper(top_p)(None, TopKLogitsWarper(top_k)(None, logits[None]))
    found = TokenFilters([Sampling(top_k=top_k, top_p=top_p)], torch.device("cpu")).apply(logits[None].softmax(-1))
    assert ((found > 0) == (expected > -float("inf"))).all()


@pytest.mark.parametrize("uniform", [0.0, LAST])
def test_an_impossible_token_at_either_end_of_the_vocabulary_is_never_drawn(uniform):
    logits = torch.tensor([-float("inf"), 0.0, 1.0, -float("inf")])
    assert draw_one(logits, uniform, Sampling())[0] in (1, 2)


@given(st.permutations(range(4)), st.floats(0, LAST))
def test_the_most_probable_token_always_stays(order, uniform):
    logits = LOGITS[list(order)]
    assert draw_one(logits, uniform, Sampling(top_p=1e-6, min_p=0.999))[0] == int(logits.argmax())


def splitmix64(seed, key, index):
    """The index-th number of a stream, with the integers of Python."""
    state = int.from_bytes(hashlib.blake2b(f"{seed}|{key}".encode(), digest_size=8).digest(), "little")
    z = (state + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return ((z ^ z >> 31) >> 11) * 2.0**-53


def test_a_stream_is_splitmix64_of_its_seed_and_key():
    assert uniform_stream(7, KEY, 50).tolist() == [splitmix64(7, KEY, index) for index in range(50)]


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_length_of_a_stream_changes_none_of_its_numbers(short, more):
    np.testing.assert_array_equal(uniform_stream(3, KEY, short), uniform_stream(3, KEY, short + more)[:short])


def test_a_stream_is_uniform():
    numbers = uniform_stream(0, KEY, 40_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.006)  # four standard errors
    assert numbers.var() == pytest.approx(1 / 12, abs=0.002)
    assert_distribution((numbers * 16).astype(int), np.full(16, 1 / 16))


def test_neighbours_in_a_stream_are_uncorrelated():
    numbers = uniform_stream(0, KEY, 40_000)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_first_numbers_over_samples_and_seeds_are_uniform():
    """Neighbouring keys and seeds must not give neighbouring draws: every sample of a run starts with its first number."""
    for firsts in (
        [uniform_stream(0, SampleKey(PromptKey("test", 0, ordinal), 0), 1)[0] for ordinal in range(4000)],
        [uniform_stream(0, SampleKey(PromptKey("test", 0, 0), sample), 1)[0] for sample in range(4000)],
        [uniform_stream(seed, KEY, 1)[0] for seed in range(4000)],
    ):
        assert_distribution((np.array(firsts) * 16).astype(int), np.full(16, 1 / 16))
        assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.06


@given(st.integers(0, 2**32 - 1), st.integers(draws.WHOLE + 1, 3 * draws.WHOLE), st.floats(0, LAST))
@example(0, draws.WHOLE + draws.BLOCK, LAST)
@example(0, draws.WHOLE + 1, LAST)
def test_a_large_vocabulary_gives_the_token_where_the_cumulative_distribution_passes(seed, vocabulary, uniform):
    """By the definition, in float64; a border may move by what float32 sums of a block round away."""
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(0, 3, vocabulary).astype(np.float32))
    token, _ = draw_one(logits, uniform, Sampling())
    exact = np.cumsum(logits.double().softmax(-1).numpy())
    assert exact[token] >= uniform - 1e-5
    assert token == 0 or exact[token - 1] <= uniform + 1e-5


@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
def test_a_large_vocabulary_never_gives_a_token_that_a_limit_excludes(uniform):
    logits = torch.full((3 * draws.WHOLE + 7,), -1.0)
    allowed = [0, draws.BLOCK - 1, draws.BLOCK, len(logits) - 8, len(logits) - 1]
    logits[allowed] = 5.0
    assert draw_one(logits, uniform, Sampling(top_k=len(allowed)))[0] in allowed


@given(st.integers(0, 2**32 - 1), st.integers(draws.WHOLE + 1, 3 * draws.WHOLE))
def test_a_greedy_row_takes_the_first_of_the_largest_in_a_large_vocabulary(seed, vocabulary):
    logits = np.random.default_rng(seed).integers(0, 4, vocabulary).astype(np.float32)
    assert draw_one(logits, 0.3, Sampling(temperature=0.0))[0] == int(logits.argmax())


def test_a_large_vocabulary_is_drawn_from_fairly():
    """Sixteen blocks' worth of mass, each block apart from the others by its share."""
    share = np.repeat(np.arange(1, 17) / 136, draws.BLOCK) / draws.BLOCK
    tokens, _ = draw_many(Sampling(), 4_000, torch.from_numpy(np.log(share).astype(np.float32)))
    assert_distribution(tokens.numpy() // draws.BLOCK, np.arange(1, 17) / 136)
