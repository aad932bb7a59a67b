"""AdamW with moments in float32 and in 8 bits: its steps, its bytes, and its state without pickle."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from learner_examples import assert_resumes_bit_by_bit, learner_of, train
from penstock.config.learner import LearnerSpec
from penstock.config.optimizers import AdamW, AdamW8bit
from penstock.core.contracts import State
from penstock.core.errors import CheckpointError, TrainingError
from penstock.train.optimizer import Masters

EIGHT = {"optimizer": AdamW8bit(), "learning_rate": 1e-2}


@pytest.fixture
def torchao():
    return pytest.importorskip("torchao")


class Sums(nn.Module):
    """A matrix whose moments are quantized, one that is too small for it, and one whose size is no multiple of a block."""

    def __init__(self):
        super().__init__()
        for name, shape in {"large": (64, 128), "small": (4, 4), "odd": (67, 67)}.items():
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(len(name)))
            setattr(self, name, nn.Parameter(noise))


def masters_of(module=None, **fields):
    return Masters(module if module is not None else Sums(), LearnerSpec(**({"clip_norm": 0.0} | EIGHT | fields)))


def steps(masters, count, start=0, rate=1e-2):
    for index in range(start, start + count):
        for number, master in enumerate(masters.masters):
            master.grad = torch.randn(master.shape, generator=torch.Generator().manual_seed(100 * index + number))
        masters.step(rate)


def test_one_float32_step_by_hand():
    """m = 0.1 g, v = 0.05 g², both corrected for their start, so the first step is the rate times the gradient's sign."""
    module = nn.Linear(2, 1, bias=False)
    masters = masters_of(module, optimizer=AdamW(betas=(0.9, 0.95), weight_decay=0.5))
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, -2.0]]))
    module.weight.grad = torch.tensor([[3.0, -4.0]])
    moved = ((0.15**2 + 0.2**2) / 2) ** 0.5
    assert masters.step(0.1) == {"gradient_norm": pytest.approx(5.0), "update_size": pytest.approx(moved)}
    expected = torch.tensor([[1.0 - 0.1 * 0.5 - 0.1, -2.0 + 0.1 * 0.5 * 2 + 0.1]])
    assert torch.allclose(module.weight, expected, atol=1e-6)


def test_one_8_bit_step_by_hand(torchao):
    """The first step does not read quantized moments, so large tensors take the very same one."""
    module = nn.Linear(64, 64, bias=False)
    masters = masters_of(module)
    before = module.weight.detach().clone()
    module.weight.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    sign = module.weight.grad.sign()
    masters.step(0.1)
    assert torch.allclose(module.weight, before - 0.1 * sign, atol=1e-5)


def test_later_8_bit_steps_stay_close_to_those_in_float32(torchao):
    found = []
    for optimizer in (AdamW(), AdamW8bit()):
        masters = masters_of(optimizer=optimizer)
        start = [master.detach().clone() for master in masters.masters]
        steps(masters, 10)
        found.append([master.detach() - before for master, before in zip(masters.masters, start, strict=True)])
    for whole, eight in zip(*found, strict=True):
        assert (eight - whole).norm() < 0.05 * whole.norm()
    quantized = [
        name for name, whole, eight in zip(("large", "small", "odd"), *found, strict=True) if (eight - whole).norm() > 1e-5
    ]
    assert quantized == ["large"]


def test_8_bit_moments_take_a_quarter_of_the_bytes(torchao):
    held = {}
    for optimizer in (AdamW(), AdamW8bit()):
        masters = masters_of(nn.Linear(256, 256, bias=False), optimizer=optimizer)
        steps(masters, 1)
        arrays = masters.state().arrays
        held[optimizer] = sum(t.nbytes for name, t in arrays.items() if not name.startswith(("master", "step")))
    entries = 256 * 256
    assert held == {AdamW(): 8 * entries, AdamW8bit(): 2 * entries + 2 * 4 * entries // 256}


@pytest.mark.parametrize("optimizer", [AdamW(), AdamW8bit()], ids=str)
def test_steps_after_a_reload_are_bit_for_bit_those_without(optimizer, torchao, tmp_path):
    whole, first, second = (masters_of(optimizer=optimizer) for _ in range(3))
    steps(whole, 5)
    steps(first, 2)
    save_file({name: t.contiguous() for name, t in first.state().arrays.items()}, tmp_path / "state.safetensors")  # no pickle
    second.load_state(State(load_file(tmp_path / "state.safetensors"), {}))
    steps(second, 3, start=2)
    assert all(map(torch.equal, second.masters, whole.masters))
    assert all(torch.equal(t, whole.state().arrays[name]) for name, t in second.state().arrays.items())


def test_a_state_from_before_the_first_step_clears_the_moments(torchao):
    fresh, used = masters_of(), masters_of()
    steps(used, 2)
    used.load_state(fresh.state())
    assert not any(name.startswith("exp_avg") for name in used.state().arrays)


@pytest.mark.parametrize(("saved", "loading"), [(AdamW(), AdamW8bit()), (AdamW8bit(), AdamW())], ids=str)
def test_moments_of_the_other_optimizer_are_refused(saved, loading, torchao):
    masters = masters_of(optimizer=saved)
    steps(masters, 1)
    with pytest.raises(CheckpointError, match="those of another optimizer"):
        masters_of(optimizer=loading).load_state(masters.state())


def test_the_rate_of_each_step_is_the_one_given(torchao):
    masters = masters_of()
    before = masters.masters[1].detach().clone()
    steps(masters, 1, rate=0.0)
    assert torch.equal(masters.masters[1], before)
    steps(masters, 1, rate=1e-3)
    assert 0 < (masters.masters[1] - before).abs().max() < 2e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_learner_learns_with_8_bit_moments_and_resumes(dtype, torchao, tiny):
    losses = train(learner_of(tiny(), **EIGHT, dtype=dtype), [0] * 3)
    assert losses[0] > losses[1] > losses[2]
    assert_resumes_bit_by_bit(lambda: learner_of(tiny(), **EIGHT, dtype=dtype))


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(TrainingError, match=r"pip install penstock\[adam8bit\]"):
        masters_of()
