"""A person who comes from TRL or verl and writes a field's name there: the answer is what does it here, and can be followed."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import penstock as package
from penstock.algos import DPO, GRPO, ILQL, KTO, ORPO, PPO, SFT, BradleyTerry, Distillation, LeaveOneOut, OnlineDPO
from penstock.api import reward, rows
from penstock.cli.recipe import build
from penstock.config.elsewhere import TABLE, Row, as_flag, as_keyword, has, rows_of
from penstock.config.elsewhere import rows as table
from penstock.config.leaves import set_leaves
from penstock.config.run import LearnerSpec, ModelSpec, Run
from penstock.core.errors import SpecError
from penstock.one_call import compose

DATA = "rows.jsonl"
ONLINE = {"prompts": DATA, "reward": "exact_match"}
CALLS: dict[str, dict[str, Any]] = {
    "GRPOConfig": ONLINE,
    "RLOOConfig": {**ONLINE, "algorithm": LeaveOneOut()},
    "verl PPO": {**ONLINE, "algorithm": PPO()},
    "OnlineDPOConfig": {**ONLINE, "algorithm": OnlineDPO()},
    "distillation": {**ONLINE, "algorithm": Distillation(), "reference": {"path": "teacher"}},
    "SFTConfig": {"samples": DATA},
    "_BaseConfig": {"samples": DATA},
    "TrainingArguments": ONLINE,
    "verl SFT": {"samples": DATA},
    "DPOConfig": {"preferences": DATA},
    "RewardConfig": {"preferences": DATA, "algorithm": BradleyTerry()},
    "KTOConfig": {"samples": DATA, "algorithm": KTO()},
    "ORPO": {"preferences": DATA, "algorithm": ORPO()},
}
"""Calls of ``penstock.train`` that do what trainers of TRL and verl do."""

NAMES = {
    section.partition("\n")[0]: section.partition("\n")[2].split()
    for section in (Path(__file__).parent / "elsewhere_names.txt").read_text().split("\n# ")[1:]
}
"""All names of each configuration, from ``elsewhere_names.txt``."""


def made(**given: Any) -> Run:
    return compose(ModelSpec(preset="1m"), given, rows, reward)


def refused(**given: Any) -> str:
    with pytest.raises(SpecError) as caught:
        made(**given)
    return str(caught.value)


@pytest.mark.parametrize("configuration", NAMES)
def test_every_name_is_answered_by_the_table_and_none_by_what_is_spelt_alike(configuration: str) -> None:
    wrong = {}
    for name in NAMES[configuration]:
        said = refused(**CALLS[configuration], **{name: object()})  # which is of no field's type
        answered = said.startswith("unknown field") and any(said.endswith(row.note) and "; " in said for row in rows_of(name))
        answered = answered or " of TRL and verl is another thing; here it is " in said
        same = " is not " in said and any(path.endswith(name) for row in rows_of(name) for path, _ in row.shown)
        if not (answered or same) or "did you mean" in said or "known are" in said:
            wrong[name] = said
    assert wrong == {}


@pytest.mark.parametrize("configuration", ["GRPOConfig", "DPOConfig", "verl PPO", "verl SFT"])
def test_the_command_line_answers_alike(configuration: str) -> None:
    run, wrong = made(**CALLS[configuration]), {}
    for name in NAMES[configuration]:
        with pytest.raises(SpecError) as caught:
            set_leaves(run, [(name.replace("-", "_"), "such_a_value")])
        said = str(caught.value)
        known = any(has(holder, name) for holder in (run, *run.stages))
        answered = f"unknown flag --{name.replace('-', '_')}; " in said
        if not known and not (answered and any(said.endswith(row.note) for row in rows_of(name))):
            wrong[name] = said
    assert wrong == {}


EVALUATION = {"evaluation.every": 5, "evaluation.samples": 2, "evaluation.temperature": 1.0}
FIELDS = [row for row in table() if row.shown]


def where(row: Row) -> tuple[dict[str, Any], Any]:
    """A call in whose run the row's fields are, and what holds them: the run and its stage."""
    for call in CALLS.values():
        run = made(**call)
        holder = {**vars(run), "folder": "", "resume": "", **vars(run.stages[0])}
        if all(has(holder, path) for path in row.needed):
            return call, holder
    raise AssertionError(f"no stage has {row.needed}")


