"""Annotators do not learn what is gold, what is asked again, which model wrote a response, or what others said."""

import itertools
import shutil

import pytest
from feedback_examples import HandClock
from served import Service, refusal, strings

from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Annotator, Item, Lease, Response, Submission, Task
from penstock.feedback.service.secrets import Handles
from penstock.feedback.service.tasks import shown
from penstock.feedback.store import Store

SHOWN = {"id", "form", "prompt", "responses", "axes", "scale", "guideline", "deadline", "answer_kinds"}
"""Every field of a task that may be sent."""
KEPT = (
    "gold", "purpose", "strategy", "origin", "run", "stage", "version", "source", "tokens", "logp", "sampling", "key",
    "groups", "reserved", "overlap", "priority", "round", "order", "item", "nature", "weight", "accuracy", "votes",
)  # fmt: skip
"""Names of what stays in the store."""


def secretive(number, **fields):
    """A task whose every hidden field holds a mark that is found wherever it slips out."""
    responses = tuple(
        Response(
            f"answer {side} {number}", tokens=(2090000111, 2090000222), logp=(-0.123456,), run="HIDDEN-run",
            stage="HIDDEN-stage", version=987654, sampling={"HIDDEN-temperature": 0.77777}, source="HIDDEN-model",
        )
        for side in "ab"
    )  # fmt: skip
    item = Item(f"question {number}", responses, key="HIDDEN-key", groups={"HIDDEN-group": "HIDDEN-value"})
    return Task(**{"item": item, "overlap": 3, "strategy": "HIDDEN-strategy", "round": "HIDDEN-round", **fields})


MARKS = ("HIDDEN", "2090000", "0.123456", "987654", "0.77777")


@pytest.fixture(scope="module")
def session(desk, empty_store, tmp_path_factory):
    """Everything that the service says to somebody who answers gold, repeats and ordinary tasks, and errs on the way."""
    place = tmp_path_factory.mktemp("blind") / "feedback.db"
    shutil.copy(empty_store, place)
    store = Store.open(place, QueuePolicy(gold_share=0.25, repeat_share=0.25, repeat_after=1, seed=1), HandClock())
    service = Service(desk, store)
    yield service, *everything_said(service)
    service.app.close()
    store.close()


def everything_said(service):
    """The answers of a session, and the tasks in them."""
    gold = [secretive(f"g{n}", purpose="gold", overlap=0, gold={"preference": 3}, strategy="random") for n in range(8)]
    service.store.ask([*gold, *(secretive(number) for number in range(20))])
    service.store.enrol(Annotator("bob-HIDDEN"))
    first = service.store.next_task("bob-HIDDEN").task
    service.store.submit(Submission("vote", first, "bob-HIDDEN", "a-HIDDEN-key", {"preference": 2}))
    person, said, tasks = service.person("ann"), [], []

    def keep(answer):
        said.append(answer)
        return answer.json()

    for _ in range(12):
        task = keep(person.post("/api/next"))["task"]
        tasks.append(task)
        keep(person.get("/api/held"))
        keep(person.submit(task, {"preference": 99}))
        keep(person.submit(task, {"ranks": [1, 2]}, "ranking"))
        keep(person.post("/api/renew", task=task["id"]))
        keep(person.submit(task))
        keep(person.submit(task))
    keep(person.undo())
    keep(person.get("/api/me"))
    keep(person.get("/api/admin/events"))
    keep(person.post("/api/submit", key="abcdefgh", task=first, kind="vote", body={"preference": 1}))
    keep(person.submit(task, {"response": 0, "text": "mine"}, "critique"))
    return said, tasks


def purposes(service):
    return [service.store.task(event.task).purpose for event in service.store.events() if event.annotator == "ann"]


def test_nothing_hidden_is_in_anything_that_an_annotator_is_sent(session):
    _, said, _ = session
    for answer in said:
        for mark in MARKS:
            assert mark not in answer.text
            assert mark not in str(answer.headers)
        value = answer.json()
        value.pop("guideline", None)  # its version may be known
        assert not set(strings(value)) & set(KEPT)


