"""The learner as an optimizer: steps, precision, critics, dropout, and a state from which it goes on bit by bit."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import naive
import tiny_models
from learner_examples import (
    WeightedLoss,
    accumulate,
    assert_equal_bits,
    assert_resumes_bit_by_bit,
    assert_same_gradients,
    gradients,
    learner_of,
    rows_of,
    saved,
    some_units,
    train,
    weights_of,
)
from penstock.algos import GRPO, SFT, gspo
from penstock.config.optimizers import AdamW
from penstock.core.contracts import Denominator
from penstock.core.errors import CheckpointError, NonFiniteError, TrainingError
from penstock.models.files import load_model, save_model
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.learner import Scoring
from penstock.train.optimizer import rate_at

LOGP = frozenset({"logp"})
VALUE = WeightedLoss(frozenset({"value"}))
each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)


@dataclass(frozen=True)
class FiniteLossWithoutFiniteGradient:
    needs: frozenset[str] = LOGP

    def __call__(self, outputs, fields, batch, denominator):
        return (outputs["logp"].sum() * 0).sqrt(), {}


def test_steps_equal_torch_adamw_run_by_hand(tiny):
    model = tiny()
    plan = {"learning_rate": 3e-3, "schedule": "cosine", "warmup": 2, "total_steps": 5}
    learner = learner_of(model, clip_norm=0.5, optimizer=AdamW(weight_decay=0.1, betas=(0.8, 0.9)), **plan)
    network = naive.plain(model)
    embeddings = {id(m.weight) for m in network.modules() if isinstance(m, torch.nn.Embedding)}
    decayed = [p for p in network.parameters() if p.ndim >= 2 and id(p) not in embeddings]
    others = [p for p in network.parameters() if p.ndim < 2 or id(p) in embeddings]
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.8, 0.9), foreach=False
    )
    for step in range(5):
        units = some_units(step)
        rows = rows_of(units)
        logps, _ = naive.token_outputs(network, rows)
        (
            sum((torch.from_numpy(r.fields["weight"]) * lp).sum() for r, lp in zip(rows, logps, strict=True))
            / Denominator.of(units).tokens
        ).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        for group in adam.param_groups:
            group["lr"] = rate_at(learner.spec, step, 5)
        adam.step()
        adam.zero_grad()
        accumulate(learner, units)
        found = learner.step()
        assert found["gradient_norm"] == pytest.approx(norm.item(), rel=1e-4)
        assert norm > 0.5, "what is reported is the norm before clipping"
        assert found["learning_rate"] == rate_at(learner.spec, step, 5)
    for (name, expected), (_, tensor) in zip(network.named_parameters(), model.network.named_parameters(), strict=True):
        torch.testing.assert_close(tensor, expected, atol=1e-4, rtol=1e-4, msg=name)


@each_architecture
def test_weight_decay_leaves_biases_norms_and_embeddings_alone(architecture, tiny):
    model = tiny(architecture)
    before = weights_of(model.network)
    learner = learner_of(model, learning_rate=0.1, optimizer=AdamW(weight_decay=0.5))
    accumulate(learner, some_units(), WeightedLoss(scale=0.0))
    learner.step()
    embeddings = {id(m.weight) for m in model.network.modules() if isinstance(m, torch.nn.Embedding)}
    for name, parameter in model.network.named_parameters():
        expected = before[name] if parameter.ndim < 2 or id(parameter) in embeddings else before[name] * (1 - 0.1 * 0.5)
        torch.testing.assert_close(parameter.detach(), expected, msg=name)


def test_a_gradient_that_is_not_finite_is_refused_changes_nothing_and_does_not_spoil_the_next_step(tiny):
    model, untouched = tiny(), tiny()
    learner, other = learner_of(model), learner_of(untouched)
    accumulate(learner, some_units(), FiniteLossWithoutFiniteGradient())
    with pytest.raises(TrainingError, match="gradient norm is nan; the step was not taken"):
        learner.step()
    assert_equal_bits(weights_of(model), weights_of(untouched))
    for one in (learner, other):
        train(one, [0])
    assert_equal_bits(weights_of(model), weights_of(untouched))


def test_scoring_between_micro_batches_leaves_gradients_alone(tiny):
    scored, plain = tiny(), tiny()
    learner, other = learner_of(scored), learner_of(plain)
    for one in (learner, other):
        accumulate(one, some_units(1))
        if one is learner:
            one.score(some_units(2), LOGP)
        accumulate(one, some_units(3))
    assert_equal_bits(gradients(scored), gradients(plain))


@each_architecture
def test_gradient_checkpointing_changes_no_gradient(architecture, tiny):
    plain, checkpointed = tiny(architecture), tiny(architecture)
    accumulate(learner_of(plain), some_units())
    accumulate(learner_of(checkpointed, gradient_checkpointing=True), some_units())
    assert_same_gradients(gradients(checkpointed), gradients(plain), within=1e-6)


def test_bfloat16_keeps_updates_smaller_than_its_own_steps(tiny):
    """Twenty steps of 5e-4 move a weight near 1 by 0.01; in bfloat16 each of them alone would round away."""
    model = tiny()
    learner = learner_of(model, dtype="bfloat16", learning_rate=5e-4, clip_norm=0.0)
    name = next(name for name, p in model.named_parameters() if name.endswith("norm.weight"))
    before = dict(model.named_parameters())[name].detach().float().clone()
    train(learner, [0] * 20)
    moved = dict(model.named_parameters())[name].detach().float() - before
    assert float(moved.abs().median()) == pytest.approx(0.01, rel=0.6)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_masters_in_its_state(tiny):
    model = tiny()
    learner = learner_of(model, dtype="bfloat16")
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.bfloat16}
    assert {a.dtype for name, a in learner.state().arrays.items() if name.startswith("master.")} == {torch.float32}


def test_bfloat16_accumulates_micro_batches_in_float32(tiny):
    """After one micro-batch of weight 1, 64 of weight 1/1024 add a sixteenth; each alone is below bfloat16's resolution."""
    units, norms = some_units(groups=(1,)), []
    for small in (0, 64):
        learner = learner_of(tiny(), dtype="bfloat16", clip_norm=0.0)
        accumulate(learner, units, WeightedLoss(scale=1.0))
        for _ in range(small):
            accumulate(learner, units, WeightedLoss(scale=1 / 1024))
        norms.append(learner.step()["gradient_norm"])
    assert norms[1] / norms[0] == pytest.approx(1 + 64 / 1024, rel=1e-3)


