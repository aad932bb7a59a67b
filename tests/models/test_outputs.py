"""Outputs of a language model by name: log-probs and entropies by hand, chunks that change nothing, names that are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from penstock.algos import Divergence
from penstock.core.errors import SpecError, TrainingError
from penstock.models import outputs
from penstock.models.outputs import Teacher, View, WholeVocabulary, computed, register_output
from penstock.models.q_heads import HEADS, QHeads

TWO = torch.tensor([[0.0, 2.0], [1.0, 1.0]])


def view_of(hidden_AH, target_A, logits, vocabulary, *, temperature=1.0, teacher=None, q_heads=None):
    """A pass whose hidden states are given, each of which predicts one action."""
    model = SimpleNamespace(logits=logits, config=SimpleNamespace(vocab_size=vocabulary), q_heads=q_heads)
    tensors = SimpleNamespace(target_A=target_A, source_A=torch.arange(len(hidden_AH)))
    view = View(model, tensors, temperature, WholeVocabulary(model), teacher)
    view.hidden_NH = hidden_AH
    return view


def of_two(needs, temperature=1.0):
    """Outputs of two actions whose logits are written down."""
    return computed(view_of(TWO, torch.tensor([1, 0]), lambda hidden: hidden, 2, temperature=temperature), frozenset(needs))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, {"logp": [-0.126928, -0.693147]}),  # -log(1 + e^-2), -log 2
        (2.0, {"logp": [-0.313262, -0.693147]}),  # -log(1 + e^-1)
        (1.0, {"logp": [-0.126928, -0.693147], "entropy": [0.365334, 0.693147]}),
    ],
    ids=["log-probs alone", "at a temperature", "with entropies"],
)
def test_what_is_needed_and_nothing_else_is_computed_by_hand(temperature, expected):
    found = of_two(expected, temperature)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].tolist() == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize(
    ("needs", "numbers"),
    [({"logp"}, 5), ({"logp", "entropy"}, 5), ({"q"}, HEADS * 5), ({"divergence"}, 2 * 5)],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "",
)
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_chunks_change_neither_outputs_nor_gradients(monkeypatch, rows, needs, numbers):
    generator = torch.Generator().manual_seed(0)
    hidden, taught = torch.randn(7, 4, generator=generator), torch.randn(7, 6, generator=generator)
    weight, other = torch.randn(5, 4, generator=generator), torch.randn(5, 6, generator=generator)
    target, heads = torch.randint(0, 5, (7,), generator=generator), QHeads(4, 5)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    teacher = Teacher(lambda tensors: taught, lambda x: x @ other.T, Divergence(kind="jensen-shannon"))

    def run(elements):
        monkeypatch.setattr(outputs, "CHUNK_ELEMENTS", elements)
        heads.zero_grad()
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        view = view_of(h, target, lambda x: x @ w.T, 5, temperature=0.7, teacher=teacher, q_heads=heads)
        found = computed(view, frozenset(needs))
        sum(value.sin().sum() for value in found.values()).backward()
        return [
            *(value.detach() for value in found.values()),
            h.grad,
            heads.online[0].outer.weight.grad if w.grad is None else w.grad,
        ]

    for found, expected in zip(run(numbers * rows), run(1 << 20), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_an_output_of_ones_own_is_computed_where_a_loss_needs_it(monkeypatch):
    monkeypatch.setattr(outputs, "_outputs", dict(outputs._outputs))
    register_output("norm", lambda view, needs: {"norm": view.before_actions(view.hidden_NH).norm(dim=-1)})
    assert of_two({"norm"})["norm"].tolist() == pytest.approx([2.0, 2**0.5])


def test_an_output_that_nobody_registered_is_refused():
    with pytest.raises(TrainingError, match=r'nobody has registered an output "lopg"; known are .*\blogp\b'):
        of_two({"lopg"})


def test_two_outputs_of_one_name_are_refused():
    with pytest.raises(SpecError, match='two outputs are named "logp"'):
        register_output("logp", lambda view, needs: {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_that_cannot_come_adds_nothing_to_the_entropy_nor_to_its_gradient(dtype):
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], dtype=dtype, requires_grad=True)
    logp, entropy = WholeVocabulary.scores(logits, torch.tensor([1]), True)
    assert (logp.item(), entropy.item()) == (pytest.approx(-0.313262, abs=1e-6), pytest.approx(0.582203, abs=1e-6))
    (gradient,) = torch.autograd.grad(1e6 * entropy.sum(), logits)
    two = torch.tensor([[0.0, 1.0]], dtype=dtype, requires_grad=True)
    (expected,) = torch.autograd.grad(1e6 * WholeVocabulary.scores(two, torch.tensor([1]), True)[1].sum(), two)
    torch.testing.assert_close(gradient, torch.cat([expected, torch.zeros(1, 1, dtype=dtype)], 1))


def test_log_probs_and_their_gradients_are_those_of_torch_bit_for_bit():
    logits = torch.randn(5, 4000, generator=torch.Generator().manual_seed(0)) * 4
    target = torch.tensor([0, 17, 3999, 17, 5])
    weight = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    found = []
    for scores in (outputs.WholeVocabulary.scores, plain_scores):
        leaf = logits.clone().requires_grad_()
        (logp,) = scores(leaf, target, False)
        (logp * weight).sum().backward()
        found.append((logp.detach(), leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def plain_scores(logits, target, entropy):
    return (logits.gather(-1, target[:, None]).squeeze(-1) - logits.logsumexp(-1),)
