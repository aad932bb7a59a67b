"""What every learner must do, on whatever devices it runs.

An implementation joins by one entry in ``KINDS``: a function from a model and a spec to a learner laid out for ten
optimizer steps, and which tiny model it trains. The tests see weights, scores, metrics and states alone, never a gradient.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import tiny_t5
from learner_examples import assert_equal_bits, evenly, saved, some_units
from penstock.config.learner import LearnerSpec, LoRA
from penstock.config.optimizers import AdamW8bit
from penstock.config.strategies import DDP, FSDP2, DeepSpeed
from penstock.core.contracts import FULL_STEP, Caution, Denominator, Learner
from penstock.core.errors import LargeGradientError, TrainingError
from penstock.models.language_policy import LanguagePolicy
from penstock.models.packing import lay_out
from penstock.train.fleet import fleet_of
from penstock.train.learner import DeviceLearner, LearnerPlan
from penstock.train.ranks import learner_of


def on_one_device(policy, spec):
    return DeviceLearner(policy, spec, LearnerPlan(total_steps=10))


def with_frozen_layers(policy, spec):
    return on_one_device(policy, replace(spec, unfrozen_layers=1))


def with_adapters(policy, spec):
    pytest.importorskip("peft")
    critic = "shared" if spec.critic == "separate" else spec.critic  # the spec refuses whole layers beside adapters
    return on_one_device(policy, replace(spec, lora=LoRA(rank=4), critic=critic))


def with_8_bit_moments(policy, spec):
    pytest.importorskip("torchao")
    return on_one_device(policy, replace(spec, optimizer=AdamW8bit()))


def on_ranks(strategy, package=None):
    """On two ranks; a learner of one test may be closed while the ranks stay for the next."""

    def made(policy, spec):
        if package:
            pytest.importorskip(package)
        return learner_of(policy, replace(spec, strategy=strategy), LearnerPlan(total_steps=10))

    return made


KINDS = (
    {"one device": (on_one_device, "qwen2")},
    {
        "one device, encoder-decoder": (on_one_device, "t5"),
        "frozen layers": (with_frozen_layers, "gpt2"),
        "adapters": (with_adapters, "qwen2"),
        "8-bit moments": (with_8_bit_moments, "llama"),
    },
    {"DDP, 2 ranks": (on_ranks(DDP()), "qwen2"), "DDP, encoder-decoder": (on_ranks(DDP()), "t5")},
    {"FSDP2, 2 ranks": (on_ranks(FSDP2()), "gpt2")},
    {
        "FSDP2, tensor parallel": (on_ranks(FSDP2(tensor_parallel=2)), "llama"),
        "FSDP2, sequence parallel": (on_ranks(FSDP2(sequence_parallel=2)), "qwen2"),
    },
    {
        "DeepSpeed ZeRO-2": (on_ranks(DeepSpeed(stage=2), "deepspeed"), "qwen2"),
        "DeepSpeed ZeRO-3": (on_ranks(DeepSpeed(stage=3), "deepspeed"), "qwen2"),
        "DeepSpeed ZeRO-2, offloaded": (on_ranks(DeepSpeed(stage=2, offload=True), "deepspeed"), "qwen2"),
    },
)
"""Learners by kind. The matrix is pairwise: each kind meets each requirement, and the learners of a kind take turns, so that
each of them meets each part of the requirements: steps, refusals, scores and weights, states. With ``--contracts-json`` each
learner meets each requirement."""
LEARNERS = {name: made for kind in KINDS for name, made in kind.items()}
RANKED = {name for kind in KINDS[2:] for name in kind}
"""Those whose tests start processes."""
VARIANTS = {
    "layout": {"small": {"budget": 24}, "unshared": {"share": False}, "small and unshared": {"budget": 24, "share": False}},
    "critic": {"none": "none", "shared": "shared", "separate": "separate"},
}
"""The arguments of requirements that come in several variants."""


def pytest_generate_tests(metafunc):
    if "make" not in metafunc.fixturenames:
        return
    place = [name for name in vars(metafunc.module) if name.startswith("test_")].index(metafunc.function.__name__)
    argument = next((name for name in VARIANTS if name in metafunc.fixturenames), "")
    cases = []
    for turn, (variant, given) in enumerate(VARIANTS.get(argument, {"": None}).items(), place):
        for kind in map(list, KINDS):
            for name in kind if metafunc.config.getoption("--contracts-json", None) else [kind[turn % len(kind)]]:
                values = (name, given) if argument else (name,)
                cases.append(pytest.param(*values, id=f"{name}-{variant}".rstrip("-")))
    metafunc.parametrize(["make", argument] if argument else ["make"], cases, indirect=["make"])


LOGP = frozenset({"logp"})


@pytest.fixture(scope="module")
def two_ranks():
    """The ranks of all learners that have any, started once."""
    fleet = fleet_of(2, torch.device("cpu"))
    fleet.hold()
    yield fleet
    fleet.close()  # DeepSpeed would keep it


@pytest.fixture
def make(request, tiny, text):
    """``make(temperature, **spec)``: a learner over the same tiny model every time."""
    learner, kind = LEARNERS[request.param]
    if request.param in RANKED:
        request.getfixturevalue("two_ranks")

    def made(temperature=1.0, **spec):
        model = tiny_t5.build(text, kind) if kind in tiny_t5.ARCHITECTURES else tiny(kind)
        return learner(LanguagePolicy(model, temperature), LearnerSpec(**({"learning_rate": 1e-3} | spec)))

    return made


@dataclass(frozen=True)
class Likelihood:
    """Negative mean log-prob of the action tokens, with the value's square beside it where it is asked for."""

    needs: frozenset[str] = LOGP
    scale: float = 1.0

    def __call__(self, outputs, fields, batch, denominator):
        loss = -self.scale * (fields["weight"] * outputs["logp"]).sum() / denominator.tokens
        if "value" in outputs:
            loss = loss + (outputs["value"] - 1).square().sum() / denominator.tokens
        return loss, {"nll": loss.detach()}