def value_at(holder: Any, path: str) -> Any:
    def inner(held: Any, part: str) -> Any:
        held = held[0] if isinstance(held, tuple) else held
        return held[part] if isinstance(held, dict) else getattr(held, part, None)

    return reduce(inner, path.split("."), holder)


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.names[0])
def test_what_a_row_advises_can_be_written_so(row: Row) -> None:
    call, holder = where(row)
    given = dict(call)
    for path, example in row.shown:
        if path in ("folder", "resume"):
            assert path in inspect.signature(package.api.train).parameters
            continue
        written = as_keyword(holder, "", path, example).replace("data=…", "data=HELD").replace("…", "VALUE")
        value = EVALUATION.get(path, value_at(holder, path))
        known = {"penstock": package, "VALUE": value, "FUNCTION": "exact_match", "HELD": rows("held.jsonl")}
        given |= eval(f"dict({written})", known)
    made(**given)


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.names[0])
def test_what_a_row_advises_is_a_flag(row: Row) -> None:
    call, holder = where(row)
    run = made(**call)
    leaves = []
    for path, example in row.shown:
        if path in ("folder", "resume"):
            continue
        stage = path.partition(".")[0] in vars(run.stages[0])
        written = as_flag(run.stages[0] if stage else holder, "train." if stage else "", path, example)
        words = shlex.split(written.replace("…", "1"))
        value = value_at(holder, path)
        text = str(value) if example == "" and value is not None and not words[1].startswith(("{", "[")) else words[1]
        leaves.append((words[0][2:], text))
    for flag, text in leaves:
        if "(" in text:  # the repr of a spec: that the field is there is enough
            assert has({**vars(run), "train": run.stages[0]}, flag)
        else:
            set_leaves(run, [leaf for leaf in leaves if "(" not in leaf[1]])


MEANINGS = [
    ("GRPOConfig", {"beta": 0.04}, r"another thing; here it is kl=.*; for the one here write sampling="),
    ("RLOOConfig", {"beta": 0.04}, r'is another thing; here it is kl=\{"coefficient": …\}'),
    ("distillation", {"beta": 0.5}, r"is another thing; here it is divergence="),
    ("OnlineDPOConfig", {"beta": 0.1}, r"is another thing; here it is preference=\{'kind': 'DPO', 'beta': 0.1\}"),
    ("ORPO", {"beta": 0.1}, r"here it is weight=…: of the odds ratio"),
    ("SFTConfig", {"beta": 0.1}, r"here it is algorithm.kl.coefficient, of other stages or algorithms"),
    ("GRPOConfig", {"top_k": -1}, r"use 0 for no limit"),
    ("GRPOConfig", {"epsilon": 0.2}, r"clip=\[0.2, 0.28\]: low and high"),
    ("GRPOConfig", {"clip": 0.2}, r'say algorithm=penstock.GRPO\(clip=…\) or scaling=\{"clip": …\}'),
    ("GRPOConfig", {"loss_type": "dapo"}, r"aggregate='token'"),
    ("DPOConfig", {"loss_type": "exo_pair"}, r"objective=\{'sigmoid': 0.8"),
    ("SFTConfig", {"loss_type": "nll"}, r"the algorithm is the loss"),
    ("GRPOConfig", {"delta": 1.5}, r"'dual': 3.0"),
    ("GRPOConfig", {"save_steps": 5}, r'unknown field "save_steps"; here it is checkpoint=\{"every": …\}'),
    ("SFTConfig", {"per_device_train_batch_size": 8}, r"here it is batch=…: rows of a step"),
    ("GRPOConfig", {"per_device_train_batch_size": 8}, r"here it is batch=… and samples=…"),
    ("verl PPO", {"actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}}}}, r'actor.optim.lr"; here it is learner='),
    ("GRPOConfig", {"learner": {"max_grad_norm": 1.0}}, r'"learner.max_grad_norm"; here it is learner=\{"clip_norm": …\}'),
    ("GRPOConfig", {"checkpoint": {"save_steps": 5}}, r'unknown field "save_steps"; here it is checkpoint.every'),
    ("verl PPO", {"algorithm.kl_ctrl.target_kl": 0.1}, r"nats a sequence, where verl's are a token's"),
]


@pytest.mark.parametrize(("configuration", "given", "said"), MEANINGS)
def test_a_name_of_another_meaning_or_unit_is_refused_with_what_is_meant(configuration: str, given: Any, said: str) -> None:
    assert re.search(said, refused(**CALLS[configuration], **given))


def test_a_temperature_of_imitation_is_not_that_of_sampling() -> None:
    said = refused(samples=DATA, algorithm=package.AWAC(), temperature=0.5)
    assert said.endswith("for the one here write algorithm=penstock.AWAC(temperature=…)")


@pytest.mark.parametrize(
    ("configuration", "given", "path", "value"),
    [
        ("DPOConfig", {"beta": 0.3}, "algorithm.beta", 0.3),
        ("KTOConfig", {"beta": 0.3}, "algorithm.beta", 0.3),
        ("GRPOConfig", {"kl": {"coefficient": 0.04}}, "algorithm.kl.coefficient", 0.04),
        ("GRPOConfig", {"sampling": {"beta": 2.0}}, "sampling.beta", 2.0),
        ("GRPOConfig", {"clip": [0.2, 0.28]}, "algorithm.clip", (0.2, 0.28)),
        ("GRPOConfig", {"clip": None, "objective": "SAPO"}, "algorithm.clip", None),
        ("GRPOConfig", {"scaling": {"clip": 5.0}}, "scaling.clip", 5.0),
    ],
)
def test_what_means_the_same_is_set(configuration: str, given: Any, path: str, value: Any) -> None:
    assert attrgetter(path)(made(**CALLS[configuration], **given).stages[0]) == value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--save_steps=5", "unknown flag --save_steps; here it is --checkpoint.every …: steps"),
        ("--grpo.beta 0.1", "unknown flag --grpo.beta; here it is --grpo.algorithm.kl.coefficient …"),
        ("--lr 1e-4", "here it is --sft.learner.learning_rate … or --grpo.learner.learning_rate …"),
        ("--actor-rollout-ref.rollout.n 8", "here it is --grpo.samples …"),
        ("--grpo.learner.lr 1e-4", "here it is --grpo.learner.learning_rate …"),
        ("--data.train_batch_size 8", "here it is --sft.batch … or --grpo.batch …"),
        ("--algorithm.adv_estimator gae", "here it is --grpo.algorithm …"),
        ("--output_dir x", "here it is --runs FOLDER and --name NAME"),
        ("--resume_from_checkpoint x", "here it is --resume RUN"),
        ("--grpo.eval_steps 5", "here it is --grpo.evaluation.every …"),
        ("--gradient_accumulation_steps 4", "here it is --sft.learner.token_budget …"),
        ('--grpo.learner {"weight_decay":0.1}', 'unknown field "weight_decay"; here it is learner.optimizer={"kind"'),
    ],
)
def test_a_flag_of_theirs_is_answered_with_ours(words: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        build("quickstart", shlex.split(words) if "{" not in words else words.split())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LearnerSpec(lr=1e-4), 'LearnerSpec: unknown field "lr"; here it is learner.learning_rate'),
        (lambda: GRPO(beta=0.04), 'GRPO: unknown field "beta"; here it is algorithm.kl.coefficient'),
        (lambda: DPO(loss_type="ipo"), 'DPO: unknown field "loss_type"; here it is algorithm.objective={"sigmoid": 0.8'),
        (lambda: replace(SFT(), packing=True), 'SFT: unknown field "packing"; here it is learner.token_budget'),
        (lambda: ILQL(gama=1.0), 'ILQL: unknown field "gama"; '),
    ],
)
def test_a_spec_that_is_made_with_their_name_says_ours(make: Any, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value).startswith(said)


