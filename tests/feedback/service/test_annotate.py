"""The annotator's verbs over HTTP: what is answered, when, and that one act is one event."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from feedback_examples import PLAIN, gold, pair
from served import refusal

from penstock.feedback import bodies
from penstock.feedback.records import Item, Response, Task


def several(form, responses, **fields):
    item = Item(f"prompt {form}", tuple(Response(f"response {number}") for number in range(responses)))
    return Task(item=item, form=form, overlap=2, **fields)


@pytest.fixture
def service(serve):
    return serve(replace(PLAIN, lease_seconds=60))


def test_a_task_is_shown_in_the_order_of_its_lease(service, shown):
    (lease,) = service.store.held("ann")
    texts = ["first x", "second x"]
    assert [response["text"] for response in shown["responses"]] == [texts[index] for index in lease.order]
    assert shown["prompt"] == {"text": "prompt x", "turns": [{"role": "", "html": "<p>prompt x</p>\n"}], "media": []}
    assert (shown["form"], shown["axes"], shown["scale"], shown["deadline"]) == ("pair", ["overall"], [1, 7], 60)
    assert shown["answer_kinds"] == ["vote", "edit", "critique", "skip", "flag"]


@pytest.mark.parametrize(
    ("kind", "order", "said", "kept"),
    [
        ("vote", (0, 1), {"preference": 2, "axes": {"a": -1}}, {"preference": 2, "axes": {"a": -1}}),
        ("vote", (1, 0), {"preference": 2, "axes": {"a": -1}}, {"preference": -2, "axes": {"a": 1}}),
        ("ranking", (2, 0, 1), {"ranks": [1, 2, 3]}, {"ranks": [2, 3, 1]}),
        ("rating", (2, 0, 1), {"scores": {"a": [5, 6, 7]}}, {"scores": {"a": [6, 7, 5]}}),
        ("edit", (2, 0, 1), {"response": 0, "text": "t"}, {"response": 2, "text": "t"}),
        ("critique", (1, 0), {"response": None, "text": "t"}, {"response": None, "text": "t"}),
        ("skip", (1, 0), {"reason": "r"}, {"reason": "r"}),
    ],
)
def test_what_is_said_of_places_is_kept_of_responses(kind, order, said, kept):
    assert bodies.as_responses(kind, said, order) == kept
    assert bodies.as_places(kind, kept, order) == said


def test_a_vote_for_the_left_response_is_one_for_the_response_shown_there(service):
    service.store.ask([pair(str(number)) for number in range(6)])
    person, orders = service.person("ann"), set()
    for _ in range(6):
        shown = person.next()
        assert person.submit(shown, {"preference": 3}).status_code == 200
        (event,) = service.store.events()[-1:]
        orders.add(event.order)
        assert event.body["preference"] == (3 if shown["responses"][0]["text"].startswith("first") else -3)
    assert orders == {(0, 1), (1, 0)}


def test_rankings_and_ratings_are_turned_as_well(service):
    service.store.ask([several("ranking", 3, priority=2), several("rating", 3, axes=("clear",), priority=1)])
    person = service.person("ann")
    for kind, body, values in (
        ("ranking", {"ranks": [1, 2, 3]}, [1, 2, 3]),
        ("rating", {"scores": {"clear": [3, 4, 5]}}, [3, 4, 5]),
    ):
        shown = person.next()
        assert person.submit(shown, body, kind).status_code == 200
        kept = service.store.events()[-1].body
        kept = kept["ranks"] if kind == "ranking" else kept["scores"]["clear"]
        assert [kept[int(response["text"][-1])] for response in shown["responses"]] == values


def test_an_edit_is_kept_with_the_response_that_was_shown_at_its_place(service, ann, shown):
    assert ann.submit(shown, {"response": 1, "text": "better"}, "edit").status_code == 200
    (event,) = service.store.events()
    assert ["first x", "second x"][event.body["response"]] == shown["responses"][1]["text"]
    assert ann.submit(shown).status_code == 200
    assert ann.submit(shown, {"response": 0, "text": "also after the vote"}, "critique").status_code == 200


def test_a_double_click_is_one_vote(service, ann, shown):
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: ann.submit(shown, key="one-and-the-same").json(), range(8)))
    assert found == [{"event": 1, "done": 1}] * 8
    assert len(service.store.verify().judgements()) == 1


def test_two_tabs_make_one_vote(service, ann, shown):
    assert ann.get("/api/held").json()["tasks"] == [shown]  # what the second tab shows
    assert ann.submit(shown, key="the-first-tab").status_code == 200
    assert refusal(ann.submit(shown, {"preference": -3}, key="the-second-tab")) == (409, "already_answered")
    assert [event.body["preference"] for event in service.store.verify().judgements()] in ([1], [-1])


def test_a_key_with_other_content_is_refused_and_those_of_others_are_their_own(service, ann, shown):
    assert ann.submit(shown, key="one-and-the-same").json()["done"] == 1
    assert refusal(ann.submit(shown, {"preference": -1}, key="one-and-the-same")) == (409, "key_reused")
    bob = service.person("bob")
    assert bob.submit(bob.next(), key="one-and-the-same").json()["done"] == 1
    assert service.store.length() == 2


def test_what_is_answered_is_not_renewed_and_undo_gives_it_back_to_its_author(service, ann, shown):
    ann.submit(shown)
    assert refusal(ann.post("/api/renew", task=shown["id"])) == (409, "already_answered")
    assert ann.undo().json() == {"task": shown, "done": 0}
    assert ann.submit(shown, {"preference": -2}).json()["done"] == 1
    assert refusal(service.person("bob").undo()) == (409, "nothing_to_undo")


def test_undo_of_a_remark_after_the_vote_gives_no_task(service, ann, shown):
    ann.submit(shown)
    ann.submit(shown, {"response": 0, "text": "t"}, "critique")
    assert ann.undo().json() == {"task": None, "done": 1}


def test_a_lease_is_renewed_and_given_back(service, clock, ann, shown):
    clock.seconds += 50
    assert ann.get("/api/held").json()["tasks"][0]["deadline"] == 10
    assert ann.post("/api/renew", task=shown["id"]).json() == {"deadline": 60}
    assert ann.post("/api/give-back", task=shown["id"]).json() == {}
    assert ann.get("/api/held").json() == {"tasks": []}


def test_an_expired_lease_still_counts_while_a_seat_is_free(service, clock):
    service.store.ask([pair(overlap=1)])
    person = service.person("ann")
    shown = person.next()
    clock.seconds += 61
    assert person.get("/api/held").json() == {"tasks": []}
    assert person.submit(shown).status_code == 200


def test_an_expired_lease_is_refused_where_others_took_the_seat(service, clock):
    service.store.ask([pair(overlap=1)])
    ann, bob = service.person("ann"), service.person("bob")
    shown = ann.next()
    clock.seconds += 61
    assert bob.submit(bob.next()).status_code == 200
    for refused in (ann.submit(shown), ann.post("/api/renew", task=shown["id"])):
        assert refusal(refused) == (409, "seat_taken")


def test_a_claimed_latency_is_at_most_the_time_one_had_the_task(service, clock):
    service.store.ask([pair("a"), pair("b")])
    person = service.person("ann")
    for claimed in (3.5, 1000.0):
        shown = person.next()
        clock.seconds += 10
        person.submit(shown, latency=claimed)
    assert [event.latency for event in service.store.events()] == [3.5, 10.0]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("vote", {"preference": 4}),
        ("vote", {"preference": 1.5}),
        ("vote", {"preference": True}),
        ("vote", {"preference": 1, "both_bad": True}),
        ("vote", {"preference": 1, "axes": {"unknown": 1}}),
        ("vote", {"preference": 1, "more": 1}),
        ("vote", {}),
        ("vote", {"preference": None}),
        ("vote", {"preference": [1]}),
        ("ranking", {"ranks": [1, 2]}),
        ("edit", {"response": 2, "text": "t"}),
        ("edit", {"response": 0, "text": " "}),
        ("edit", {"response": 0, "text": "x" * 200_001}),
        ("skip", {"reason": 5}),
        ("skip", {"reason": "\ud800"}),
    ],
)
def test_a_body_that_the_task_does_not_ask_for_is_refused(service, ann, shown, kind, body):
    assert ann.submit(shown, body, kind).status_code == 400
    assert service.store.length() == 0


def test_me_tells_how_much_is_done_and_what_to_read(serve):
    service = serve(guideline="**Judge** well.", guideline_version="2026-11")
    service.store.ask([pair()])
    person = service.person("ann")
    person.submit(person.next())
    me = person.get("/api/me").json()
    assert me["guideline"] == {"version": "2026-11", "html": "<p><strong>Judge</strong> well.</p>\n"}
    assert (me["name"], me["role"], me["done"], me["lease_seconds"], me["held_most"]) == ("ann", "annotator", 1, 900, 2)
    assert len(me["csrf"]) == 64


def test_a_score_of_four_hundred_digits_is_refused(service):
    service.store.ask([pair(form="rating")])
    person = service.person("ann")
    assert person.submit(person.next(), {"scores": {"overall": [10**400, 1]}}, "rating").status_code == 400


def test_progress_counts_what_one_may_still_judge_and_no_gold(service):
    service.store.ask([pair(str(number)) for number in range(3)])
    service.store.ask([gold()])
    ann = service.person("ann")
    assert ann.get("/api/progress").json() == {"done": 0, "left": 3}
    ann.submit(ann.next()).raise_for_status()
    assert ann.get("/api/progress").json() == {"done": 1, "left": 2}