def units_of(seed=0, groups=(3, 1, 2)):
    return some_units(seed, groups, evenly)


def train(learner, units, *, budget=4096, share=True, loss=None, caution=FULL_STEP):
    """One optimizer step over all micro-batches; gives the summed metrics and those of the step."""
    for batch in lay_out(units, budget, share):
        learner.accumulate(batch, loss or Likelihood(), Denominator.of(units))
    return learner.flush(), learner.step(caution)


def weights(learner):
    return {name: tensor.detach().clone() for name, tensor in learner.weights()}


def assert_the_next_step_is_that_of(other, learner):
    for one in (learner, other):
        train(one, units_of())
    assert_equal_bits(weights(learner), weights(other))


def test_it_fulfils_the_protocol(make):
    assert isinstance(make(), Learner)


def test_accumulating_changes_no_weight(make):
    learner = make()
    before = weights(learner)
    for batch in lay_out(units_of(), 4096, True):
        learner.accumulate(batch, Likelihood(), Denominator.of(units_of()))
    assert_equal_bits(weights(learner), before)


def test_steps_lower_the_loss(make):
    learner = make(learning_rate=0.01)
    losses = [train(learner, units_of())[0]["nll"] for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]


def test_metrics_are_numbers_and_shares_add_up(make):
    learner = make()
    whole, _ = train(make(), units_of(groups=(2, 1, 3, 2)), budget=4096)
    split, step = train(learner, units_of(groups=(2, 1, 3, 2)), budget=24)
    assert split == {"loss": pytest.approx(whole["loss"], abs=1e-5), "nll": pytest.approx(whole["nll"], abs=1e-5)}
    assert all(isinstance(value, float) for value in (*split.values(), *step.values()))
    assert step["learning_rate"] == 1e-3
    assert step["gradient_norm"] > 0


