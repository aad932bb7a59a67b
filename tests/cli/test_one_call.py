"""``penstock.train`` with a model and what is at hand: the data says the algorithm, fields go by their own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as package
from penstock.algos import DPO, GRPO, ILQL, PPO, SFT
from penstock.api import check, reward, rows
from penstock.config.run import EvaluationSpec, ModelSpec, Offline, Online, Run
from penstock.core.errors import DataError, SpecError
from penstock.data.units import KINDS
from penstock.one_call import compose

SMALL = ModelSpec(preset="1m", layers=1, vocabulary=300, context=32)


def vowels(sample: Any, columns: Any) -> float:
    return float(sum(letter in "aeiou" for letter in sample.text))


def made(model: Any = SMALL, **given: Any) -> Run:
    return compose(model, given, rows, reward)


@pytest.mark.parametrize(
    ("given", "stage", "algorithm"),
    [
        ({"prompts": ["a"], "reward": vowels}, Online, GRPO()),
        ({"samples": ["a", "b"], "rewards": [0.0, 1.0]}, Offline, ILQL()),
        ({"preferences": [("p", "good", "bad")]}, Offline, DPO()),
        ({"samples": [("p", "answer")]}, Offline, SFT()),
    ],
    ids=["prompts", "rewarded samples", "preferences", "samples"],
)
def test_what_is_at_hand_names_the_algorithm(given: dict[str, Any], stage: type, algorithm: Any) -> None:
    made_stage = made(**given).stages[0]
    assert (type(made_stage), made_stage.algorithm) == (stage, algorithm)


@pytest.mark.parametrize(
    ("model", "spec"),
    [("3m", ModelSpec(preset="3m")), ("some/folder", ModelSpec(path="some/folder")), (SMALL, SMALL)],
)
def test_a_model_is_a_preset_a_path_or_a_spec(model: Any, spec: ModelSpec) -> None:
    assert made(model, samples=["a"]).stages[0].model == spec


def test_fields_of_the_run_the_stage_and_the_specs_within_go_by_their_names() -> None:
    run = made(prompts=["a"], reward=vowels, seed=3, steps=7, learning_rate=1e-3, max_new_tokens=5, samples=4)
    stage = run.stages[0]
    assert isinstance(stage, Online)
    found = (run.seed, stage.steps, stage.learner.learning_rate, stage.sampling.max_new_tokens, stage.samples)
    assert found == (3, 7, 1e-3, 5, 4)


def test_a_mapping_changes_single_fields_of_a_spec() -> None:
    stage = made(samples=["a"], learner={"warmup": 3}, learning_rate=1e-3).stages[0]
    assert (stage.learner.warmup, stage.learner.learning_rate) == (3, 1e-3)


def test_an_algorithm_with_values_gets_its_critic() -> None:
    stage = made(prompts=["a"], reward=vowels, algorithm=PPO(), learning_rate=1e-3).stages[0]
    assert (stage.learner.critic, stage.learner.learning_rate) == ("separate", 1e-3)
    assert made(prompts=["a"], reward=vowels, algorithm=PPO()).stages[0].learner.learning_rate == 1e-6


def test_several_rewards_add_up() -> None:
    stage = made(prompts=["a"], reward=[vowels, reward("exact_match", weight=0.5)]).stages[0]
    assert isinstance(stage, Online)
    assert [one.weight for one in stage.rewards] == [1.0, 0.5]


def test_held_out_rows_are_given_as_the_others_are() -> None:
    stage = made(samples=[("p", "answer")], evaluation=[("q", "other")]).stages[0]
    assert stage.evaluation is not None
    assert stage.evaluation.data == rows([{"prompt": "q", "completion": "other"}])


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"prompts": [{"messages": [{"role": "user", "content": "sky?"}]}], "reward": vowels}, "sky?"),
        ({"samples": [{"instruction": "sky?", "input": "", "output": "blue"}]}, "sky?"),
        ({"samples": [{"messages": [{"role": "user", "content": "sky?"}, {"role": "assistant", "content": "blue"}]}]}, "sky?"),
        ({"preferences": [{"chosen": "sky? blue", "rejected": "sky? red"}]}, "sky?"),
        ({"samples": [{"completion": "blue"}]}, ""),
    ],
    ids=["messages", "Alpaca", "a conversation", "an implicit prompt", "a text alone"],
)
def test_rows_at_hand_of_other_layouts_read_as_those_of_files(given: dict[str, Any], asked: str) -> None:
    stage = made(**given).stages[0]
    item = KINDS["prompts" if "prompts" in given else stage.algorithm.data](stage.data, Path(), 0)(0)
    assert getattr(item, "prompt", item).text == asked


def test_rows_without_what_is_asked_are_refused_and_no_empty_prompts() -> None:
    data = made(prompts=[{"question": "sky?"}], reward=vowels).stages[0].data
    with pytest.raises(DataError, match="'prompt' is undefined"):
        KINDS["prompts"](data, Path(), 0)(0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "got none of them"),
        ({"prompts": ["a"], "samples": ["b"], "reward": vowels}, "got prompts and samples"),
        ({"prompts": ["a"]}, "reward=… must score"),
        ({"samples": ["a"], "reward": vowels}, "reward=… goes with prompts"),
        ({"preferences": [("p", "c", "r")], "rewards": [1.0]}, "rewards=… goes with samples"),
        ({"samples": ["a", "b"], "rewards": [1.0]}, "2 samples but 1 rewards"),
        ({"samples": "rows.jsonl", "rewards": [1.0]}, "bring theirs in a column"),
        ({"samples": [3]}, "row 0 is 3"),
        ({"preferences": [("p", "c")]}, "prompt, chosen, rejected"),
        ({"samples": ["a"], "learning_rat": 1e-3}, 'did you mean "learning_rate"'),
        ({"samples": ["a"], "max_steps": 3}, 'unknown field "max_steps"; here it is steps=…'),
        ({"samples": ["a"], "learner": {"warm": 1}}, 'unknown field "warm"'),
        ({"samples": ["a"], "steps": "many"}, "steps='many' is not an integer"),
        ({"prompts": ["a"], "reward": vowels, "seed": "x"}, "seed"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        made(**given)


def test_a_field_beside_a_run_is_refused() -> None:
    with pytest.raises(SpecError, match="says everything itself; leave out steps"):
        package.train(made(samples=["a"]), steps=3)


@pytest.mark.parametrize(
    "given",
    [
        {"prompts": ["ab", "ba"], "reward": vowels, "samples": 2, "batch": 2, "max_new_tokens": 3},
        {"samples": [("ab", "c"), ("ba", "d")], "rewards": [0.0, 1.0], "batch": 2},
        {"preferences": [("ab", "c", "d")] * 2, "batch": 2},
        {"samples": ["abc", "bcd"], "batch": 2},
    ],
    ids=["prompts", "rewarded samples", "preferences", "samples"],
)
def test_one_call_trains_and_gives_metrics_and_model(given: dict[str, Any], tmp_path: Path) -> None:
    result = package.train(SMALL, folder=tmp_path / "run", progress=False, steps=1, device="cpu", threads=1, **given)
    assert result.metrics[-1]["step"] == 1
    assert result.model.context == 32


def test_a_completion_does_not_lose_what_was_asked() -> None:
    data = made(samples=[{"question": "What?", "completion": "R"}]).stages[0].data
    with pytest.raises(DataError, match="'prompt' is undefined"):
        KINDS["examples"](data, Path(), 0)(0)


@pytest.mark.parametrize("given", [{"chat": True}, {"data": {"chat": True}}], ids=["a keyword", "a field of the data"])
def test_held_out_rows_read_as_the_others_do(given: dict[str, Any]) -> None:
    stage = made(samples=[("p", "answer")], evaluation=[("q", "other")], **given).stages[0]
    assert stage.data.chat is True
    assert stage.evaluation is not None
    assert stage.evaluation.data.chat is True


def test_held_out_rows_in_a_spec_are_rows() -> None:
    stage = made(samples=[("p", "answer")], evaluation=EvaluationSpec(data=[("q", "other")], every=3)).stages[0]  # type: ignore[arg-type]
    assert stage.evaluation is not None
    assert (stage.evaluation.data, stage.evaluation.every) == (rows([{"prompt": "q", "completion": "other"}]), 3)


def test_what_is_no_message_is_refused_in_one_line_with_its_stage() -> None:
    with pytest.raises(DataError, match=r'^train: .*nobody reads "mood"'):
        check("1m", samples=[{"messages": [{"role": "user", "content": "a", "mood": "good"}]}], progress=False)
