"""An algorithm from outside the package, with a column, an output, a head and slow variables of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import penstock
from penstock.config.run import CheckpointSpec, LearnerSpec, ModelSpec, Online, RewardSpec, Run
from penstock.config.spec import spec
from penstock.core.algorithm import FromSamples, scored_samples
from penstock.core.columns import Column, register_column
from penstock.core.contracts import Coefficients, Columns, Denominator, LossOutput, Outputs
from penstock.core.errors import CheckpointError, SpecError
from penstock.core.types import Group, Metrics, Row, Sample, Sampling, Unit
from penstock.loops.learn import Labeller, Trainer
from penstock.models.heads import Head, register_head
from penstock.models.outputs import View, register_output
from penstock.runtime import launch


class Foresight(Head):
    """Guesses a sample's reward from each state; a copy follows slowly."""

    def __init__(self, width: int, vocabulary: int, pace: float) -> None:
        super().__init__()
        self.fast, self.lagging = nn.Linear(width, 1), nn.Linear(width, 1).requires_grad_(False)
        for part in (self.fast, self.lagging):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)
        self.pace = pace

    @torch.no_grad()
    def follow(self, updates: int) -> None:
        for slow, fast in zip(self.lagging.parameters(), self.fast.parameters(), strict=True):
            slow.lerp_(fast, self.pace)


def guesses(view: View, needs: frozenset[str]) -> dict[str, Tensor]:
    head, hidden_AH = view.model.heads["foresight"], view.before_actions(view.hidden_NH)
    return {name: part(hidden_AH).squeeze(-1) for name, part in (("foresight", head.fast), ("foresight/slow", head.lagging))}


register_head("foresight", Foresight)
register_output("foresight", guesses)
register_column("doubt", Column("learner", "entropy"))


@spec
class Foreseeing(FromSamples):
    """Raises what turned out better than foreseen, the more where the policy was in doubt."""

    pace: float = 0.5

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"doubt"})

    @property
    def heads(self) -> Mapping[str, Mapping[str, Any]]:
        return {"foresight": {"pace": self.pace}}

    def initial_coefficients(self) -> Coefficients:
        return {"trust in doubt": 1.0}

    def adapt(self, coefficients: Coefficients, metrics: Metrics) -> Coefficients:
        return {"trust in doubt": 0.5 * coefficients["trust in doubt"]}

    def label(self, groups: Sequence[Group], columns: Columns, coefficients: Coefficients) -> list[Unit]:
        units = []
        for group, doubts in zip(groups, columns["doubt"], strict=True):
            weights = [1 + coefficients["trust in doubt"] * np.asarray(doubt_A, np.float32) for doubt_A in doubts]
            units.append(
                tuple(
                    Row(sample.columns, sample.action_T, {"weight": weight_A, "reward": sample.reward})
                    for sample, weight_A in zip(group.samples, weights, strict=True)
                    if sample in scored_samples(group)
                )
            )
        return units

    @property
    def loss_reads(self) -> frozenset[str]:
        return frozenset({"logp", "foresight"})

    def compute_loss(self, outputs: Outputs, fields: Mapping[str, Any], batch: Any, denominator: Denominator) -> LossOutput:
        reward_A = fields["reward"][batch.row_A]
        policy_A = fields["weight"] * (outputs["foresight/slow"] - reward_A) * outputs["logp"]
        loss = (policy_A + (outputs["foresight"] - reward_A).square()).sum() / denominator.tokens
        return loss, {"foresight/mean": outputs["foresight"].detach().sum() / denominator.tokens}


def length(sample: Sample, columns: Mapping[str, Any]) -> float:
    return float(len(sample.text))


def a_run(steps: int = 3) -> Run:
    stage = Online(
        name="foreseeing",
        model=ModelSpec(preset="1m", layers=1, vocabulary=300, context=32),
        data=penstock.rows([{"prompt": letters} for letters in ("ab", "bc", "cd")]),
        rewards=(RewardSpec(function=f"{__name__}:length"),),
        algorithm=Foreseeing(),
        learner=LearnerSpec(learning_rate=1e-3),
        sampling=Sampling(max_new_tokens=3),
        samples=2,
        batch=2,
        steps=steps,
    )
    return Run(name="outside", stages=(stage,), device="cpu", threads=1, checkpoint=CheckpointSpec(every=1))


def trained(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return load_file(folder / "model.safetensors"), load_file(folder / "foresight_heads.safetensors")


def test_it_trains_and_resumes_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = launch(a_run(), tmp_path / "whole")
    step, calls = Trainer.step, []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            launch(a_run(), tmp_path / "resumed")
    resumed = launch(a_run(), tmp_path / "resumed", resume=True)
    for ours, theirs in zip(trained(whole.model_path), trained(resumed.model_path), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    _, head = trained(whole.model_path)
    assert head["fast.bias"].item() != 0
    assert 0 < head["lagging.bias"].item() / head["fast.bias"].item() < 1  # it follows, half of the way a step


def test_its_coefficients_move_once_a_batch_and_are_saved() -> None:
    first, again = Labeller(Foreseeing(), None, None), Labeller(Foreseeing(), None, None)  # type: ignore[arg-type]
    first.coefficients = first.algorithm.adapt(first.coefficients, {})
    again.load_state(first.state())
    assert again.coefficients == {"trust in doubt": 0.5}


def test_coefficients_of_another_algorithm_are_refused() -> None:
    labeller = Labeller(Foreseeing(), None, None)  # type: ignore[arg-type]
    state = labeller.state()
    state.values["coefficients"] = {"kl": 0.1}
    with pytest.raises(CheckpointError, match=r"Foreseeing moves \['trust in doubt'\], the checkpoint holds \['kl'\]"):
        labeller.load_state(state)


def test_a_misspelt_member_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"has_signals is no member of an algorithm; did you mean has_signal\?"):
        type("Misspelt", (FromSamples,), {"has_signals": lambda self, group: True})


def test_a_column_that_nobody_has_registered_is_named() -> None:
    made = type("Needy", (Foreseeing,), {"needs": frozenset({"certainty"})})
    with pytest.raises(SpecError, match=r'nobody has registered a column "certainty"; known are .*\bdoubt\b'):
        _ = made().reference


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match='two columns are named "value"'):
        register_column("value", Column("reference", "value"))


def test_what_is_no_algorithm_is_refused() -> None:
    with pytest.raises(SpecError, match="LearnerSpec is no algorithm"):
        Online(
            name="none",
            model=ModelSpec(preset="1m"),
            data=penstock.rows([{"prompt": "a"}]),
            rewards=(RewardSpec(function="exact_match"),),
            algorithm=LearnerSpec(),
        )
