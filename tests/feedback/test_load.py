"""The real service under many annotators, killed at random moments: a small run of ``benchmarks/feedback_load.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from feedback_examples import PLAIN, enrol, vote

pytest.importorskip("starlette", reason="needs the extra feedback")
pytest.importorskip("uvicorn", reason="needs the extra feedback")
pytest.importorskip("argon2", reason="needs the extra feedback")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from feedback_load import Load, check, item, measure, most_at_once

from penstock.feedback.records import Task
from penstock.feedback.service.annotate import stored_key
from penstock.feedback.store import Store


def test_no_vote_is_lost_or_doubled_when_the_service_is_killed_under_load(place):
    found = measure(place, Load(annotators=20, votes=1000, kills=3, think=0.1))
    assert len(found["down_seconds"]) == 3
    assert found["log"]["vote"] >= 1000
    assert found["log"]["standing"] == found["log"]["vote"] - found["log"]["undo"]
    assert found["milliseconds"]["answered"]["all"]["requests"] > 2000


def voted(folder: Path) -> tuple[str, int]:
    """A store with one vote, and its sequence."""
    place = str(folder / "f.db")
    with Store.open(place, PLAIN) as store:
        enrol(store, "ann")
        [task] = store.ask([Task(item=item(0), overlap=1)])
        order = store.next_task("ann").order
        right = 2 if order[0] == 0 else -2
        event = store.submit(vote(task, "ann", stored_key("key-0001", "ann"), right))
    return place, event.sequence


@pytest.mark.parametrize(
    ("acknowledged", "problem"),
    [
        ("ann vote key-0001 1 2", None),
        ("ann vote key-0001 2 2", "AssertionError"),
        ("ann vote key-0001 1 -2", "AssertionError"),
        ("ann vote key-0002 1 2", "is lost"),
        ("", "not acknowledged"),
    ],
)
def test_the_benchmark_finds_what_is_lost_altered_or_added(tmp_path, acknowledged, problem):
    place, _ = voted(tmp_path)
    (tmp_path / "acknowledged").write_text(acknowledged)
    if problem is None:
        assert check(place, tmp_path)["standing"] == 1
        return
    with pytest.raises(AssertionError) as caught:
        check(place, tmp_path)
    assert problem in f"{caught.typename}: {caught.value}"


def test_the_most_judgements_at_a_time_forget_none_that_was_taken_back(tmp_path):
    place, sequence = voted(tmp_path)
    with Store.open(place, PLAIN) as store:
        store.undo("ann", "u1", sequence)
        events = store.events()
    assert list(most_at_once(events).values()) == [1]