def test_a_recipe_that_names_a_field_of_sampling_as_trl_does_is_answered(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from penstock import Sampling\ndef mine(): return Sampling(max_completion_length=9)\n")
    with pytest.raises(SpecError, match=r"'max_completion_length'; here it is sampling.max_new_tokens \(mine.py:2\)"):
        build(f"{tmp_path}/mine.py:mine", [])


def test_the_last_part_of_a_name_is_enough_where_it_is_the_only_one() -> None:
    (row,) = rows_of("total_epochs")
    assert [path for path, _ in row.shown] == ["steps"]
    assert rows_of("enable") == []


def test_a_path_of_ours_is_not_taken_for_a_name_of_theirs() -> None:
    for path in ("roles.engine.dtype", "roles.engine.options", "environment.turns", "learner.lora.rank", "learner.device"):
        assert rows_of(path) == []


def test_the_table_has_three_columns_and_no_name_twice_for_the_same() -> None:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    assert {line.count("\t") for line in lines} == {2}
    needs = [(name, tuple(row.needed)) for row in table() for name in row.names]
    assert len(set(needs)) == len(needs)


def test_the_table_of_the_first_page_is_that_of_the_answers() -> None:
    page = (Path(__file__).parents[2] / "docs/getting_started.md").read_text(encoding="utf-8")
    lines = page.partition("## Coming from TRL or verl")[2].splitlines()
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:4]] for line in lines if line.startswith("| ")]
    wrong = [
        (name, ours)
        for *theirs, ours in cells
        for name in (word for cell in theirs for word in cell)
        if not {path for row in rows_of(name) for path, _ in row.shown} & set(ours)
    ]
    assert len(cells) > 12
    assert wrong == []
