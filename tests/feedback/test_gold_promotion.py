"""Gold made of what is asked already, by an administrator or where trusted people agree; and taken back."""

import pytest
from feedback_examples import answer, answers, enrol, gold, pair

from penstock.feedback.errors import FeedbackError, NotAllowed, NothingToUndo
from penstock.feedback.exchange.snapshot import snapshot
from penstock.feedback.gold import Agreed, agreed, demote, promote
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.queue import GOLD
from penstock.feedback.store import Store

PEOPLE = ("ann", "bob", "cas", "dee", "eve")


def with_people(store):
    store.policy = QueuePolicy(gold_share=0.5, repeat_share=0, held=99)
    enrol(store, *PEOPLE)
    enrol(store, "root", role="admin")
    return store


@pytest.fixture
def store(either):
    return with_people(either)


@pytest.fixture
def local(file, clock):
    with Store.open(file, now=clock) as opened:
        yield with_people(opened)


def offered(store, name):
    """The gold that somebody would be given next."""
    with store.database.read() as connection:
        return connection.execute(GOLD, {"who": name, "now": store.now(), "project": "default"}).scalar()


def measured(store):
    """Everybody has answered some gold and is right."""
    answers(store, store.ask([gold(f"g{n}") for n in range(16)]), *PEOPLE)


def test_a_task_becomes_gold_with_its_known_answer(store):
    [task] = store.ask([pair("x", overlap=5)])
    known = promote(store, "root", task, 2, "the second is right, see the manual")
    made = store.task(known)
    assert (made.purpose, made.gold["preference"], made.overlap, made.origin) == ("gold", -1, 0, task)
    [(_, right)] = snapshot(store).gold().items()
    assert right != 0
    assert promote(store, "root", task, 2, "again") == known
    assert store.length() == 1
    store.verify()


def test_who_answered_the_task_is_not_asked_it_as_gold(store):
    [task] = store.ask([pair("x", overlap=5)])
    answer(store, task, "ann", 1)
    known = promote(store, "root", task, 1, "sure")
    assert offered(store, "ann") is None
    assert offered(store, "bob") == known


def test_gold_that_was_taken_back_measures_nobody_and_is_asked_no_more(store):
    [task] = store.ask([pair("x", overlap=1)])
    known = promote(store, "root", task, 1, "sure")
    answer(store, task, "ann", 1)
    before = store.length()
    demote(store, "root", known, "not so sure")
    assert snapshot(store).gold() == {}
    assert len(snapshot(store, before).gold()) == 1
    assert offered(store, "bob") is None
    promote(store, "root", known, None, "sure again")
    assert len(snapshot(store).gold()) == 1
    assert offered(store, "bob") == known
    store.verify()


def test_only_administrators_decide_and_only_about_gold(store):
    [task] = store.ask([pair("x")])
    with pytest.raises(NotAllowed):
        promote(store, "ann", task, 1, "me")
    assert store.tasks() == [task]
    with pytest.raises(NothingToUndo, match="no gold in force"):
        demote(store, "root", task, "why")
    with pytest.raises(FeedbackError, match="give 1 or 2"):
        promote(store, "root", task, 3, "why")


def test_a_promotion_is_no_answer_that_can_be_retracted(store):
    [task] = store.ask([pair("x")])
    promote(store, "root", task, 1, "sure")
    with pytest.raises(NothingToUndo):
        store.retract("root", "k", 1, "no")


def test_pairs_on_which_trusted_people_agree_can_be_gold(local):
    store = local
    measured(store)
    clear, split, few = store.ask([pair(name, overlap=5) for name in ("clear", "split", "few")])
    answers(store, [clear], *PEOPLE, preference=-1)
    answers(store, [split, few], *PEOPLE[:4])
    answer(store, split, "eve", -1)
    [found] = agreed(store, Agreed())
    assert (found.task, found.body, found.people, found.agreement) == (clear, {"preference": -1}, 5, 1.0)
    assert found.reason() == "100% of 5 trusted people prefer the second response"
    assert {one.task for one in agreed(store, Agreed(people=4, agreement=0.8))} == {clear, split, few}
    known = promote(store, "root", clear, found.body, found.reason())
    assert agreed(store, Agreed()) == []
    demote(store, "root", known, "a mistake")
    assert agreed(store, Agreed()) == []  # what a person took back is not made again


def test_people_who_only_agree_with_each_other_make_no_gold(local):
    """Else three who collude would make their answers known ones."""
    answers(local, local.ask([pair(str(n), overlap=5) for n in range(12)]), *PEOPLE)
    assert agreed(local, Agreed()) == []


def test_a_policy_that_would_believe_anybody_is_refused():
    for fields in ({"people": 1}, {"weight": 0}, {"agreement": 0.5}):
        with pytest.raises(FeedbackError, match="at least 2 people"):
            Agreed(**fields)
