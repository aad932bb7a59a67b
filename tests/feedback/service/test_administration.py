"""What administrators and adjudicators do over HTTP."""

import json

import pytest
from feedback_examples import answer, enrol, pair
from served import csrf_of, refusal

from penstock.feedback.exchange.snapshot import content_hash, preference_pairs, snapshot
from penstock.feedback.records import Item, Response, Task
from penstock.feedback.service import admin as admin_module


def test_an_enrolled_person_comes_in_by_their_link(admin, client):
    link = admin.post("/api/admin/annotators", name="ann", role="adjudicator", attributes={"language": "en"}).json()["invite"]
    form = {"password": "a good long password", "csrf": csrf_of(client.get(link))}
    assert client.post(link, data=form).headers["location"] == "/"
    assert client.get("/api/me").json()["role"] == "adjudicator"
    (ann,) = [one for one in admin.get("/api/admin/annotators").json()["annotators"] if one["name"] == "ann"]
    assert ann == {
        "name": "ann", "role": "adjudicator", "nature": "human", "attributes": {"language": "en"}, "enabled": True,
        "invited": False, "has_password": True, "quota": 0,
    }  # fmt: skip


def test_a_new_link_ends_the_old_one(admin, client):
    old = admin.post("/api/admin/annotators", name="ann").json()["invite"]
    new = admin.post("/api/admin/annotators", name="ann", invite=True).json()["invite"]
    assert [client.get(link).status_code for link in (old, new)] == [404, 200]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "root"}, 400),
        ({"name": "ann", "role": "king"}, 400),
        ({"name": "ann", "attributes": {"a": 1}}, 400),
        ({"name": "ann", "attributes": [1]}, 400),
        ({"name": "ann", "password": "x"}, 400),
        ({"name": "nobody", "enabled": False}, 404),
        ({"name": "nobody", "invite": True}, 404),
        ({"name": "root", "invite": False}, 400),
        ({"name": "root", "enabled": False}, 409),
        ({"name": "root", "enabled": "no"}, 400),
        ({}, 400),
        *(({"name": name}, 400) for name in ("", "x" * 61, "a b", "a\u0000", "\ud800", "<b>", "=1+1", "a\n")),
    ],
)
def test_an_account_that_cannot_be_is_refused(admin, body, status):
    assert admin.post("/api/admin/annotators", **body).status_code == status
    assert len(admin.get("/api/admin/annotators").json()["annotators"]) == 1


def test_imported_and_simulated_annotators_are_not_invited(service, admin):
    enrol(service.store, "robot", nature="simulated")
    assert admin.post("/api/admin/annotators", name="robot", invite=True).status_code == 404


def test_an_administrator_retracts_with_a_reason(service, admin):
    enrol(service.store, "ann")
    event = answer(service.store, *service.store.ask([pair()]), "ann")
    assert admin.post("/api/admin/retract", key="retract-1", event=event, reason=" ").status_code == 400
    done = admin.post("/api/admin/retract", key="retract-1", event=event, reason="asleep")
    assert done.json() == {"event": 2} == admin.post("/api/admin/retract", key="retract-1", event=event, reason="asleep").json()
    assert service.store.state().judgements() == []
    assert refusal(admin.post("/api/admin/retract", key="retract-2", event=event, reason="asleep")) == (409, "nothing_to_undo")


def test_the_log_tells_where_everything_comes_from(service, admin):
    responses = (Response("a", run="run-1", stage="grpo", version=7), Response("b", source="human"))
    (task,) = service.store.ask([Task(Item("p", responses, key="gsm8k/0/1"), strategy="near_tie")])
    enrol(service.store, "ann")
    answer(service.store, task, "ann", 2)
    found = admin.get("/api/admin/events?after=0&limit=10").json()
    (event,) = found["events"]
    assert (found["length"], event["sequence"], event["kind"], event["annotator"]) == (1, 1, "vote", "ann")
    assert (event["body"]["preference"], sorted(event["order"])) == (2, [0, 1])
    about = event["task"]
    assert (about["id"], about["strategy"], about["key"], about["purpose"]) == (task, "near_tie", "gsm8k/0/1", "ask")
    assert [(one["run"], one["version"], one["source"]) for one in about["responses"]] == [("run-1", 7, ""), ("", -1, "human")]
    assert admin.get("/api/admin/events?after=1").json()["events"] == []


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=0", "limit=501", "after=%F0%9F%92%A9", "after=" + "9" * 16])
def test_a_part_of_the_log_that_cannot_be_is_refused(admin, query):
    assert admin.get(f"/api/admin/events?{query}").status_code == 400


