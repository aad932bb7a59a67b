"""A learner that replays routes is nearer to the generator, and its gradients do not depend on how rows are laid out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import architectures
import tiny_models
from engine_examples import run
from learner_examples import WeightedLoss, assert_same_gradients, gradients, learner_of
from penstock.config.learner import LearnerSpec
from penstock.config.strategies import DDP, FSDP2, OneDevice
from penstock.core.contracts import Denominator
from penstock.core.errors import DataError, ModelError
from penstock.core.types import Row
from penstock.engine.generator import EmbeddedGenerator
from penstock.models.experts import ROUTES
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import LearnerPlan
from penstock.train.ranks import learner_of as ranked
from route_examples import chosen, mixture

LOGP = frozenset({"logp"})
REQUESTS = [
    tiny_models.request(tiny_models.tokens(np.random.default_rng(ordinal), 8, 280), ordinal, sample, max_new_tokens=24)
    for ordinal in range(4)
    for sample in range(3)
]


def gap(model, samples, **spec):
    """The mean distance of a learner's log-probs from those that samples were drawn with."""
    logp = learner_of(model, **spec).score([(Row(s.columns, s.action_T),) for s in samples], LOGP)["logp"]
    return np.mean(np.concatenate([np.abs(one - s.logp_T[s.action_T]) for one, s in zip(logp, samples, strict=True)]))


@pytest.mark.parametrize("change", ["weights", "bfloat16"])
def test_replay_narrows_the_gap_between_generator_and_learner(change, text):
    samples = run(EmbeddedGenerator(mixture(text), routes=True), REQUESTS)
    assert gap(mixture(text), samples, replay_routes=True) < 1e-4

    def moved(**spec):
        model = mixture(text)
        if change == "weights":
            generator = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for parameter in model.network.parameters():
                    parameter.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=generator))
        return gap(model, samples, **spec, **({"dtype": "bfloat16"} if change == "bfloat16" else {}))

    assert moved(replay_routes=True) < 0.8 * moved()


def routed_units(model, seed=0):
    """Groups with weights to be trained on, and with the routes of other weights than the model's."""
    rng, other = np.random.default_rng(seed), mixture(model.text)
    tiny_models.randomise(other.network, seed=3)
    units = []
    for index, lengths in enumerate([(21, 17, 26), (24, 12), (15,)]):
        rows = architectures.rows(lengths, seed=index)
        named = [
            replace(
                row,
                columns={**row.columns, ROUTES: chosen(other, row.tokens_T)},
                fields={"weight": rng.normal(size=int(row.action_T.sum())).astype(np.float32)},
            )
            for row in rows
        ]
        units.append(tuple(named))
    return units


def trained(text, units, share=True, budget=4096, coupled=True, **spec):
    model = mixture(text)
    learner = learner_of(model, replay_routes=True, token_budget=budget, **spec)
    learner.policy.share_prefix = share
    for batch in learner.lay_out(units, coupled):
        learner.accumulate(batch, WeightedLoss(), Denominator.of(units))
    return learner.flush()["loss"], gradients(model.network)


def test_gradients_do_not_depend_on_the_layout(text):
    units = routed_units(mixture(text))
    loss, expected = trained(text, units)
    assert loss != pytest.approx(trained(text, [tuple(replace_routes(r) for r in unit) for unit in units])[0], abs=1e-3)
    others = {
        "prefixes apart": {"share": False},
        "small micro-batches": {"budget": 30, "coupled": False},
        "blocks computed again": {"gradient_checkpointing": True},
        "backwards": {"units": [unit[::-1] for unit in units[::-1]]},
    }
    for name, given in others.items():
        found, moved = trained(text, **({"units": units} | given))
        assert found == pytest.approx(loss, abs=1e-4), name
        assert_same_gradients(moved, expected, within=1e-4)


def replace_routes(row):
    return replace(row, columns={**row.columns, ROUTES: np.full_like(row.columns[ROUTES], -1)})


def test_a_critic_of_its_own_chooses_its_own_experts(text):
    def values(replay):
        model = mixture(text)
        learner = learner_of(model, replay_routes=replay, critic="separate")
        with torch.no_grad():
            model.value_head.linear.weight.normal_(generator=torch.Generator().manual_seed(0))
        return np.concatenate(learner.score(routed_units(model), frozenset({"value"}))["value"])

    np.testing.assert_allclose(values(True), values(False), atol=1e-5)


def test_a_learner_refuses_a_model_without_experts_and_rows_without_routes(text):
    with pytest.raises(ModelError, match=r"^LlamaForCausalLM has no experts.*; set learner\.replay_routes=false$"):
        learner_of(mixture(text, "llama"), replay_routes=True)
    with pytest.raises(DataError, match=r"^row 0: no column routes_T"):
        learner_of(mixture(text), replay_routes=True).score([tuple(architectures.rows())], LOGP)


@pytest.mark.parametrize("strategy", [DDP(), FSDP2()], ids=repr)
@pytest.mark.parametrize("again", [False, True])
def test_ranks_replay_as_one_device_does(strategy, again, text):
    found = []
    for kind in (OneDevice(), strategy):
        spec = LearnerSpec(replay_routes=True, token_budget=60, strategy=kind, gradient_checkpointing=again)
        learner = ranked(LanguagePolicy(mixture(text)), spec, LearnerPlan(total_steps=3))
        units = routed_units(mixture(text))
        for _ in range(3):
            for batch in learner.lay_out(units):
                learner.accumulate(batch, WeightedLoss(), Denominator.of(units))
            found.append(learner.step())
    for one, other in zip(found[:3], found[3:], strict=True):
        assert other == {name: pytest.approx(value, abs=1e-4, rel=1e-3) for name, value in one.items()}
