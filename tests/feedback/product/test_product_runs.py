"""Training on product feedback: pinned like votes, with KTO's weights, and never as the only reward."""

import json
import time
from dataclasses import replace

import pytest
from feedback_examples import everything
from product_examples import opened, people, reply, tenant, thumbs

import penstock
from penstock.algos import DPO, GRPO, KTO, SFT, BradleyTerry
from penstock.config.run import DataSpec, EvaluationSpec, LearnerSpec, ModelSpec, Offline, Online, RewardSpec, Run
from penstock.core.errors import DataError, SpecError
from penstock.core.types import Sampling
from penstock.product.log import record
from penstock.product.quarantine import rule, waiting
from penstock.product.signals import Signal
from penstock.product.source import pin
from penstock.runtime.check import check_stages, require_more_than_signals
from penstock.runtime.pinning import pinned

CLICKS = DataSpec(source="feedback:f.db", options={"form": "product"})
VOTES = DataSpec(source="feedback:f.db")
TINY = ModelSpec(preset="1m", layers=1, vocabulary=300, context=64)


def fill(path, good="ab", bad="c"):
    with opened(path) as store:
        who = tenant(store)
        for names, kind in ((good, "thumbs_up"), (bad, "thumbs_down")):
            for name in names:
                thumbs(store, who, ["u1", "u2", "u3"], kind, name)


def fill_corrections(path, approve=True):
    with opened(path, time.time) as store:  # a source reads by the real clock what has expired
        people(store)
        who = tenant(store)
        record(store, who, [Signal("e1", "u1", "edit", reply("3 + 4 ="), text="7, and nothing else")])
        if approve:
            rule(store, waiting(store)[0].id, "approved", "judy")


def kto(data=CLICKS, name="kto", model=TINY, **more):
    return Offline(
        name=name, model=model, data=data, algorithm=KTO(), learner=LearnerSpec(learning_rate=1e-3), batch=2, steps=2, **more
    )


def sft(data=VOTES):
    return Offline(name="sft", model=TINY, data=data, algorithm=SFT(), steps=1)


def rewarded(*functions, model="@sft", name="ppo"):
    rewards = tuple(RewardSpec(function=function) for function in functions)
    return Online(name=name, model=ModelSpec(path=model), data=VOTES, rewards=rewards, algorithm=GRPO(clip=(0.2, 0.28)))


def run_of(*stages):
    return Run(name="clicks", stages=stages)


# As data


def test_product_labels_are_rows_for_kto(tmp_path):
    fill(tmp_path / "f.db")
    rows = everything(CLICKS, tmp_path)
    assert [(row["prompt"], row["completion"], row["label"]) for row in rows] == [
        ("prompt a", "answer a", True),
        ("prompt b", "answer b", True),
        ("prompt c", "answer c", False),
    ]


def test_a_pinned_source_reads_the_same_rows_while_signals_come_in(tmp_path):
    fill(tmp_path / "f.db")
    spec = pin(CLICKS, tmp_path)
    rows = everything(spec, tmp_path)
    with opened(tmp_path / "f.db") as store:
        thumbs(store, tenant(store), ["u1", "u2", "u3"], name="new")
    assert spec.options["until"] == 9
    assert everything(spec, tmp_path) == rows
    assert len(everything(CLICKS, tmp_path)) == 4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"user": 3}, 'unknown option "user"; did you mean "users"'),
        ({"users": 4}, "9 signals give no label"),
        ({"users": 1}, "users=1"),
        ({"form": "product_corrections"}, "no approved correction"),
        ({"form": "products"}, 'did you mean "product"'),
        ({"form": "prompts", "tenant": "shop"}, "needs the option rows"),
        ({"form": "prompts", "tenant": "bank", "rows": "p.jsonl"}, "no tenant 'bank'"),
        ({"form": "prompts", "tenant": "shop", "rows": "p.jsonl"}, "there is no such file"),
    ],
)
def test_what_gives_no_rows_is_refused(tmp_path, options, problem):
    fill(tmp_path / "f.db")
    with pytest.raises((DataError, penstock.PenstockError), match=problem):
        everything(replace(CLICKS, options={"form": "product", **options}), tmp_path)


def test_approved_edits_are_rows_for_sft_and_pairs(tmp_path):
    fill_corrections(tmp_path / "f.db")
    (row,) = everything(DataSpec(source="feedback:f.db", options={"form": "product_corrections"}), tmp_path)
    assert (row["completion"], row["rejected"]) == ("7, and nothing else", "answer 3 + 4 =")


def prompts(path, **options):
    path.write_text("".join(json.dumps({"prompt": f"prompt 3 + {i} =", "answer": str(3 + i)}) + "\n" for i in range(20)))
    given = {"form": "prompts", "tenant": "shop", "rows": path.name, "control": 0.5, "least": 0.1, **options}
    return DataSpec(source="feedback:f.db", options=given, prompt="{{ corrections }}{{ prompt }}")


def test_prompts_are_given_corrections_in_one_arm_and_none_in_the_other(tmp_path):
    from penstock.data.sampler import prompts as drawn

    fill_corrections(tmp_path / "f.db")
    spec = prompts(tmp_path / "p.jsonl")
    made = [drawn(replace(spec, shuffle=False), tmp_path, 0)(ordinal) for ordinal in range(20)]
    arms = {prompt.columns["arm"] for prompt in made}
    assert arms == {"corrections", "control"}
    for prompt in made:
        with_correction = prompt.columns["arm"] == "corrections"
        assert ("7, and nothing else" in prompt.text) == with_correction
        assert prompt.text.endswith(f"{prompt.columns['prompt']}")
        assert len(prompt.columns["corrections_used"]) == with_correction