def test_an_export_is_what_a_run_would_read(service, admin):
    enrol(service.store, "ann")
    answer(service.store, *service.store.ask([pair()]), "ann")
    got = admin.get("/api/admin/export?form=pairs&format=jsonl")
    rows = preference_pairs(snapshot(service.store))
    assert [json.loads(line) for line in got.text.splitlines()] == rows
    assert (got.headers["x-content-hash"], got.headers["x-events"]) == (content_hash(rows), "1")
    assert admin.get("/api/admin/export?form=pairs&format=exe").status_code == 400
    assert admin.get("/api/admin/export?form=corrections").status_code == 404


def test_the_overview_is_not_computed_for_everybody_who_looks(admin, monkeypatch):
    computed = []
    real = admin_module.overview
    monkeypatch.setattr(admin_module, "overview", lambda store, project: computed.append(1) or real(store))
    seen = [admin.get("/api/admin/overview").json() for _ in range(3)]
    assert (len(computed), seen[0]) == (1, seen[2])


# Adjudication


@pytest.fixture
def disputed(service):
    """Ann and bob differ on one pair and agree on eight others."""
    enrol(service.store, "ann", "bob")
    tasks = service.store.ask([pair("disputed"), *(pair(f"clear {number}") for number in range(8))])
    for task, (ann, bob) in zip(tasks, [(2, -3), *[(1, 1), (-1, -1)] * 4], strict=True):
        answer(service.store, task, "ann", ann)
        answer(service.store, task, "bob", bob)
    return tasks[0]


@pytest.fixture
def judge(service, disputed):
    """An adjudicator who has filled the queue."""
    person = service.person("judge", "adjudicator")
    assert [person.post("/api/adjudicate/fill").json() for _ in range(2)] == [{"added": 1}, {"added": 0}]
    return person


def test_what_annotators_differ_on_is_put_to_an_adjudicator_once(service, disputed, judge):
    task = judge.post("/api/next", purpose="adjudication").json()["task"]
    assert task["prompt"]["text"] == "prompt disputed"
    assert judge.submit(task, {"preference": 3}).status_code == 200
    made = service.store.task(service.store.events()[-1].task)
    assert (made.purpose, made.origin, made.overlap) == ("adjudication", disputed, 1)
    assert judge.post("/api/next", purpose="adjudication").json() == {"task": None}
    assert judge.post("/api/adjudicate/fill").json() == {"added": 0}


def test_who_adjudicates_sees_the_votes_by_place_and_without_names(disputed, judge):
    got = judge.get("/api/adjudicate/list")
    (waiting,) = got.json()["tasks"]
    assert not any(name in got.text for name in ("ann", "bob", disputed))
    task = judge.post("/api/next", purpose="adjudication", task=waiting["id"]).json()["task"]
    assert [one["text"] for one in waiting["responses"]] == [one["text"] for one in task["responses"]]
    left_is_first = task["responses"][0]["text"] == "first disputed"
    said = sorted(vote["body"]["preference"] for vote in waiting["votes"])
    assert said == ([-3, 2] if left_is_first else [-2, 3])


def test_adjudicators_are_handed_disputes_first_and_no_two_the_same(service, judge):
    service.store.ask([pair("ordinary")])
    assert judge.next()["prompt"]["text"] == "prompt disputed"
    assert service.person("two", "adjudicator").post("/api/next", purpose="adjudication").json() == {"task": None}


def test_annotators_do_not_adjudicate(service, judge):
    carl = service.person("carl")
    assert refusal(carl.post("/api/next", purpose="adjudication")) == (403, "not_allowed")
    assert carl.post("/api/next", purpose="gold").status_code == 400
    assert carl.post("/api/next", task="0" * 32).status_code == 400


def test_votes_come_in_another_order_for_each_task_so_nobody_is_followed_from_one_to_the_next(service):
    """Ann always says 2, bob always 3 for the other side: who is listed first varies."""
    enrol(service.store, "ann", "bob")
    tasks = service.store.ask([pair(f"disputed {number}") for number in range(14)] + [pair(f"clear {n}") for n in range(30)])
    for number, task in enumerate(tasks):
        for name, preference in (("ann", 2), ("bob", -3 if number < 14 else 3)):
            answer(service.store, task, name, preference)
    judge = service.person("judge", "adjudicator")
    judge.post("/api/adjudicate/fill")
    listed = judge.get("/api/adjudicate/list").json()["tasks"]
    first = [abs(task["votes"][0]["body"]["preference"]) for task in listed]
    assert len(first) >= 10
    assert set(first) == {2, 3}
