"""Runs that ask: what is kept of every sample, that nothing is asked twice, who is promoted, and what is trained on."""

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from processes import events
from tiny_recipes import DATA, LEARNER, offline, run_of, sft

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")

from penstock.algos import BradleyTerry
from penstock.cli.main import main
from penstock.config.ask import Ask, Judge, Simulated
from penstock.config.run import DataSpec, EvaluationSpec, ModelSpec, RewardSpec
from penstock.core.errors import DataError, PenstockError
from penstock.core.types import Row, Sampling
from penstock.feedback import projects
from penstock.feedback.asking import read
from penstock.feedback.records import Annotator, Submission
from penstock.feedback.store import Store
from penstock.models.files import load_model, load_text
from penstock.models.language_policy import LanguagePolicy
from penstock.observe.rules import thresholds
from penstock.runtime import launch
from penstock.runtime.judging import group_of
from penstock.train.learner import Scoring

HERE = __file__
PEOPLE = tuple(Simulated(name=name, noise=0.1) for name in ("ann", "ben"))


def much(sample, columns):
    return float(len(sample.text))


TRUTH = RewardSpec(function=f"{HERE}:much", name="much")
ASK = Ask(
    name="ask-1",
    model=ModelSpec(path="@sft"),
    data=DATA,
    sampling=Sampling(max_new_tokens=4),
    annotators=PEOPLE,
    truth=TRUTH,
    prompts=6,
    samples=2,
    questions=5,
    overlap=2,
)
NOBODY = replace(ASK, annotators=(), truth=None)
VOTES = DataSpec(source="feedback:@run", options={"natures": ["simulated"]})
REWARD = offline("reward-a", BradleyTerry(probability="probability"), model=ModelSpec(path="@sft"), data=VOTES, steps=2)
AGAIN = replace(
    ASK,
    name="ask-2",
    model=ModelSpec(path="@other"),
    against=ModelSpec(path="@ask-1"),
    scorers="@reward-a",
    duels=3,
    anchors=2,
    gate={"sure": 0.0},
    annotators=(*PEOPLE, Judge(name="model", reward=RewardSpec(function="model:@reward-a"))),
)


def a_run(*stages, name="asks"):
    """A run of these stages after a step of ``sft``."""
    return run_of(sft(steps=1), *stages, name=name)


def carry_out(run, folder, resuming=False):
    return launch(run, folder, resume=resuming).summary


def forget(folder, stage):
    """Let a finished run end before its last stage did."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["stages"][stage], summary["headline"]
    (folder / "summary.json").write_text(json.dumps(summary))


def vote(store, name, preference, nature="human"):
    """An annotator answers every question that is open to them."""
    store.enrol(Annotator(name, nature=nature))
    while lease := store.next_task(name):
        store.submit(Submission("vote", lease.task, name, f"{name}:{lease.task}", {"preference": preference}))


def told(folder, what):
    return [event for event in events(folder) if event.get("what") == what]


def weights_of(folder):
    """Of a language model or a reward model."""
    head = "score" if "SequenceClassification" in (folder / "config.json").read_text() else "lm"
    return {name: tensor.detach().numpy() for name, tensor in load_model(str(folder), head).network.state_dict().items()}


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A finished run of one Ask stage; not to be changed."""
    folder = tmp_path_factory.mktemp("once") / "asks"
    carry_out(a_run(ASK), folder)
    return folder


def test_every_response_is_kept_with_its_exact_tokens_and_where_it_comes_from(once):
    text = load_text(str(once / "models" / "sft"))
    asked = read(once / "asked" / "ask-1.jsonl")
    for response in (response for one in asked for response in one.task.item.responses):
        assert (response.run, response.stage, response.version) == ("asks", "sft", 1)
        assert response.sampling["max_new_tokens"] == 4
        drawn = response.tokens[-len(response.logp) :]
        assert text.decode(drawn) in (response.text, response.text + text.tokenizer.eos_token)


