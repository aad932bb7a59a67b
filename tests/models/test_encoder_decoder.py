"""Encoder-decoders: our packed layers against transformers' own, and what is refused."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BartConfig, BartForConditionalGeneration

import naive
import tiny_models
import tiny_t5
from penstock.core.errors import ModelError, TrainingError
from penstock.core.types import Row
from penstock.models.attention import Runs, Segments
from penstock.models.encoder_decoder import CONTEXT, EncoderDecoderModel
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.models.relative_attention import relative_bucket
from penstock.train.learner import Scoring
from tiny_models import row, tokens

each_architecture = pytest.mark.parametrize("architecture", tiny_t5.ARCHITECTURES)


@pytest.fixture(scope="module")
def t5(text):
    """Shared, so never to be changed."""
    return tiny_t5.build(text)


def some_units(seed=0, groups=(3, 1, 2)):
    rng = np.random.default_rng(seed)
    units = []
    for size in groups:
        prompt = tokens(rng, int(rng.integers(1, 30)))
        units.append(tuple(row(prompt, tokens(rng, int(rng.integers(1, 20)))) for _ in range(size)))
    return units


def scored(model, units, name="logp"):
    return Scoring(LanguagePolicy(model)).score(units, frozenset({name}))[name]


@pytest.mark.parametrize(
    ("distance", "one_way", "both_ways"),
    [(0, 0, 0), (-1, 1, 1), (-3, 3, 2), (-4, 4, 2), (-6, 5, 3), (-7, 6, 3), (-12, 7, 3), (-99, 7, 3), (1, 0, 5), (50, 0, 7)],
)
def test_buckets_of_distances(distance, one_way, both_ways):
    """Eight buckets up to distance 12. One way: 4 exact ones, then 4 + 4 · log(d/4)/log(3). Both ways: 4 each, 2 exact."""
    at = torch.tensor([distance])
    assert relative_bucket(at, 8, 12, bidirectional=False).item() == one_way
    assert relative_bucket(at, 8, 12, bidirectional=True).item() == both_ways


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_never_fall_with_distance_and_stay_in_range(bidirectional):
    apart = torch.arange(0, 400)
    found = relative_bucket(-apart, 32, 128, bidirectional)
    assert (found.diff() >= 0).all()
    assert (found.min(), found.max()) == (0, 15 if bidirectional else 31)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8), st.booleans())
def test_segments_attend_as_if_each_were_alone(sizes, causal):
    sizes = [(q, q) for q, _ in sizes] if causal else sizes
    spans = [Runs.of(np.array(side)) for side in zip(*sizes, strict=True)]
    rng = torch.Generator().manual_seed(len(sizes))
    query, key, value = (torch.randn(int(s.length_R.sum()), 2, 4, generator=rng) for s in (spans[0], spans[1], spans[1]))
    segments = Segments(*spans, causal)
    found = segments.attend(query, key, value)
    q_at = k_at = 0
    for q, k in sizes:
        scores = torch.einsum("qhd,khd->hqk", query[q_at : q_at + q], key[k_at : k_at + k])
        if causal:
            scores = scores.masked_fill(torch.arange(k) > torch.arange(q)[:, None], -math.inf)
        expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[k_at : k_at + k])
        torch.testing.assert_close(found[q_at : q_at + q], expected, atol=1e-5, rtol=1e-5)
        q_at, k_at = q_at + q, k_at + k


@each_architecture
def test_our_layers_give_the_logits_of_transformers(architecture, text):
    model = tiny_t5.build(text, architecture)
    model.check()
    units = some_units()
    found = Scoring(LanguagePolicy(model, 0.7)).score(units, frozenset({"logp", "entropy"}))
    logps, entropies = tiny_t5.token_outputs(model, [one for unit in units for one in unit], 0.7)
    for ours, theirs in zip(found["logp"] + found["entropy"], [*logps, *entropies], strict=True):
        np.testing.assert_allclose(ours, theirs.detach(), atol=1e-4)


@pytest.mark.parametrize(("tied", "scale"), [(True, 32**-0.5), (False, 1.0)])
def test_logits_are_scaled_where_the_config_says_so(tied, scale, text):
    """T5 scales by the root of the width, version 1.1 does not: both must agree with transformers."""
    model = tiny_t5.build(text, tie_word_embeddings=tied)
    assert model.config.scale_decoder_outputs is tied
    model.check()
    hidden_AH = torch.randn(3, 32)
    torch.testing.assert_close(model.logits(hidden_AH), hidden_AH @ model.network.lm_head.weight.T * scale)


def test_a_hidden_state_stands_where_its_token_was_read_last(t5):
    """From the last prompt token on, packed hidden states are the decoder's: after start, after each answer token."""
    units = some_units(1)
    (batch,) = lay_out(units, 4096, True)
    hidden_NH = t5.hidden(torch.from_numpy(batch.tokens_N).long()[None], None, t5.plan(batch))[0]
    rows = [one for unit in units for one in unit]
    network = naive.plain(t5)
    for place, index in enumerate(batch.row_ids):
        one = rows[index]
        prompt = int(one.action_T.argmax())
        found = hidden_NH[torch.from_numpy(batch.gather_BT[place, prompt - 1 : len(one.tokens_T)]).long()]
        torch.testing.assert_close(found, tiny_t5.decoder_hidden(network, one, t5.start), atol=1e-4, rtol=1e-4)


