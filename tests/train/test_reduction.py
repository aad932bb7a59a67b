"""Gradients of replicas are on their way while the backward pass still runs, and come out as the sum over ranks."""

import pytest
import torch
from torch import nn

from penstock.config.learner import LearnerSpec
from penstock.train.optimizer import Masters
from penstock.train.part import Reduction

INPUT = torch.arange(8.0).view(2, 4)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layers(x).square().sum()


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network()


class Work:
    def wait(self):
        return None


@pytest.fixture
def sent(network, monkeypatch):
    """The sums asked for, each with whether the first layer had its gradient by then; another rank gives the same numbers."""
    asked = []

    def all_reduce(flat, async_op):
        assert async_op
        asked.append(network.layers[0].weight.grad is not None)
        flat.mul_(2)
        return Work()

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    monkeypatch.setattr("penstock.train.world.BUCKET", 1)
    return asked


def summed(network, dtype=torch.float32):
    expected = {name: None if p.grad is None else 2 * p.grad.float() for name, p in network.named_parameters()}
    network.zero_grad()
    return expected


def test_buckets_go_out_while_the_backward_pass_runs(network, sent):
    network(INPUT).backward()
    expected = summed(network)
    masters = Masters(network, LearnerSpec())
    reduction = Reduction(masters)
    network(INPUT).backward()
    assert not sent, "no step follows yet"
    network.zero_grad()
    reduction.begin()
    network(INPUT).backward()
    reduction.end()
    assert len(sent) == 7
    assert not any(sent[:4]), "those of later layers left before the first layer had its own"
    reduction.finish()
    assert network.unused.grad is None, "no rank has one"
    for name, parameter in network.named_parameters():
        if name != "unused":
            torch.testing.assert_close(parameter.grad, expected[name])


def test_a_rank_without_a_micro_batch_sends_what_it_has(network, sent):
    network(INPUT).backward()
    expected = summed(network)
    reduction = Reduction(Masters(network, LearnerSpec()))
    network(INPUT).backward()
    reduction.begin()
    reduction.end()
    reduction.finish()
    assert len(sent) == 7
    torch.testing.assert_close(network.layers[0].weight.grad, expected["layers.0.weight"])


def test_gradients_of_masters_are_summed_in_float32(network, sent):
    network.to(torch.bfloat16)
    masters = Masters(network, LearnerSpec(dtype="bfloat16"))
    reduction = Reduction(masters)
    reduction.begin()
    network(INPUT.to(torch.bfloat16)).backward()
    reduction.end()
    reduction.finish()
    found = {name: m.grad for name, m in zip(masters.parameters, masters.masters, strict=True)}
    assert found["layers.0.weight"].dtype == torch.float32
    assert found["layers.0.weight"].abs().sum() > 0
    assert found["unused"] is None
