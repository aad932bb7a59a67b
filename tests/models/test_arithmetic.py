"""Products in bfloat16 with float32 around them: what is rounded, what is not, and that new weights are seen."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import tiny_models
from penstock.config.learner import LearnerSpec
from penstock.config.strategies import DDP
from penstock.core.errors import SpecError
from penstock.models.arithmetic import Mixed, cast_again, mix, to_compute_type
from penstock.models.language_policy import LanguagePolicy
from penstock.train.learner import DeviceLearner, LearnerPlan

each_architecture = pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
LOGP = frozenset({"logp"})
RNG = np.random.default_rng(0)


def rounded(tensor):
    return tensor.to(torch.bfloat16).float()


def linear_of(kind):
    torch.manual_seed(0)
    made = nn.Sequential(kind())
    nn.init.normal_(made[0].bias)
    return made


@pytest.mark.parametrize("kind", [lambda: nn.Linear(8, 6), lambda: Conv1D(6, 8)], ids=["Linear", "Conv1D"])
def test_a_product_is_that_of_rounded_factors_rounded_once(kind):
    plain, mixed = linear_of(kind), linear_of(kind)
    mix(mixed)
    x = torch.randn(2, 3, 8, requires_grad=True)
    matrix = mixed[0].matrix
    expected = rounded(rounded(x) @ rounded(matrix).T) + mixed[0].bias
    found = mixed(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(found, plain(x), atol=0.1, rtol=0.1)
    with torch.no_grad():
        assert torch.equal(mixed(x), found), "the same without gradient"


def test_gradients_are_those_of_the_plain_layer_but_for_rounding():
    plain, mixed = (linear_of(lambda: nn.Linear(16, 12)) for _ in range(2))
    mix(mixed)
    inputs = [torch.randn(5, 16, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2)]
    for layer, x in zip((plain, mixed), inputs, strict=True):
        layer(x).square().sum().backward()
    for one, other in [(inputs[0].grad, inputs[1].grad), (plain[0].weight.grad, mixed[0].weight.grad)]:
        assert other.dtype == torch.float32
        assert float((one - other).norm() / one.norm()) < 0.02


def test_a_second_call_changes_nothing_and_nothing_more_is_saved():
    layer = linear_of(lambda: nn.Linear(4, 4))
    names = set(layer.state_dict())
    mix(layer)
    before = layer[0].rounded
    mix(layer)
    assert layer[0].rounded is before
    assert set(layer.state_dict()) == names
    assert copy.deepcopy(layer)[0].rounded is not before


def test_new_weights_are_seen():
    layer = linear_of(lambda: nn.Linear(4, 4))
    mix(layer)
    with torch.no_grad():
        layer[0].weight.mul_(2)
        torch.testing.assert_close(layer(torch.eye(4)) - layer[0].bias, rounded(layer[0].weight).T, atol=1e-6, rtol=0)
        layer[0].weight.data = layer[0].weight.data * 2  # as an update of a generator does, which says so
        cast_again(layer)
        torch.testing.assert_close(layer(torch.eye(4)) - layer[0].bias, rounded(layer[0].weight).T, atol=1e-6, rtol=0)


@each_architecture
def test_a_mixed_model_gives_nearly_the_same_and_learns_in_float32(architecture, tiny):
    units = [(tiny_models.row(*(tiny_models.tokens(RNG, n) for n in (6, 5))),) for _ in range(3)]
    plain, mixed = tiny(architecture), tiny(architecture)
    to_compute_type(mixed, "mixed")
    assert any(isinstance(part, Mixed) for part in mixed.network.base_model.modules())
    assert not isinstance(mixed.network.get_output_embeddings(), Mixed)
    ours, theirs = (
        DeviceLearner(LanguagePolicy(model), LearnerSpec(dtype=dtype), LearnerPlan(total_steps=2)).score(units, LOGP)["logp"]
        for model, dtype in ((mixed, "mixed"), (plain, "float32"))
    )
    gap = max(float(abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    assert 0 < gap < 0.5
    assert {p.dtype for p in mixed.parameters()} == {torch.float32}


def test_after_a_step_products_are_those_of_the_new_weights(tiny):
    model = tiny()
    learner = DeviceLearner(LanguagePolicy(model), LearnerSpec(dtype="mixed", learning_rate=0.1), LearnerPlan(total_steps=2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: part.rounded.clone() for name, part in model.named_modules() if isinstance(part, Mixed)}
    learner.step()
    for name, part in model.named_modules():
        if isinstance(part, Mixed):
            assert not torch.equal(part.rounded, before[name])
            assert torch.equal(part.rounded, part.matrix.detach().to(torch.bfloat16))


def test_ranks_refuse_it():
    with pytest.raises(SpecError, match="strategy=DDP does not compute in dtype=mixed; set float32 or bfloat16"):
        LearnerSpec(dtype="mixed", strategy=DDP())