@pytest.mark.parametrize("spec", [{"dtype": "bfloat16"}, {"token_dropout": 0.3, "dropout": 0.2}], ids=["bfloat16", "dropout"])
def test_a_learner_goes_on_from_its_state_bit_by_bit(spec, tiny):
    """Critics and schedules: tests/contracts/test_learner_contract.py."""
    assert_resumes_bit_by_bit(lambda: learner_of(tiny(), learning_rate=1e-3, **spec))


def test_going_back_to_a_state_forgets_what_was_accumulated(tiny):
    learner = learner_of(tiny())
    start = saved(learner)
    accumulate(learner, some_units())
    learner.load_state(start)
    with pytest.raises(TrainingError, match="nothing was accumulated"):
        learner.step()


def test_the_state_of_another_model_is_refused(tiny):
    with pytest.raises(CheckpointError, match="checkpoint does not fit the model"):
        learner_of(tiny("llama")).load_state(saved(learner_of(tiny("qwen2"))))


def test_weights_are_the_policy_without_its_critic(tiny):
    model = tiny()
    learner = learner_of(model, critic="separate")
    assert [name for name, _ in learner.weights()] == [name for name, _ in model.network.named_parameters()]


@each_architecture
def test_values_are_the_head_over_the_hidden_state_before_each_action(architecture, tiny):
    model, units = tiny(architecture), some_units()
    learner = learner_of(model, critic="shared")
    torch.nn.init.normal_(model.value_head.linear.weight)
    found = learner.score(units, frozenset({"value"}))["value"]
    with torch.no_grad():
        hidden = naive.hidden_before_actions(naive.plain(model), rows_of(units))
        expected = [model.value_head.linear(hidden_AH)[:, 0].numpy() for hidden_AH in hidden]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-5)


def test_a_shared_critic_trains_the_trunk(tiny):
    model, units = tiny(), some_units()
    learner = learner_of(model, critic="shared")
    torch.nn.init.normal_(model.value_head.linear.weight)
    accumulate(learner, units, VALUE)
    network, head = naive.plain(model), copy.deepcopy(model.value_head)
    network.zero_grad()
    head.zero_grad()
    rows = rows_of(units)
    hidden = naive.hidden_before_actions(network, rows)
    terms = [
        (torch.from_numpy(row.fields["weight"]) * (head(hidden_AH) - 1).square()).sum()
        for row, hidden_AH in zip(rows, hidden, strict=True)
    ]
    (sum(terms) / Denominator.of(units).tokens).backward()
    assert_same_gradients(gradients(model.network), gradients(network))
    assert_same_gradients(gradients(model.value_head), gradients(head))


