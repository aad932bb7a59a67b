"""Log-probs and entropies of tokens in chunks."""

import pytest
import torch

from penstock.train import token_scores as module
from penstock.train.token_scores import token_scores

TWO = torch.tensor([[0.0, 2.0], [1.0, 1.0]])


def linear(weight_VH):
    return lambda hidden_AH: hidden_AH @ weight_VH.T


def test_hand_values():
    logp_A, entropy_A = token_scores(TWO, torch.tensor([1, 0]), lambda hidden: hidden, 2, entropy=True)
    assert logp_A.tolist() == pytest.approx([-0.126928, -0.693147], abs=1e-6)  # -log(1 + e^-2), -log 2
    assert entropy_A.tolist() == pytest.approx([0.365334, 0.693147], abs=1e-6)


def test_temperature_divides_the_logits():
    logp_A, _ = token_scores(TWO, torch.tensor([1, 0]), lambda hidden: hidden, 2, temperature=2.0)
    assert logp_A.tolist() == pytest.approx([-0.313262, -0.693147], abs=1e-6)  # -log(1 + e^-1)


def test_entropy_is_left_out_unless_asked_for():
    assert token_scores(TWO, torch.tensor([1, 0]), lambda hidden: hidden, 2)[1] is None


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_chunks_change_neither_scores_nor_gradients(monkeypatch, rows, entropy):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 4, generator=generator)
    weight = torch.randn(5, 4, generator=generator)
    target = torch.randint(0, 5, (7,), generator=generator)
    mix = torch.randn(7, generator=generator)

    def run(elements):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", elements)
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logp_A, entropy_A = token_scores(h, target, linear(w), 5, temperature=0.7, entropy=entropy)
        total = (mix * logp_A).sum() + (entropy_A.square().sum() if entropy else 0)
        total.backward()
        return logp_A.detach(), entropy_A.detach() if entropy else logp_A.detach(), h.grad, w.grad

    for found, expected in zip(run(5 * rows), run(1 << 20), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