def test_prompts_without_an_approved_correction_stay_as_they_are(tmp_path):
    fill_corrections(tmp_path / "f.db", approve=False)
    assert {row["corrections"] for row in everything(prompts(tmp_path / "p.jsonl"), tmp_path)} == {""}


def test_pinned_prompts_stay_the_same_when_rulings_and_time_go_on(tmp_path):
    fill_corrections(tmp_path / "f.db")
    begun = run_of(replace(rewarded("exact_match", model="m"), data=prompts(tmp_path / "p.jsonl")))
    kept = pinned(begun, tmp_path)
    assert set(kept.stages[0].data.options) >= {"until", "at", "content"}
    rows = everything(kept.stages[0].data, tmp_path)
    used = {name for row in rows for name in row["corrections_used"]}
    with opened(tmp_path / "f.db", time.time) as store:
        rule(store, used.pop(), "withdrawn", "root")
    assert everything(kept.stages[0].data, tmp_path) == rows
    assert pinned(begun, tmp_path, kept) == kept
    assert pinned(begun, tmp_path) != kept


# Never alone


ALONE = "kto: product signals are all that it learns from"
MEASURED = kto(evaluation=EvaluationSpec(data=VOTES))
NOTHING = RewardSpec(function="exact_match", weight=0.0)
REWARD = Offline(name="reward", model=TINY, data=VOTES, algorithm=BradleyTerry(), steps=1)
PAIRS = Offline(name="dpo", model=TINY, data=VOTES, algorithm=DPO(), steps=1)


@pytest.mark.parametrize(
    ("stages", "why"),
    [
        pytest.param((kto(),), ALONE, id="alone"),
        pytest.param((sft(), kto(model=ModelSpec(path="@sft"))), ALONE, id="after imitation"),
        pytest.param((kto(evaluation=EvaluationSpec(data=CLICKS)),), ALONE, id="measured on clicks"),
        pytest.param((kto(), kto(VOTES, "other")), ALONE, id="votes beside it, not of it"),
        pytest.param(
            (sft(), kto(), rewarded("model:@kto")),
            "^(kto|ppo): (product signals are all|all its rewards)",
            id="the only reward",
        ),
        pytest.param(
            (kto(VOTES, "votes"), MEASURED, rewarded("model:@kto", model="@votes")),
            "ppo: all its rewards were learned from product signals",
            id="all rewards of clicks, whatever the policy was before",
        ),
        pytest.param(
            (sft(), kto(), replace(rewarded("model:@kto"), rewards=(RewardSpec(function="model:@kto"), NOTHING))),
            ALONE,
            id="a reward that counts nothing does not help",
        ),
        pytest.param((sft(CLICKS),), "SFT would imitate what users disliked", id="imitating everything that users saw"),
    ],
)
def test_product_signals_as_the_only_feedback_are_refused(stages, why):
    with pytest.raises(SpecError, match=why):
        require_more_than_signals(run_of(*stages))


@pytest.mark.parametrize(
    "stages",
    [
        (kto(VOTES),),
        (MEASURED,),
        (sft(), MEASURED, REWARD, PAIRS, rewarded("model:@kto+@reward")),  # a reward model of votes is a reward of votes
        (kto(VOTES, "votes"), kto(model=ModelSpec(path="@votes"))),
        (kto(), kto(VOTES, "votes", ModelSpec(path="@kto"))),
        (kto(), rewarded("exact_match", model="@kto")),
        (sft(), kto(), rewarded("model:@kto", "exact_match")),
    ],
)
def test_with_votes_or_checked_answers_beside_them_they_are_allowed(stages):
    assert require_more_than_signals(run_of(*stages)) is None


def test_a_run_of_clicks_alone_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(SpecError, match="product signals are all that it learns from"):
        check_stages(run_of(kto()), tmp_path)


# End to end


def test_kto_trains_on_product_labels_and_records_their_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "f.db", good="abcdef", bad="gh")
    held_out = [{"prompt": "p", "completion": "good", "label": 1}, {"prompt": "p", "completion": "bad", "label": 0}]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    stage = kto(evaluation=EvaluationSpec(data=DataSpec(source="held.jsonl")))
    penstock.train(run_of(stage), folder=tmp_path / "run", progress=False)
    options = json.loads((tmp_path / "run" / "run.json").read_text())["stages"][0]["data"]["options"]
    assert (options["form"], options["until"], len(options["content"])) == ("product", 24, 64)


def test_a_run_trains_with_corrections_in_its_prompts_and_measures_both_arms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill_corrections(tmp_path / "f.db")
    data = prompts(tmp_path / "p.jsonl")
    stage = Online(
        name="grpo",
        model=ModelSpec(preset="1m", vocabulary=300, context=2048),
        data=data,
        rewards=(RewardSpec(function="exact_match"),),
        algorithm=GRPO(clip=(0.2, 0.28)),
        sampling=Sampling(max_new_tokens=2),
        samples=2,
        batch=10,
        steps=2,
        evaluation=EvaluationSpec(data=replace(data, name="held-out")),
    )
    penstock.train(run_of(stage), folder=tmp_path / "run", progress=False)
    log = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    measured = {name for event in log if event["kind"] == "metrics" for name in event["values"]}
    assert {"evaluation/arm/corrections", "evaluation/arm/control"} <= measured
    rows = [row for event in log if event["kind"] == "samples" for row in event["rows"]]
    assert {row["arm"] for row in rows} == {"corrections", "control"}
    for row in rows:
        assert ("7, and nothing else" in row["prompt"]) == (row["arm"] == "corrections") == bool(row["corrections_used"])


def test_signals_in_the_log_are_not_votes_of_the_source(tmp_path):
    fill(tmp_path / "f.db")
    with pytest.raises(DataError, match="0 events give no pairs"):
        everything(VOTES, tmp_path)
