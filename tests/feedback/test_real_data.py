"""Real data through the store: imported, voted on, exported, trained on, and followed back. Skips where they are not there."""

from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")

from penstock.algos import BinaryRewardModel, BradleyTerry
from penstock.config.ask import Simulated
from penstock.config.run import CheckpointSpec, DataSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.feedback.exchange import files, imports
from penstock.feedback.exchange.snapshot import Labels, content_hash, labelled_completions, preference_pairs, snapshot
from penstock.feedback.lineage import behind, influence, recorded, told
from penstock.feedback.simulate import answer_all
from penstock.feedback.store import Store
from penstock.runtime import launch

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
HH, REVIEWS = DATA / "hh-rlhf" / "harmless-base-test.jsonl.gz", DATA / "rt-polarity"
PEOPLE = [Simulated(name=name, noise=0.2) for name in ("ann", "ben", "cleo")]
SCRATCH = ModelSpec(preset="1m", layers=1, vocabulary=2000, context=1024, initializer_range=0.02)


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason=f"{path.parent.name}/{path.name} is not on this machine")


def trained(place, data, algorithm, folder, steps):
    """A small model trained on a store; gives its last metrics."""
    stage = Offline(
        name="reward",
        model=SCRATCH,
        data=DataSpec(source=f"feedback:{place}", **data),
        algorithm=algorithm,
        learner=LearnerSpec(learning_rate=1e-3, schedule="cosine", warmup=5),
        batch=16,
        steps=steps,
    )
    run = Run(name="real", stages=(stage,), threads=1, device="cpu", checkpoint=CheckpointSpec(every=0))
    return launch(run, folder).summary["stages"]["reward"]["metrics"]


@needs(HH)
def test_human_preferences_of_hh_rlhf_go_through_the_store_into_a_reward_model(tmp_path):
    place, short = str(tmp_path / "feedback.db"), 1200
    with Store.open(place) as store:
        found = [(task, said) for task, said in imports.hh_rlhf(HH) if sum(map(len, texts(task))) < short][:300]
        assert imports.load(store, found) == 300
        chosen = {task.item.id: said[0].body["preference"] for task, said in found}
        store.ask([again(task) for task, _ in found[:60]])
        assert answer_all(store, PEOPLE, lambda task: (chosen[task.item.id], 0.0)) >= 120
        taken = snapshot(store)
        rows = preference_pairs(taken, Labels(natures=("imported", "simulated")))
        assert len(rows) >= 300
        files.write_rows(rows, tmp_path / "pairs.jsonl")
        assert content_hash([row for _, row in files.placed_rows(tmp_path / "pairs.jsonl")]) == content_hash(rows)
    options = {"options": {"natures": ["imported", "simulated"]}}
    metrics = trained(place, options, BradleyTerry(probability="probability"), tmp_path / "real", steps=60)
    run = recorded(tmp_path / "real")
    assert metrics["pair/accuracy"] > 0.6  # of pairs that it has seen three times
    assert next(iter(influence(1, run, taken).values())) == "learns from it"
    assert len(behind("reward", run, taken)["reward"]) >= 420
    assert told(1, "", [run], taken)[-1] == "  real/reward (versions 1 to 60): learns from it"


@needs(REVIEWS)
def test_ratings_of_rt_polarity_go_through_the_store_into_a_classifier(tmp_path):
    place = str(tmp_path / "feedback.db")
    with Store.open(place) as store:
        assert imports.load(store, imports.rt_polarity(REVIEWS, most=300)) == 600
        taken = snapshot(store)
        rows = labelled_completions(taken)
        assert sum(row["label"] for row in rows) == 300
    data = {"options": {"form": "completions"}, "prompt": "", "completion": "{{ completion }}"}
    metrics = trained(place, data, BinaryRewardModel(), tmp_path / "real", steps=60)
    assert metrics["label/accuracy"] > 0.6
    run = recorded(tmp_path / "real")
    assert told(0, "reward", [run], taken)[1] == "  reward learned from 600 events (1 to 600) by rt-polarity"


def texts(task):
    return [task.item.prompt, *(response.text for response in task.item.responses)]


def again(task):
    """The same question for the people of this store."""
    from dataclasses import replace

    return replace(task, overlap=2, round="people", guideline="1")