def test_the_step_does_not_depend_on_the_layout(make, layout):
    one, other = make(), make()
    units = units_of(groups=(2, 1, 3, 2))
    norm = train(one, units, **layout)[1]["gradient_norm"]
    assert norm == pytest.approx(train(other, units)[1]["gradient_norm"], rel=1e-5)
    found = one.score(units, LOGP)["logp"]
    for ours, theirs in zip(found, other.score(units, LOGP)["logp"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-2)  # Adam magnifies rounding where a gradient is nearly 0


def test_the_step_does_not_depend_on_the_order_of_the_units(make):
    units = units_of(groups=(2, 1, 3, 2))
    norms = [train(make(), ordered)[1]["gradient_norm"] for ordered in (units, units[::-1])]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_step_without_gradient_is_refused(make):
    with pytest.raises(TrainingError):
        make().step()


def test_a_loss_that_is_not_finite_is_refused_and_leaves_the_weights(make):
    learner = make()
    before = weights(learner)
    with pytest.raises(TrainingError):
        train(learner, units_of(), loss=Likelihood(scale=float("inf")))
    assert_equal_bits(weights(learner), before)


def test_a_refused_step_does_not_spoil_the_next(make):
    learner, other = make(), make()
    with pytest.raises(TrainingError):
        train(learner, units_of(), loss=Likelihood(scale=float("nan")))
    assert_the_next_step_is_that_of(other, learner)


def test_a_step_that_is_held_back_leaves_the_weights_and_does_not_spoil_the_next(make):
    learner, other = make(), make()
    before = weights(learner)
    with pytest.raises(LargeGradientError):
        train(learner, units_of(seed=1), caution=Caution(limit=0.0))
    assert_equal_bits(weights(learner), before)
    assert_the_next_step_is_that_of(other, learner)


def test_a_step_may_be_taken_at_a_lower_rate(make):
    learner, other = make(), make(learning_rate=3e-4)
    _, slower = train(learner, units_of(), caution=Caution(rate=0.3))
    train(other, units_of())
    assert slower["learning_rate"] == pytest.approx(3e-4)
    assert all(torch.allclose(tensor, weights(other)[name], atol=1e-7) for name, tensor in weights(learner).items())


def test_scores_have_one_entry_a_row_over_its_actions(make):
    units = units_of()
    found = make().score(units, frozenset({"logp", "entropy"}))
    lengths = [int(row.action_T.sum()) for unit in units for row in unit]
    assert [len(logp_A) for logp_A in found["logp"]] == lengths
    assert [len(entropy_A) for entropy_A in found["entropy"]] == lengths
    assert all((logp_A <= 0).all() for logp_A in found["logp"])
    assert all((entropy_A >= 0).all() for entropy_A in found["entropy"])


def test_scoring_leaves_the_learner_as_it_is(make):
    learner, other = make(), make()
    learner.score(units_of(3), LOGP)
    assert_the_next_step_is_that_of(other, learner)


def test_a_temperature_flattens_the_scores(make):
    hot, cold = (make(temperature).score(units_of(), frozenset({"entropy"}))["entropy"] for temperature in (3.0, 0.3))
    assert all((one > other).all() for one, other in zip(hot, cold, strict=True))


def test_weights_have_unique_names_and_no_gradient(make):
    learner = make(critic="shared")
    names = [name for name, _ in learner.weights()]
    assert len(set(names)) == len(names) > 0
    assert not any(tensor.requires_grad for _, tensor in learner.weights())
    assert not any("value" in name for name in names)


def test_weights_carry_the_last_step(make):
    learner = make()
    before = weights(learner)
    train(learner, units_of())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in learner.weights())


def test_a_state_holds_named_arrays_and_plain_values(make):
    learner = make()
    train(learner, units_of())
    state = learner.state()
    assert all(isinstance(array, np.ndarray | torch.Tensor) for array in state.arrays.values())
    assert json.loads(json.dumps(state.values)) == state.values


def test_a_learner_can_be_taken_back_to_an_earlier_state(make):
    learner, other = make(), make()
    start = saved(learner)
    train(learner, units_of(1))
    learner.load_state(start)
    assert_the_next_step_is_that_of(other, learner)


def test_a_resume_goes_on_bit_by_bit(make, critic):
    loss = Likelihood(LOGP if critic == "none" else frozenset({"logp", "value"}))
    whole, resumed = make(critic=critic, schedule="linear"), make(critic=critic, schedule="linear")
    for seed in range(2):
        train(whole, units_of(seed), loss=loss)
    state = saved(whole)
    resumed.load_state(state)
    for seed in range(2, 4):
        assert train(whole, units_of(seed), loss=loss) == train(resumed, units_of(seed), loss=loss)
    assert_equal_bits(weights(resumed), weights(whole))
    assert_equal_bits(saved(resumed).arrays, saved(whole).arrays)


def test_it_goes_to_any_earlier_state_between_scores_and_passes_without_a_step(make):
    learner, states, scores = make(critic="shared"), [], []
    loss = Likelihood(frozenset({"logp", "value"}))
    for seed in range(3):
        states.append(saved(learner))
        scores.append(learner.score(units_of(4), LOGP)["logp"])
        train(learner, units_of(seed), loss=loss)
    for place in (2, 0, 1):
        learner.score(units_of(5, groups=(2,)), loss.needs)
        for batch in lay_out(units_of(6), 24, True):
            learner.accumulate(batch, loss, Denominator.of(units_of(6)))
        learner.load_state(states[place])
        assert_equal_bits(saved(learner).arrays, states[place].arrays)
        for found, expected in zip(learner.score(units_of(4), LOGP)["logp"], scores[place], strict=True):
            np.testing.assert_array_equal(found, expected)
    train(learner, units_of(1), loss=loss)
    assert_equal_bits(saved(learner).arrays, states[2].arrays)
