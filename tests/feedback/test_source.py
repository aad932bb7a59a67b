"""A stage that trains on a feedback store: pinned when it begins, the same rows on resume, another store refused."""

import json

import pytest
from feedback_examples import answers, enrol, everything, pair

import penstock
from penstock.algos import BradleyTerry
from penstock.config.run import DataSpec, LearnerSpec, ModelSpec, Offline, Run
from penstock.core.errors import DataError
from penstock.feedback.exchange.snapshot import content_hash
from penstock.feedback.store import Store
from penstock.product.source import pin
from penstock.runtime.pinning import pinned


def fill(path, names):
    with Store.open(path) as store:
        enrol(store, "ann")
        answers(store, store.ask([pair(name, overlap=1) for name in names]), "ann")


def stage_run(source):
    stage = Offline(
        name="reward",
        model=ModelSpec(preset="1m", layers=1, vocabulary=300, context=64),
        data=DataSpec(source=source),
        algorithm=BradleyTerry(probability="probability"),
        learner=LearnerSpec(learning_rate=1e-3),
        steps=1,
    )
    return Run(name="feedback", stages=(stage,))


def test_a_pinned_source_reads_the_same_rows_while_the_store_grows(tmp_path):
    fill(tmp_path / "f.db", "abc")
    spec = pin(DataSpec(source="feedback:f.db"), tmp_path)
    rows = everything(spec, tmp_path)
    fill(tmp_path / "f.db", "de")
    assert spec.options == {"until": 3, "content": content_hash(rows)}
    assert everything(spec, tmp_path) == rows
    assert len(everything(DataSpec(source="feedback:f.db"), tmp_path)) == 5


def test_another_store_in_its_place_is_refused(tmp_path):
    fill(tmp_path / "f.db", "abc")
    spec = pin(DataSpec(source="feedback:f.db"), tmp_path)
    for file in tmp_path.glob("f.db*"):
        file.unlink()
    fill(tmp_path / "f.db", "xyz")
    with pytest.raises(DataError, match="the same store"):
        everything(spec, tmp_path)


@pytest.mark.parametrize(
    ("source", "options", "problem"),
    [
        ("feedback:none.db", {}, "no such feedback store"),
        ("feedback:f.db", {"from": "pairs"}, 'unknown option "from"'),
        ("feedback:f.db", {"form": "pair"}, 'did you mean "pairs"'),
        ("feedback:f.db", {"natures": ["judge"]}, "annotators there are: human"),
        ("feedback:f.db", {"form": "corrections"}, "collect votes"),
    ],
)
def test_what_gives_no_rows_is_refused(tmp_path, source, options, problem):
    fill(tmp_path / "f.db", "a")
    with pytest.raises(DataError, match=problem):
        everything(DataSpec(source=source, options=options), tmp_path)


def test_a_run_records_the_content_it_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "f.db", "abcdefgh")
    penstock.train(stage_run("feedback:f.db"), folder=tmp_path / "run", progress=False)
    options = json.loads((tmp_path / "run" / "run.json").read_text())["stages"][0]["data"]["options"]
    assert options["until"] == 8
    assert len(options["content"]) == 64


def test_a_run_that_goes_on_keeps_the_pins_it_began_with(tmp_path):
    fill(tmp_path / "f.db", "abc")
    fresh = stage_run("feedback:f.db")
    begun = pinned(fresh, tmp_path)
    fill(tmp_path / "f.db", "de")
    assert pinned(fresh, tmp_path, begun) == begun
    assert pinned(begun, tmp_path) == begun
    assert pinned(fresh, tmp_path) != begun
