"""Specs from plain values and back."""

import json
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algos.distillation import Distillation, Divergence
from penstock.algos.grpo import GRPO
from penstock.algos.ppo import PPO
from penstock.algos.sft import SFT
from penstock.config.optimizers import AdamW
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.config.spec import difference, override, parse, plain, spec
from penstock.core.errors import SpecError
from penstock.core.types import Sampling


def example() -> Run:
    return Run(
        name="example",
        stages=(
            Offline(name="sft", model=ModelSpec(), data=DataSpec(source="a.jsonl"), algorithm=SFT()),
            Online(
                name="rl",
                model=ModelSpec(path="@sft"),
                data=DataSpec(source="gym:chain_sum", options={"max_terms": 2, "nested": [1, {"x": None}]}, size=10),
                rewards=(RewardSpec(function="exact_match"), RewardSpec(function="math", weight=0.5)),
                algorithm=GRPO(clip=(0.2, 0.28)),
                sampling=Sampling(stop=("a", "b")),
                max_lag=2,
            ),
        ),
    )


def test_a_run_comes_back_from_json():
    run = example()
    assert parse(Run, json.loads(json.dumps(plain(run)))) == run


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_number_outside_the_bound_of_its_annotation_is_refused(value):
    with pytest.raises(SpecError, match=r"PPO\.lam=.* must be from 0 to 1; 0\.95 is usual"):
        PPO(lam=value)
    with pytest.raises(SpecError, match=r"PPO\.lam"):
        replace(PPO(), lam=value)
    with pytest.raises(SpecError, match=r"PPO\.lam"):
        parse(PPO, {"lam": value})


def test_every_spec_writes_its_class_name_as_kind():
    written = plain(example())
    assert written["kind"] == "Run"
    assert [stage["kind"] for stage in written["stages"]] == ["Offline", "Online"]
    assert written["stages"][1]["algorithm"]["kind"] == "GRPO"


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (LearnerSpec, {"warmup": 1.5}, "warmup=1.5 is not an integer"),
        (LearnerSpec, {"warmup": True}, "warmup=True is not an integer"),
        (LearnerSpec, {"learning_rate": "fast"}, "learning_rate='fast' is not a number"),
        (LearnerSpec, {"share_prefix": 1}, "share_prefix=1 is not a boolean"),
        (AdamW, {"betas": [0.9]}, "needs exactly 2 values"),
        (AdamW, {"betas": 0.9}, "betas=0.9 is not a list"),
        (LearnerSpec, {"dtype": "float8"}, "is not one of 'float32', 'bfloat16'"),
        (DataSpec, {"source": "a", "options": [1]}, "is not a mapping"),
        (DataSpec, {}, "source"),
        (Sampling, {"stop": "abc"}, "stop='abc' is not a list"),
        (LearnerSpec, {"learning_rat": 1.0}, r'unknown field "learning_rat"; did you mean "learning_rate"\?'),
        (DataSpec, {"qqqq": 1}, "known are: source, name"),
    ],
)
def test_a_wrong_type_and_an_unknown_field_are_refused(kind, values, message):
    with pytest.raises(SpecError, match=message):
        parse(kind, values)


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("learner", {"clip_norm": "much"}, r"stages\[1\]\.learner\.clip_norm='much' is not a number"),
        ("algorithm", {"kind": "GRP"}, r'stages\[1\]\.algorithm: unknown kind "GRP"; did you mean "GRPO"\?'),
        (None, {"batch": 10, "minibatches": 3}, "batch=10 does not divide into minibatches=3"),
    ],
    ids=["a nested problem by its dotted path", "an unknown algorithm with the nearest one", "an impossible combination"],
)
def test_what_a_run_cannot_hold_is_refused_while_parsing(part, values, message):
    written = plain(example())
    stage = written["stages"][1]
    (stage[part] if part else stage).update(values)
    with pytest.raises(SpecError, match=message):
        parse(Run, written)


def test_an_integer_is_a_number():
    assert parse(LearnerSpec, {"learning_rate": 1}).learning_rate == 1.0


def test_override_by_dotted_path_changes_that_leaf_alone():
    changed = override(example(), "stages.rl.learner.learning_rate", "3e-4")
    assert difference(plain(example()), plain(changed)) == ["stages[1].learner.learning_rate: 1e-06 → 0.0003"]


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("stages.rl.samples", "4", 4),
        ("stages.rl.name", "other", "other"),
        ("stages.rl.data.name", "7", "7"),
        ("stages.rl.learner.share_prefix", "false", False),
        ("stages.rl.learner.share_prefix", "False", False),
        ("stages.rl.learner.optimizer.betas", "[0.8, 0.9]", (0.8, 0.9)),
        ("stages.rl.sampling.stop", '["x"]', ("x",)),
        ("stages.rl.reference", "null", None),
        ("stages.rl.algorithm.clip", "null", None),
        ("seed", "12", 12),
    ],
)
def test_override_reads_text_by_the_type_of_its_field(path, text, value):
    run: Any = replace(example(), stages=(example().stages[0], replace(example().stages[1], max_lag=0)))
    found: Any = override(run, path, text)
    for name in path.replace("stages.rl", "stages").split("."):
        found = found[1] if isinstance(found, tuple) else getattr(found, name)
        found = found[1] if name == "stages" else found
    assert found == value


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("sed", "1", 'unknown field "sed" of Run; did you mean "seed"'),
        ("stages.rl.learner.warmp", "1", 'unknown field "warmp" of LearnerSpec; did you mean "warmup"'),
        ("stages.sfd.batch", "1", 'no element "sfd"; did you mean "sft"'),
        ("seed.x", "1", "has no fields"),
        ("stages.rl.samples", "many", "samples='many' is not an integer"),
        ("stages.rl.samples", "1", "set samples=2 or more"),
    ],
)
def test_override_refuses_what_cannot_be_set(path, text, message):
    with pytest.raises(SpecError, match=message):
        override(example(), path, text)


def test_difference_lists_every_leaf_that_changed():
    old, new = {"a": 1, "b": {"c": [1, 2]}, "d": [1]}, {"a": 1, "b": {"c": [1, 3]}, "d": [1, 2]}
    assert difference(old, new) == ["b.c[1]: 2 → 3", "d: [1] → [1, 2]"]


@spec
class Leaf:
    """For the round trip below."""

    number: float = 0.0
    count: int = 0
    words: tuple[str, ...] = ()
    pair: tuple[int, float] | None = None
    mode: Literal["a", "b"] = "a"
    flag: bool = False


leaves = st.builds(
    Leaf,
    number=st.floats(allow_nan=False),
    count=st.integers(),
    words=st.lists(st.text(), max_size=3).map(tuple),
    pair=st.none() | st.tuples(st.integers(), st.floats(allow_nan=False)),
    mode=st.sampled_from(["a", "b"]),
    flag=st.booleans(),
)


@given(leaves)
def test_any_values_survive_the_round_trip(leaf):
    assert parse(Leaf, plain(leaf)) == leaf


@given(leaves, leaves)
def test_difference_is_empty_exactly_for_equal_specs(one, other):
    assert (difference(plain(one), plain(other)) == []) == (one == other)


def test_a_field_that_is_called_kind_is_kept_in_plain_values():
    forward = Distillation(divergence=Divergence(kind="forward"))
    assert parse(Distillation, json.loads(json.dumps(plain(forward)))) == forward
