"""``penstock check``: rows of every stage, token by token, before a run begins."""

import json
from dataclasses import replace

import numpy as np
import pytest
from small_runs import grpo, run_of, sft, told

import published
from penstock.algos import DPO, GRPO, SFT, BradleyTerry
from penstock.cli.main import main
from penstock.config.parts import DataSpec, ModelSpec, Truncate
from penstock.config.run import RewardSpec
from penstock.models.files import load_text
from penstock.runtime import launch
from penstock.runtime.preflight import preflight, shortened

ROWS = [{"prompt": f"what is {n} + 4", "completion": f"{n + 4}", "chosen": f"{n + 4}", "rejected": "no"} for n in range(4)]
LONG = {"prompt": "why", "completion": "because " * 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("family")
    return published.publish("llama-3", base / "llama-3")


def data(tmp_path, *rows, **options):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows or ROWS))
    return DataSpec(source=str(file), chat=True, shuffle=False, **options)


def offline(folder, source, algorithm, **options):
    return sft(name="first", model=ModelSpec(path=str(folder)), data=source, algorithm=algorithm, **options)


def online(model, source, **options):
    reward = RewardSpec(function="exact_match", options={"column": "completion"})
    return grpo(model=ModelSpec(path=model), data=source, rewards=(reward,), steps=9, **options)


def looked_at(folder, tmp_path, algorithm, *given, rows=1, **options):
    """What is found of a stage on these rows."""
    (stage,) = preflight(run_of(offline(folder, data(tmp_path, *given, **options), algorithm)), tmp_path, rows=rows)
    return stage


def kinds(row):
    return [token.kind for token in row.tokens]


def test_a_chat_row_shows_what_its_template_writes_and_which_tokens_are_trained(folder, tmp_path):
    stage = looked_at(folder, tmp_path, SFT(), rows=2)
    text = load_text(str(folder))
    first = stage.rows[0]
    question = [{"role": "user", "content": "what is 0 + 4"}]
    asked = text.tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    assert [token.id for token in first.tokens[: len(asked)]] == list(asked)
    assert first.tokens[0].text == "<|begin_of_text|>"
    answer = first.tokens[len(asked) :]
    assert set(kinds(first)[: len(asked)]) == {"prompt"}
    assert "".join(token.text for token in answer) == "4<|eot_id|>"
    assert [token.kind for token in answer] == ["action"] * (len(answer) - 1) + ["end"]
    assert all((token.logp is not None) == (token.kind in ("action", "end")) for token in first.tokens)
    measured = -np.mean([token.logp for row in stage.rows for token in row.tokens if token.logp is not None])
    assert stage.metrics["loss"] == pytest.approx(measured, rel=1e-4)
    assert stage.remarks == ()


def test_rows_of_a_pair_follow_each_other_with_the_models_log_probs(folder, tmp_path):
    stage = looked_at(folder, tmp_path, DPO())
    assert [row.name for row in stage.rows] == ["row 1, 1 of 2", "row 1, 2 of 2"]
    assert "".join(token.text for token in stage.rows[1].tokens).endswith("no<|eot_id|>")


def test_a_reward_model_shows_a_score_for_each_row(folder, tmp_path):
    stage = looked_at(folder, tmp_path, BradleyTerry())
    assert [np.isfinite(row.facts["score"]) for row in stage.rows] == [True, True]


def test_a_cut_row_is_remarked_upon(folder, tmp_path):
    stage = looked_at(folder, tmp_path, SFT(), LONG, too_long=Truncate(tokens=40))
    (remark,) = stage.remarks
    assert "row 1 is trained up to" in remark
    assert "no end token" in remark


def test_samples_show_rewards_and_the_learners_log_probs_and_later_stages_start_from_earlier_ones(folder, tmp_path):
    run = run_of(offline(folder, data(tmp_path), SFT()), online("@first", data(tmp_path), tokens=5))
    _, grpo = preflight(replace(run, runtime="procs"), tmp_path, rows=1)  # in this process all the same
    assert len(grpo.rows) == 2
    for row in grpo.rows:
        assert {"finish", "reward", "exact_match"} <= set(row.facts)
        assert sum(token.logp is not None for token in row.tokens) == sum(kind in ("action", "end") for kind in kinds(row)) <= 5
    assert grpo.remarks == ()  # what a model says after one step tells nothing
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_stage_of_many_minibatches_is_looked_at_as_one(folder, tmp_path):
    """Its few rows would not divide into as many minibatches."""
    given = {"batch": 8, "minibatches": 4, "max_lag": 2, "algorithm": GRPO(clip=(0.2, 0.28))}
    stage = replace(online(str(folder), data(tmp_path)), **given)
    short = shortened(stage, 3)
    assert (short.batch, short.minibatches, short.max_lag, short.steps) == (3, 1, 0, 1)


def test_a_run_notes_the_remarks_as_it_begins(folder, tmp_path):
    stage = offline(folder, data(tmp_path, LONG, *ROWS[:1], too_long=Truncate(tokens=40)), SFT(), batch=2, steps=2)
    launch(run_of(stage), tmp_path / "run")
    (said,) = told(tmp_path / "run", what="remark")
    assert (said["stage"], said["step"]) == ("first", 0)
    assert "no end token" in said["reason"]


def test_the_command_prints_every_token_and_its_exit_code_says_whether_all_is_well(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["check", "quickstart", "--rows", "1", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "'<|im_end|>'" in shown
    for part in ("sft", "grpo", "prompt", "action", "end", "log-prob", "reward"):
        assert part in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [([], "name a recipe: penstock check quickstart"), (["quickstart", "--rows", "0"], "--rows 0: look at least at 1")],
)
def test_a_wrong_call_is_one_line(words, reason, capsys):
    assert main(["check", *words]) == 2
    assert reason in capsys.readouterr().err