def test_a_separate_critic_leaves_the_policy_alone(tiny):
    model = tiny()
    learner = learner_of(model, critic="separate", learning_rate=0.01)
    torch.nn.init.normal_(model.value_head.linear.weight)
    before = weights_of(model.network)
    train(learner, [0], VALUE)
    assert_equal_bits(weights_of(model.network), before)
    trunk = dict(model.critic_trunk.named_parameters())
    assert not torch.equal(trunk["layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])


def test_the_policy_loss_leaves_a_separate_critic_alone(tiny):
    model = tiny()
    learner = learner_of(model, critic="separate", learning_rate=0.01)
    before = weights_of(model.critic_trunk)
    train(learner, [0])
    assert_equal_bits(weights_of(model.critic_trunk), before)


def test_a_new_critic_says_zero(tiny):
    learner = learner_of(tiny(), critic="separate")
    assert all((values == 0).all() for values in learner.score(some_units(), frozenset({"value"}))["value"])


def test_scores_read_the_last_token_of_each_row(tiny, tmp_path):
    scorer = load_model(str(save_model(tiny(), tmp_path / "rm")), "score")
    units = some_units()
    found = Scoring(LanguagePolicy(scorer)).score(units, frozenset({"score"}))["score"]
    rows = rows_of(units)
    with torch.no_grad():
        hidden = naive.plain(scorer).base_model(**naive.padded(rows), use_cache=False).last_hidden_state
        expected = [float(scorer.scores(hidden[b, len(row.tokens_T) - 1])) for b, row in enumerate(rows)]
    assert found == pytest.approx(expected, abs=1e-5)


@each_architecture
@pytest.mark.parametrize("kind", ["token_dropout", "dropout"])
def test_dropout_changes_what_is_accumulated(kind, architecture, tiny):
    plain = accumulate(learner_of(tiny(architecture)), some_units())
    assert accumulate(learner_of(tiny(architecture), **{kind: 0.3}), some_units()) != pytest.approx(plain, abs=1e-4)


def test_dropout_leaves_scores_alone(tiny):
    model = tiny()
    learner = learner_of(model, dropout=0.3, token_dropout=0.3)
    found, expected = learner.score(some_units(), LOGP), Scoring(LanguagePolicy(tiny())).score(some_units(), LOGP)
    for ours, theirs in zip(found["logp"], expected["logp"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)  # the sums may be in another order


def test_dropout_draws_anew_for_every_micro_batch(tiny):
    learner = learner_of(tiny(), dropout=0.3)
    assert accumulate(learner, some_units()) != accumulate(learner, some_units())


class Reads(TorchDispatchMode):
    """Counts what makes a host wait for its device: numbers that are read, and shapes that depend on values."""

    NAMES = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero"})

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.name().split(".")[0] in self.NAMES
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("algorithm", [SFT(), GRPO(), gspo()], ids=lambda one: type(one.loss().algorithm).__name__)
def test_micro_batches_are_not_waited_for(algorithm, tiny):
    """A loss and its metrics stay on the device until the step: micro-batches cost no synchronisation."""
    learner = learner_of(tiny())
    prompt, rng, one = np.arange(20, 28, dtype=np.int32), np.random.default_rng(0), np.ones(4, np.float32)
    given = {"weight": one, "advantage": one, "old_logp": -one}
    units = [(tiny_models.row(prompt, tiny_models.tokens(rng, 4), **given),) for _ in range(4)]
    first, *others = (lay_out([unit], 4096, True)[0] for unit in units)
    learner.accumulate(first, algorithm.loss(), Denominator.of(units))  # looks once for what follows the last attention
    with Reads() as reads:
        for batch in others:
            learner.accumulate(batch, algorithm.loss(), Denominator.of(units))
        assert reads.count == 0
        learner.step()
    assert reads.count > 0


def test_a_loss_that_is_not_finite_is_refused_before_the_step(tiny):
    model, units = tiny(), some_units()
    learner, before = learner_of(model), weights_of(model)
    accumulate(learner, units)  # what was gathered before is dropped as well
    for batch, scale in zip(lay_out(units, 24, True), (float("nan"), *[1.0] * 9), strict=False):
        batch.fields["weight"][:] *= scale
        learner.accumulate(batch, WeightedLoss(), Denominator.of(units))
    with pytest.raises(NonFiniteError, match="the loss is nan at optimizer step 0; the step was not taken"):
        learner.flush()
    with pytest.raises(TrainingError, match="without any gradient"):
        learner.step()
    assert_equal_bits(weights_of(model), before)
