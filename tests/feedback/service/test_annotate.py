"""The annotator's verbs over HTTP: what is answered, when, and that one act is one event."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from feedback_examples import pair
from served import code

from penstock.feedback import bodies
from penstock.feedback.policy import QueuePolicy
from penstock.feedback.records import Item, Response, Task


def several(form, responses, **fields):
    item = Item(f"prompt {form}", tuple(Response(f"response {number}") for number in range(responses)))
    return Task(item=item, form=form, overlap=2, **fields)


@pytest.fixture
def flat(serve):
    """A service without gold and repeats."""
    return serve(QueuePolicy(gold_share=0, repeat_share=0, lease_seconds=60))


def test_a_task_is_shown_in_the_order_of_its_lease(flat):
    flat.store.ask([pair()])
    shown = flat.person("ann").next()
    (lease,) = flat.store.held("ann")
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


def test_a_vote_for_the_left_response_is_one_for_the_response_shown_there(flat):
    flat.store.ask([pair(str(number)) for number in range(6)])
    person, orders = flat.person("ann"), set()
    for _ in range(6):
        shown = person.next()
        assert person.submit(shown, {"preference": 3}).status_code == 200
        (event,) = flat.store.events()[-1:]
        orders.add(event.order)
        assert event.body["preference"] == (3 if shown["responses"][0]["text"].startswith("first") else -3)
    assert orders == {(0, 1), (1, 0)}


def test_rankings_and_ratings_are_turned_as_well(flat):
    flat.store.ask([several("ranking", 3, priority=2), several("rating", 3, axes=("clear",), priority=1)])
    person = flat.person("ann")
    for kind, body, values in (
        ("ranking", {"ranks": [1, 2, 3]}, [1, 2, 3]),
        ("rating", {"scores": {"clear": [3, 4, 5]}}, [3, 4, 5]),
    ):
        shown = person.next()
        assert person.submit(shown, body, kind).status_code == 200
        kept = flat.store.events()[-1].body
        kept = kept["ranks"] if kind == "ranking" else kept["scores"]["clear"]
        assert [kept[int(response["text"][-1])] for response in shown["responses"]] == values


def test_an_edit_is_kept_with_the_response_that_was_shown_at_its_place(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    assert person.submit(shown, {"response": 1, "text": "better"}, "edit").status_code == 200
    (event,) = flat.store.events()
    assert ["first x", "second x"][event.body["response"]] == shown["responses"][1]["text"]
    assert person.submit(shown).status_code == 200
    assert person.submit(shown, {"response": 0, "text": "also after the vote"}, "critique").status_code == 200


def test_the_same_submission_again_gives_the_same_answer(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    answers = [person.submit(shown, key="one-and-the-same").json() for _ in range(3)]
    assert answers == [{"event": 1, "done": 1}] * 3
    assert flat.store.length() == 1


def test_a_double_click_is_one_vote(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: person.submit(shown, key="one-and-the-same").json(), range(8)))
    assert found == [{"event": 1, "done": 1}] * 8
    assert len(flat.store.verify().judgements()) == 1


def test_two_tabs_make_one_vote(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    assert person.get("/api/held").json()["tasks"] == [shown]  # what the second tab shows
    assert person.submit(shown, key="the-first-tab").status_code == 200
    second = person.submit(shown, {"preference": -3}, key="the-second-tab")
    assert (second.status_code, code(second)) == (409, "already_answered")
    assert [event.body["preference"] for event in flat.store.verify().judgements()] in ([1], [-1])


def test_a_key_with_other_content_is_refused(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    person.submit(shown, key="one-and-the-same")
    again = person.submit(shown, {"preference": -1}, key="one-and-the-same")
    assert (again.status_code, code(again)) == (409, "key_reused")


def test_the_keys_of_others_are_their_own(flat):
    flat.store.ask([pair()])
    for name in ("ann", "bob"):
        person = flat.person(name)
        assert person.submit(person.next(), key="one-and-the-same").json()["done"] == 1
    assert flat.store.length() == 2


def test_undo_gives_the_task_back_to_its_author(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    person.submit(shown)
    taken_back = person.undo().json()
    assert taken_back == {"task": shown, "done": 0}
    assert person.submit(shown, {"preference": -2}).json()["done"] == 1
    nothing = flat.person("bob").undo()
    assert (nothing.status_code, code(nothing)) == (409, "nothing_to_undo")


def test_undo_of_a_remark_after_the_vote_gives_no_task(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    person.submit(shown)
    person.submit(shown, {"response": 0, "text": "t"}, "critique")
    assert person.undo().json() == {"task": None, "done": 1}


def test_a_lease_is_renewed_and_given_back(flat, clock):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    clock.seconds += 50
    assert person.get("/api/held").json()["tasks"][0]["deadline"] == 10
    assert person.post("/api/renew", task=shown["id"]).json() == {"deadline": 60}
    assert person.post("/api/give-back", task=shown["id"]).json() == {}
    assert person.get("/api/held").json() == {"tasks": []}


def test_an_expired_lease_still_counts_while_a_seat_is_free(flat, clock):
    flat.store.ask([pair(overlap=1)])
    person = flat.person("ann")
    shown = person.next()
    clock.seconds += 61
    assert person.get("/api/held").json() == {"tasks": []}
    assert person.submit(shown).status_code == 200


def test_an_expired_lease_is_refused_where_others_took_the_seat(flat, clock):
    flat.store.ask([pair(overlap=1)])
    ann, bob = flat.person("ann"), flat.person("bob")
    shown = ann.next()
    clock.seconds += 61
    assert bob.submit(bob.next()).status_code == 200
    for refused in (ann.submit(shown), ann.post("/api/renew", task=shown["id"])):
        assert (refused.status_code, code(refused)) == (409, "seat_taken")


def test_renewing_what_is_answered_says_so(flat):
    flat.store.ask([pair()])
    person = flat.person("ann")
    shown = person.next()
    person.submit(shown)
    refused = person.post("/api/renew", task=shown["id"])
    assert (refused.status_code, code(refused)) == (409, "already_answered")


def test_nobody_holds_more_than_the_policy_allows(flat):
    flat.store.ask([pair(str(number)) for number in range(3)])
    person = flat.person("ann")
    assert person.next()["id"] != person.next()["id"]
    third = person.post("/api/next")
    assert (third.status_code, code(third)) == (403, "not_allowed")
    assert person.get("/api/me").json()["held_most"] == 2


def test_nothing_left_is_null_and_no_error(flat):
    assert flat.person("ann").next() is None


def test_a_claimed_latency_is_at_most_the_time_one_had_the_task(flat, clock):
    flat.store.ask([pair("a"), pair("b")])
    person = flat.person("ann")
    for claimed in (3.5, 1000.0):
        shown = person.next()
        clock.seconds += 10
        person.submit(shown, latency=claimed)
    assert [event.latency for event in flat.store.events()] == [3.5, 10.0]


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
def test_a_body_that_the_task_does_not_ask_for_is_refused(flat, kind, body):
    flat.store.ask([pair()])
    person = flat.person("ann")
    answer = person.submit(person.next(), body, kind)
    assert answer.status_code == 400
    assert flat.store.length() == 0


def test_me_tells_how_much_is_done_and_what_to_read(serve):
    service = serve(guideline="**Judge** well.", guideline_version="2026-11")
    service.store.ask([pair()])
    person = service.person("ann")
    person.submit(person.next())
    me = person.get("/api/me").json()
    assert me["guideline"] == {"version": "2026-11", "html": "<p><strong>Judge</strong> well.</p>\n"}
    assert (me["name"], me["role"], me["done"], me["lease_seconds"]) == ("ann", "annotator", 1, 900)
    assert len(me["csrf"]) == 64


def test_a_score_of_four_hundred_digits_is_refused(service):
    service.store.ask([pair(form="rating")])
    person = service.person("ann")
    answer = person.submit(person.next(), {"scores": {"overall": [10**400, 1]}}, "rating")
    assert answer.status_code == 400


def test_progress_counts_what_one_may_still_judge_and_no_gold(flat):
    flat.store.ask([pair(str(number)) for number in range(3)])
    flat.store.ask([pair("gold", purpose="gold", overlap=0, gold={"preference": 2})])
    ann = flat.person("ann")
    assert ann.get("/api/progress").json() == {"done": 0, "left": 3}
    ann.submit(ann.next()).raise_for_status()
    assert ann.get("/api/progress").json() == {"done": 1, "left": 2}