def test_a_row_without_actions_is_read_whole_and_scored_after_the_start_token(text):
    model = tiny_t5.build(text, head="score")
    rng = np.random.default_rng(3)
    common = tokens(rng, 5)
    rows = [Row({"tokens_T": np.concatenate([common, tokens(rng, n)]).astype(np.int32)}, np.zeros(5 + n, bool)) for n in (4, 9)]
    found = scored(model, [tuple(rows)], "score")
    network = naive.plain(model)
    for ours, one in zip(found, rows, strict=True):
        hidden = tiny_t5.decoder_hidden(network, one, model.start)
        assert len(hidden) == 1
        assert ours == pytest.approx(model.score_head(hidden[0]).item(), abs=1e-4)


def test_the_rows_of_a_prompt_share_one_encoding(t5):
    (unit,) = some_units(groups=(4,))
    (shared,) = lay_out([unit], 4096, True)
    (apart,) = lay_out([unit], 4096, False)
    prompt = int(unit[0].action_T.argmax())
    assert len(t5.plan(shared).read_S) == prompt
    assert len(t5.plan(apart).read_S) == 4 * prompt


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [16, 40, 4096])
def test_neither_packing_nor_sharing_nor_row_order_changes_a_score(t5, budget, share):
    units = some_units(budget, groups=(2, 1, 3))
    expected = scored(t5, units)
    turned = [unit[::-1] for unit in units[::-1]]
    found = Scoring(LanguagePolicy(t5, share_prefix=share), budget).score(turned, frozenset({"logp"}))["logp"]
    for ours, theirs in zip(found[::-1], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_rows_with_observations_after_the_first_action_are_refused(t5):
    one = some_units(groups=(1,))[0][0]
    turns = Row({"tokens_T": np.append(one.tokens_T, [30, 31]).astype(np.int32)}, np.append(one.action_T, [False, True]))
    with pytest.raises(TrainingError, match="row 0: an encoder-decoder answers once"):
        scored(t5, [(turns,)])


def test_other_encoder_decoders_are_refused_by_name(text):
    config = BartConfig(vocab_size=len(text), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16)  # fmt: skip
    with pytest.raises(ModelError, match="bart: encoder-decoders other than t5"):
        EncoderDecoderModel(BartForConditionalGeneration(config), text)


def test_a_model_that_computes_something_else_is_refused(text):
    model = tiny_t5.build(text)
    inner = model.network.lm_head.forward
    model.network.lm_head.forward = lambda hidden: inner(hidden) * 1.01
    with pytest.raises(ModelError, match="gives other logits"):
        model.check()


def test_a_separate_critic_starts_as_a_copy_of_both_halves(text):
    model = tiny_t5.build(text)
    model.add_critic("separate")
    units = some_units()
    (batch,) = lay_out(units, 4096, True)
    arguments = torch.from_numpy(batch.tokens_N).long()[None], None, model.plan(batch)
    torch.testing.assert_close(model.hidden(*arguments), model.hidden(*arguments, model.critic_trunk))
    with torch.no_grad():
        model.network.shared.weight.mul_(2)
    before = copy.deepcopy(model.critic_trunk.shared.weight)
    assert not torch.equal(before, model.network.shared.weight)


def test_the_value_head_reads_the_decoder(text):
    model = tiny_t5.build(text)
    model.add_critic("shared")
    torch.nn.init.normal_(model.value_head.linear.weight)
    units = some_units()
    found = scored(model, units, "value")
    network = naive.plain(model)
    for ours, one in zip(found, [one for unit in units for one in unit], strict=True):
        hidden = tiny_t5.decoder_hidden(network, one, model.start)[:-1]
        np.testing.assert_allclose(ours, model.value_head(hidden).detach(), atol=1e-3)


@pytest.mark.parametrize(("said", "context"), [(tiny_models.CONTEXT, tiny_models.CONTEXT), (None, CONTEXT)])
def test_the_context_is_the_configurations_or_a_finite_one(said, context, text):
    assert tiny_t5.build(text, n_positions=said).context == context