def test_no_real_name_of_a_task_or_response_is_sent(session):
    service, said, _ = session
    names = set(service.store.tasks())
    names |= {response.id for name in names for response in service.store.task(name).item.responses}
    names |= {service.store.task(name).item.id for name in service.store.tasks()}
    assert not any(name in answer.text for answer in said for name in names)


def test_gold_and_repeats_have_the_fields_of_any_task(session):
    service, _, tasks = session
    assert {"ask", "gold", "repeat"} <= set(purposes(service))
    assert {frozenset(task) for task in tasks} == {frozenset(SHOWN)}
    for name in ("form", "axes", "scale", "guideline", "answer_kinds", "deadline"):
        assert len({str(task[name]) for task in tasks}) == 1


def test_what_is_left_falls_by_one_whatever_was_answered(serve):
    service = serve(QueuePolicy(gold_share=0.25, repeat_share=0.25, repeat_after=1, seed=1))
    service.store.ask([secretive(f"g{n}", purpose="gold", overlap=0, gold={"preference": 3}) for n in range(8)])
    service.store.ask([secretive(number) for number in range(20)])
    ann, left = service.person("ann"), []
    for turn in range(16):
        left.append(ann.get("/api/progress").json()["left"])
        task = ann.next()
        left.append(ann.get("/api/progress").json()["left"])
        ann.submit(task, *(({"reason": ""}, "skip") if turn % 5 == 4 else ()))
    assert {"ask", "gold", "repeat"} <= set(purposes(service))
    assert left == [38 - turn // 2 for turn in range(32)]
    ann.undo()
    assert ann.get("/api/progress").json()["left"] == 23


def test_a_value_out_of_range_is_quoted_as_it_was_sent(session):
    """The store's sign would tell which response is really the first."""
    _, said, _ = session
    quoted = [answer.text for answer in said if "preference=" in answer.text]
    assert len(quoted) == 12
    assert all("preference=99" in text for text in quoted)


def test_what_is_sent_does_not_depend_on_what_is_hidden():
    """Two tasks that differ in hidden fields alone are sent alike, but for the handle."""
    gold = secretive(1, purpose="gold", overlap=0, gold={"preference": 3})
    sent = [shown(task, Lease(task.id, "ann", (1, 0), 0.0, 60.0), "handle", 10.0) for task in (gold, secretive(1))]
    assert sent[0] == sent[1]


def test_a_handle_says_nothing_and_leads_back():
    handles, names = Handles(bytes(32)), [f"{number:032x}" for number in range(50)]
    seen = {handles.handle(name, who) for name, who in itertools.product(names, ("ann", "bob"))}
    assert len(seen) == 100
    assert [handles.task(handles.handle(name, "ann"), "ann") for name in names] == names
    assert handles.task(handles.handle(names[1], "ann"), "bob") != names[1]
    assert Handles(bytes([1]) * 32).handle(names[1], "ann") != handles.handle(names[1], "ann")


def test_handles_outlive_a_restart(service):
    service.store.ask([secretive(1)])
    person = service.person("ann")
    task = person.next()
    service.restart()
    assert person.submit(task).status_code == 200


def test_the_tasks_and_leases_of_others_cannot_be_used(service):
    service.store.ask([secretive(1)])
    ann, bob = service.person("ann"), service.person("bob")
    task = ann.next()
    real = service.store.held("ann")[0].task
    for name in (task["id"], real, "0" * 32):
        for answer in (bob.submit(name), bob.post("/api/renew", task=name), bob.submit(name, {"reason": ""}, "skip")):
            assert refusal(answer) == (404, "not_found")
        bob.post("/api/give-back", task=name)
    assert [lease.annotator for lease in service.store.held("ann")] == ["ann"]
    assert service.store.held("bob") == []


@pytest.mark.parametrize("name", ["", "x", "0" * 31, "G" * 32, "0" * 33, "../../etc/passwd", "0" * 32 + "\n"])
def test_what_is_no_handle_is_not_found(service, name):
    assert refusal(service.person("ann").submit(name)) == (404, "not_found")
