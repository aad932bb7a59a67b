"""Who may judge: a qualification on gold, attention all along, a most for everybody."""

import pytest
from feedback_examples import enrol, gold, pair, vote

from penstock.feedback.exchange.snapshot import Labels, counted, snapshot
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Submission

SHARES = {"gold_share": 0.0, "repeat_share": 0.0, "held": 1}


@pytest.fixture
def opened(either):
    """``opened(known=3, **policy)``: a store with Ann, an administrator, gold and twenty tasks."""

    def make(known=3, **policy):
        either.policy = QueuePolicy(**{**SHARES, **policy})
        enrol(either, "ann")
        enrol(either, "root", role="admin")
        either.ask([*(gold(f"g{n}") for n in range(known)), *(pair(str(n), overlap=1) for n in range(20))])
        return either

    return make


def judge(store, preference, times=1):
    """Ann takes the next tasks and says so; gives their purposes."""
    purposes = []
    for _ in range(times):
        lease = store.next_task("ann")
        if lease is None:
            break
        store.submit(vote(lease.task, "ann", f"k{store.length()}", preference))
        purposes.append(store.task(lease.task).purpose)
    return purposes


def reasons(store):
    """Why Ann is excluded."""
    return [event.body["reason"] for event in store.state().exclusions.values() if event.annotator == "ann"]


def test_whoever_qualifies_goes_on_to_ordinary_tasks(opened):
    store = opened(qualify=3)
    assert judge(store, 1, 5) == ["gold", "gold", "gold", "ask", "ask"]
    assert store.state().exclusions == {}


def test_whoever_does_not_is_excluded_and_gets_nothing_more(opened):
    store = opened(qualify=3)
    assert judge(store, -1, 5) == ["gold"] * 3
    assert reasons(store) == ["did not qualify: 0 of 3 known answers right"]
    assert counted(snapshot(store), Labels()) == []
    store.verify()


def test_the_first_answer_to_gold_counts_undone_or_not(opened):
    """Else who finds out what is gold could answer it again."""
    store = opened(qualify=3)
    judge(store, -1)
    store.undo("ann", "u")
    [lease] = store.held("ann")
    store.submit(vote(lease.task, "ann", "again", 1))
    judge(store, 1, 2)
    assert reasons(store) == ["did not qualify: 2 of 3 known answers right"]


def test_votes_from_before_the_qualification_do_not_count_either(opened):
    store = opened()
    judge(store, 1, 2)
    store.policy = QueuePolicy(**SHARES, qualify=3)
    judge(store, -1, 3)
    assert counted(snapshot(store), Labels()) == []


def test_an_administrator_lets_somebody_pass(opened):
    store = opened(qualify=3)
    judge(store, -1, 3)
    [sequence] = store.state().exclusions
    store.include("root", "i", sequence, "misread the guideline")
    assert judge(store, 1, 2) == ["ask", "ask"]
    assert len(counted(snapshot(store), Labels())) == 5


def test_too_little_gold_to_qualify_gives_nothing(opened):
    assert judge(opened(known=1, qualify=3), 1, 3) == ["gold"]


def test_adjudicators_need_not_qualify(opened):
    store = opened(qualify=3)
    enrol(store, "ann", role="adjudicator")
    assert judge(store, 1) == ["ask"]


@pytest.mark.parametrize(("pause", "shown", "why"), [(True, 2, "attention checks failed: 0 of 2"), (False, 3, "")])
def test_whoever_fails_gold_is_paused_where_that_is_wanted(opened, pause, shown, why):
    # Of 2 wrong ones of 2 the share's 95% interval ends at 66%, below 70%; of 1 it does not.
    store = opened(gold_share=0.5, pause=pause)
    purposes = judge(store, -1, 20)
    assert purposes.count("gold") == shown
    assert (purposes[-1] == "gold") == pause
    assert [reason.partition(" right")[0].startswith(why) for reason in reasons(store)] == [True] * pause


def test_nobody_gives_more_answers_than_the_most(opened):
    store = opened(quota=3)
    assert len(judge(store, 1, 9)) == 3
    store.undo("ann", "u")
    assert store.held("ann")  # the seat of what was taken back is still theirs
    enrol(store, "ann", quota=5)
    [lease] = store.held("ann")
    store.submit(vote(lease.task, "ann", "again", 1))
    assert len(judge(store, 1, 9)) == 2


def test_a_task_on_the_screen_counts_toward_the_most(opened):
    store = opened(quota=2, held=2)
    judge(store, 1)
    assert store.next_task("ann") is not None
    assert store.next_task("ann") is None


def test_a_skip_is_no_answer(opened):
    store = opened(quota=1)
    lease = store.next_task("ann")
    store.submit(Submission("skip", lease.task, "ann", "s", {}))
    assert len(judge(store, 1, 3)) == 1


def test_ratings_qualify_by_each_axis(opened):
    store = opened(known=0, qualify=2, qualified=0.75)
    known = {"scores": {"helpful": [6, 6], "harmless": [2, 2]}}
    store.ask([gold(str(n), form="rating", axes=("helpful", "harmless"), gold=known) for n in range(2)])
    for helpful, harmless in ((5, 2), (6, 6)):  # one step off is right: 3 of 4
        lease = store.next_task("ann")
        body = {"scores": {"helpful": [helpful] * 2, "harmless": [harmless] * 2}}
        store.submit(Submission("rating", lease.task, "ann", f"k{lease.task}", body))
    assert judge(store, 1) == ["ask"]