def test_a_run_asks_and_learns_in_the_project_that_it_names(tmp_path):
    place = tmp_path / "votes.db"
    with Store.open(place) as store:
        projects.change(store, projects.Project("legal"), new=True)
    ask = replace(ASK, store=str(place), project="legal")
    with pytest.raises(PenstockError, match="no project 'tax'; there are: legal"):
        carry_out(a_run(replace(ask, project="tax")), tmp_path / "wrong")
    assert not (tmp_path / "wrong" / "asked" / "ask-1.jsonl").exists()  # nothing was sampled for it
    anywhere = replace(VOTES, source=f"feedback:{place}")
    legal = replace(anywhere, options={**VOTES.options, "project": "legal"})
    carry_out(a_run(ask, replace(REWARD, data=legal)), tmp_path / "right")
    with Store.open(place) as store:
        assert store.counts() == {}
        assert store.counts("legal")["ask"].judgements == 10  # two people, five questions
        store.ask([replace(store.task(store.tasks()[0]), project="default")])
    with pytest.raises(PenstockError, match="give no pairs"):
        carry_out(a_run(replace(REWARD, data=anywhere)), tmp_path / "x")


def test_kept_log_probs_are_those_of_the_weights(once):
    asked = read(once / "asked" / "ask-1.jsonl")
    assert max(gap_A.max() for gap_A in scored(once / "models" / "sft", asked, "float32")) < 1e-4


def scored(path, asked, dtype):
    """How far kept log-probs are from those of a model that computes in a type, an array for each response."""
    scorer, gaps = Scoring(LanguagePolicy(load_model(str(path), dtype=dtype))), []
    for one in asked:
        samples = group_of(one.task.item).samples
        rows = tuple(Row(sample.columns, sample.action_T) for sample in samples)
        found = scorer.score([rows], frozenset({"logp"}))["logp"]
        gaps += [abs(s.logp_T[s.action_T] - logp_A) for s, logp_A in zip(samples, found, strict=True)]
    return gaps


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_samples_are_drawn_in_the_type_of_the_runs_learner_and_the_weights_stay_as_they_are(dtype, once, tmp_path):
    outside = once / "models" / "sft"
    typed = sft(steps=1, learner=replace(LEARNER, dtype=dtype))
    carry_out(run_of(replace(ASK, model=ModelSpec(path=str(outside))), typed), tmp_path / "run")
    asked = read(tmp_path / "run" / "asked" / "ask-1.jsonl")
    assert max(gap_A.mean() for gap_A in scored(outside, asked, dtype)) < thresholds(dtype, 1).gap_warning
    assert max(gap_A.mean() for gap_A in scored(outside, asked, "float32")) > 1e-4
    assert same(weights_of(tmp_path / "run" / "models" / "ask-1"), weights_of(outside))


def test_votes_of_simulated_annotators_are_marked_as_such_and_complete(once):
    with Store.open(once / "feedback.db") as store:
        assert {one.nature for one in store.annotators()} == {"simulated"}
        count = store.counts()["ask"]
        assert (count.tasks, count.open, count.judgements) == (5, 0, 10)
    assert len(told(once, "annotator")) == 2


def test_a_run_under_another_name_has_the_same_votes_and_the_same_weights(tmp_path):
    noisy = replace(ASK, annotators=tuple(Simulated(name=name, noise=0.4) for name in ("ann", "ben", "cleo")), questions=6)
    votes = []
    for name in ("one", "two"):
        carry_out(a_run(noisy, REWARD, name=name), tmp_path / name)
        with Store.open(tmp_path / name / "feedback.db") as store:
            votes.append([(event.annotator, event.body, event.latency) for event in store.events()])
    assert votes[0] == votes[1]
    assert {1, -1} <= {np.sign(body["preference"]) for _, body, _ in votes[0]}
    assert same(weights_of(tmp_path / "one" / "model"), weights_of(tmp_path / "two" / "model"))


def test_two_runs_of_one_seed_in_one_store_are_asked_apart_and_answer_alike(once, tmp_path):
    place = Path(shutil.copy(once / "feedback.db", tmp_path / "shared.db"))
    carry_out(a_run(replace(ASK, store=str(place)), name="two"), tmp_path / "two")
    with Store.open(place) as store:
        assert store.counts()["ask"].tasks == 10
        said = {(event.annotator, event.task): event.body for event in store.events()}
    first, second = (read(folder / "asked" / "ask-1.jsonl") for folder in (once, tmp_path / "two"))
    for one, two in zip(first, second, strict=True):
        assert one.task.id != two.task.id
        assert [said[who, one.task.id] for who in ("ann", "ben")] == [said[who, two.task.id] for who in ("ann", "ben")]


