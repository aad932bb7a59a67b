"""Attention of packed runs: what a kernel is given is what padded attention is given, and a wrong kernel is not taken."""

import numpy as np
import pytest
import torch

from penstock.models import attention, varlen
from penstock.models.attention import LayerAttention, PackedPlan, Runs, Segments, dot_product, same_heads
from penstock.models.varlen import CANDIDATES, agrees, kernel_of, plain

CPU = torch.device("cpu")
HEADS = (4, 2, 8)


def states(queries, keys):
    generator = torch.Generator().manual_seed(1)
    shapes = (queries, 4, 8), (keys, 2, 8), (keys, 2, 8)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def both_ways(segments, given, how, monkeypatch):
    """Outputs and gradients of padded attention and of a kernel that is the plain one."""
    found = []
    for kernel in (None, plain):
        monkeypatch.setattr(attention, "kernel_of", lambda *shape, kernel=kernel: kernel)
        out = segments.attend(*given, how=how)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    return found


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_a_kernel_gets_the_rows_that_share_a_prefix(window, monkeypatch):
    """Three rows of one prefix of 4 tokens, and a row alone: packed, the prefix is there once."""
    prefix, rows = list(range(4)), [[4, 5, 6], [7], [8, 9]]
    cells = [prefix + rows[0], prefix + rows[1], prefix + rows[2], [10, 11, 12, 13, 14]]
    length_B = np.array([len(row) for row in cells])
    gather_BT = np.array([row + [row[-1]] * (7 - len(row)) for row in cells])
    owner = {token: b * 7 + t for b, row in reversed(list(enumerate(cells))) for t, token in enumerate(row)}
    plan = PackedPlan(gather_BT, np.array([owner[token] for token in range(15)]), length_B)
    how = LayerAttention(8**-0.5, window)
    padded, packed = both_ways(plan.segments(window), states(15, 15), how, monkeypatch)
    assert_close(packed, padded)


def test_a_kernel_gets_runs_that_see_everything(monkeypatch):
    """Answers that read what an encoder made: no end hides a key."""
    segments = Segments(Runs.of(np.array([3, 1, 4])), Runs.of(np.array([5, 2, 3])), causal=False)
    padded, packed = both_ways(segments, states(8, 10), LayerAttention(8**-0.5), monkeypatch)
    assert_close(packed, padded)


@pytest.mark.parametrize("how", [LayerAttention(1.0, None, 20.0), LayerAttention(1.0, None, None, torch.zeros(4))])
def test_no_kernel_is_given_caps_or_sinks(how, monkeypatch):
    def refused(*arguments):
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(attention, "kernel_of", lambda *shape: refused)
    segments = Segments(Runs.of(np.array([3, 4])), Runs.of(np.array([3, 4])), causal=True)
    assert segments.attend(*states(7, 7), how=how).shape == (7, 4, 8)


def wrong_end(query, key, value, runs, scale, window):
    """Counts from the beginning of the keys, as some versions of kernels do."""
    return plain(query, key.flip(0), value.flip(0), runs, scale, window)


def no_gradient(*arguments):
    return plain(*arguments).detach().requires_grad_()


def test_only_a_kernel_that_computes_the_same_is_taken():
    assert agrees(plain, CPU, torch.bfloat16, *HEADS)
    assert not agrees(wrong_end, CPU, torch.bfloat16, *HEADS)
    with pytest.raises(RuntimeError):
        agrees(no_gradient, CPU, torch.bfloat16, *HEADS)


def test_a_processor_has_no_kernel():
    assert kernel_of(CPU, torch.bfloat16, *HEADS) is None
    assert len(CANDIDATES) == 2


def test_the_first_candidate_that_agrees_is_found(monkeypatch):
    """A device that is no processor, where the first kernel raises and the second is wrong."""

    def broken(*arguments):
        raise RuntimeError("no such kernel")

    class Gpu:
        type = "cuda"

    monkeypatch.setattr(varlen, "CANDIDATES", (broken, wrong_end, plain))
    monkeypatch.setattr(varlen, "agrees", lambda kernel, device, *shape: agrees(kernel, CPU, *shape))
    assert varlen.kernel_of.__wrapped__(Gpu(), torch.bfloat16, *HEADS) is plain
    assert varlen.kernel_of.__wrapped__(Gpu(), torch.float32, *HEADS) is None
    monkeypatch.setattr(varlen, "CANDIDATES", (broken, wrong_end))
    assert varlen.kernel_of.__wrapped__(Gpu(), torch.bfloat16, *HEADS) is None


def test_heads_that_are_repeated_attend_as_groups():
    query, key, value = (state.detach().transpose(0, 1)[None] for state in states(5, 5))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = dot_product(query, key, value, LayerAttention(1.0), mask)
    repeated = same_heads(query, key, value)
    assert [state.shape[1] for state in repeated] == [4, 4]
    torch.testing.assert_close(dot_product(query, *repeated, LayerAttention(1.0), mask), expected)


def test_a_plan_on_a_device_with_a_kernel_pads_nothing(monkeypatch):
    monkeypatch.setattr(attention, "kernel_of", lambda *shape: plain)
    segments = Segments(Runs.of(np.array([3, 4])), Runs.of(np.array([3, 4])), causal=True)
    segments.attend(*states(7, 7), how=LayerAttention(1.0))
    assert "_buckets" not in vars(segments)