def test_lineage_is_told_by_a_command(judged, capsys):
    place = str(judged / "feedback.db")
    assert main(["feedback", "lineage", place, "--runs", str(judged.parent), "--event", "6"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == ["  about a response of judged/sft version 1"] * 2
    assert "  judged/reward-a (versions 1 to 2): learns from it" in said
    assert main(["feedback", "lineage", place, "--runs", str(judged), "--stage", "reward-a"]) == 0
    assert "learned from 10 events" in capsys.readouterr().out
    assert main(["feedback", "lineage", place, "--runs", str(judged)]) == 2


def test_the_model_of_a_stage_that_judges_nothing_is_the_one_it_asked_about(once):
    assert same(weights_of(once / "model"), weights_of(once / "models" / "sft"))
    assert json.loads((once / "asked" / "ask-1.json").read_text())["promoted"]["stage"] == "sft"


def test_people_are_waited_for_and_a_resume_asks_nothing_twice(tmp_path):
    run, folder = a_run(replace(NOBODY, deadline=0.1)), tmp_path / "run"
    with pytest.raises(PenstockError, match=r"0 votes \(of nobody\) of at least 10 .* penstock feedback serve .*feedback\.db"):
        carry_out(run, folder)
    asked = (folder / "asked" / "ask-1.jsonl").read_bytes()
    with Store.open(folder / "feedback.db") as store:
        tasks = store.tasks()
        for name in ("ann", "ben"):
            vote(store, name, 1)
    carry_out(run, folder, resuming=True)
    with Store.open(folder / "feedback.db") as store:
        assert [name for name in store.tasks() if name in tasks] == tasks
        assert store.counts()["ask"].tasks == 5
    assert (folder / "asked" / "ask-1.jsonl").read_bytes() == asked


def test_a_deadline_with_enough_votes_goes_on(tmp_path):
    run, folder = a_run(replace(NOBODY, deadline=0.1, least=1)), tmp_path / "run"
    with pytest.raises(PenstockError, match="of at least 1"):
        carry_out(run, folder)
    with Store.open(folder / "feedback.db") as store:
        store.enrol(Annotator("ann"))
        lease = store.next_task("ann")
        store.submit(Submission("vote", lease.task, "ann", "a-vote", {"preference": 1}))
    carry_out(run, folder, resuming=True)
    assert told(folder, "deadline passed")[0]["votes"] == 1


def test_ctrl_c_while_people_are_waited_for_stops_at_once_and_a_resume_waits_on(tmp_path):
    run, folder = a_run(NOBODY), tmp_path / "run"

    def interrupt():
        while not told(folder, "asked"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt, daemon=True)
    folder.mkdir()
    (folder / "events.jsonl").touch()
    waiting.start()
    with pytest.raises(KeyboardInterrupt, match="stopped after step 0 of 5 of stage ask-1"):
        carry_out(run, folder)
    waiting.join(10)
    with Store.open(folder / "feedback.db") as store:
        for name in ("ann", "ben"):
            vote(store, name, -1)
    assert carry_out(run, folder, resuming=True)["stages"]["ask-1"]["metrics"]["asked/votes"] == 10.0


BEFORE_AGAIN = (replace(ASK, annotators=(*PEOPLE, Judge(name="counter", reward=TRUTH))), REWARD, sft("other", steps=3))


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A finished run with a reward model and a second Ask stage that judges other weights, and lets them pass."""
    folder = tmp_path_factory.mktemp("judged") / "judged"
    carry_out(a_run(*BEFORE_AGAIN, AGAIN, name="judged"), folder)
    return folder


def test_weights_that_pass_are_promoted(judged):
    (promoted,) = told(judged, "promoted")
    assert (promoted["stage"], promoted["goes_on_with"]) == ("ask-2", "version 3 of other")
    assert told(judged, "asked")[1]["step"] == 0  # not the step at which the stage before ended
    assert same(weights_of(judged / "model"), weights_of(judged / "models" / "other"))


def test_weights_that_fail_their_card_are_not_promoted(judged, tmp_path):
    carry_out(a_run(*BEFORE_AGAIN, replace(AGAIN, gate={"sure": 1.0}), name="held"), tmp_path / "held")
    assert "not surely better than the weights before" in told(tmp_path / "held", "not promoted")[0]["because"]
    assert same(weights_of(tmp_path / "held" / "model"), weights_of(judged / "models" / "sft"))


def test_duels_and_anchors_are_asked_beside_the_questions(judged):
    asked = read(judged / "asked" / "ask-2.jsonl")
    assert {one.task.strategy for one in asked} == {"random", "duel", "anchor"}
    first = {one.task.item.id for one in read(judged / "asked" / "ask-1.jsonl")}
    assert all(one.task.item.id in first for one in asked if one.task.strategy == "anchor")
    for one in asked:
        if one.task.strategy == "duel":
            assert [response.stage for response in one.task.item.responses] == ["other", "sft"]
    assert {one.task.strategy: one.task.overlap for one in asked} == {"random": 2, "duel": 1, "anchor": 2}


def test_a_judge_takes_no_seat_from_people_and_is_compared_with_them(judged):
    with Store.open(judged / "feedback.db") as store:
        natures = {one.name: one.nature for one in store.annotators()}
        votes = [event for event in store.events() if event.annotator == "counter"]
        copies = store.tasks_of(votes)
    assert natures["counter"] == "judge"
    assert len(votes) == 5
    assert all(copies[event.task].origin for event in votes)
    lines = {line["judge"]: line for line in told(judged, "judge beside people")}
    assert lines["counter"]["pairs"] == 5


def test_a_reward_model_judges_as_its_scores_say(judged):
    margins = {one.task.id: one.margin for one in read(judged / "asked" / "ask-2.jsonl") if one.task.purpose == "ask"}
    with Store.open(judged / "feedback.db") as store:
        votes = [event for event in store.events() if event.annotator == "model"]
        said = {task.origin: vote.body["preference"] for vote in votes for task in [store.task(vote.task)]}
    assert len(margins) > 3
    assert {name: said[name] for name in margins} == {name: int(np.sign(margin)) for name, margin in margins.items()}


def test_a_stage_that_reads_votes_is_pinned_when_it_begins(judged):
    pins = json.loads((judged / "pins.json").read_text())
    assert pins["reward-a.data"]["until"] == 15  # five questions by two people and a judge
    assert len(pins["reward-a.data"]["content"]) == 64


def test_a_stage_goes_on_with_the_rows_it_began_with_and_refuses_others(tmp_path):
    run, folder = a_run(ASK, REWARD), tmp_path / "run"
    carry_out(run, folder)
    forget(folder, "reward-a")
    before = json.loads((folder / "pins.json").read_text())
    with Store.open(folder / "feedback.db") as store:  # somebody votes on
        store.ask([replace(read(folder / "asked" / "ask-1.jsonl")[0].task, round="later")])
        vote(store, "zoe", 3, nature="simulated")
    carry_out(run, folder, resuming=True)
    assert json.loads((folder / "pins.json").read_text()) == before
    forget(folder, "reward-a")
    (folder / "pins.json").write_text(json.dumps({"reward-a.data": {"until": 10, "content": "0" * 64}}))
    with pytest.raises(DataError, match="is it the same store"):
        carry_out(run, folder, resuming=True)


def test_samples_are_measured_before_and_after(tmp_path):
    measured = EvaluationSpec(data=replace(DATA, size=3), rewards=(TRUTH,), temperature=1.0)
    summary = carry_out(a_run(replace(ASK, evaluation=measured)), tmp_path / "run")
    stage = summary["stages"]["ask-1"]
    assert stage["first"]["evaluation/much"] == stage["last"]["evaluation/much"] > 0


def test_a_typing_error_in_the_mix_or_the_gate_is_found_before_anything_starts(tmp_path):
    wrong = replace(AGAIN, model=ModelSpec(path="@sft"), gate={"acuracy": 0.5})
    with pytest.raises(PenstockError, match=r"ask-2: gate: unknown field 'acuracy'"):
        carry_out(a_run(ASK, REWARD, wrong), tmp_path / "run")
    wrong = replace(wrong, gate={}, mix={"random": 0.1, "near_tie": 0.9})
    with pytest.raises(PenstockError, match=r"ask-2: random=0\.1; at least 0\.2"):
        carry_out(a_run(ASK, REWARD, wrong), tmp_path / "run")


def test_a_policy_without_variety_has_nothing_to_ask(tmp_path):
    certain = replace(ASK, sampling=Sampling(max_new_tokens=1, top_k=1))
    with pytest.raises(DataError, match="every two samples are equal"):
        carry_out(a_run(certain), tmp_path / "run")
