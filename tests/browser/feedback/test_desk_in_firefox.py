"""The pages of the feedback service in Firefox, on a desktop and on a phone: what people do there, and that everyone can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feedback_service import Service, prompt, question, settled, shown

from penstock.feedback.records import Response, Task
from penstock.product import quarantine
from penstock.product.log import record
from penstock.product.signals import Reply, Signal
from penstock.product.tenants import new_token, tenant

pytestmark = pytest.mark.slow

BROWSER = "firefox-esr"
LEFT = "No more tasks for now"
FORMS = {"pair": "Which answer is better?", "ranking": "Rank the answers", "rating": "Rate each answer"}
Make = Callable[..., Task]


def test_an_invite_sets_the_password_and_shows_the_guideline(service: Service, screen: Any, usable: Any, pair: Make) -> None:
    from penstock.feedback.service.accounts import Accounts

    secret = Accounts(service.store.database, service.store.now).enrol("newcomer", "annotator", {})
    service.ask(pair("p")).start()
    screen.goto(f"{service.url}/invite/{secret}")
    screen.get_by_role("heading", name="Welcome").wait_for()
    usable(screen)
    screen.get_by_label("Password").fill("some words to remember")
    screen.keyboard.press("Enter")
    guideline = screen.get_by_role("dialog", name="Guideline")
    guideline.wait_for()
    usable(screen)
    guideline.get_by_role("button", name="I have read it").click()
    guideline.wait_for(state="hidden")
    assert screen.get_by_role("heading", level=1).inner_text() == FORMS["pair"]


def test_a_wrong_password_is_told_and_the_right_one_signs_in(service: Service, screen: Any, usable: Any) -> None:
    service.start()
    screen.goto(service.url)
    screen.get_by_label("Name").fill("ann")
    screen.get_by_label("Password").fill("not the right one")
    screen.keyboard.press("Enter")
    screen.get_by_role("alert").wait_for()
    assert screen.get_by_label("Password").is_visible()
    usable(screen)
    service.sign_in(screen)
    question(screen, LEFT)


def test_nothing_is_voted_while_the_guideline_is_open(service: Service, screen: Any, pair: Make) -> None:
    service.ask(pair("p")).start()
    service.sign_in(screen, read=False)
    for name in "1234567b":
        screen.keyboard.press(name)
    screen.keyboard.press("Enter")  # it has been read
    screen.get_by_role("dialog", name="Guideline").wait_for(state="hidden")
    assert service.store.events() == []
    screen.keyboard.press("2")
    question(screen, LEFT)
    assert [shown(vote) for vote in service.said("vote")] == [2]


def test_pairs_are_voted_on_by_key(service: Service, screen: Any, pair: Make) -> None:
    service.ask(*(pair(name, priority=9 - place) for place, name in enumerate("abc"))).start()
    service.sign_in(screen)
    for name, key in zip("abc", "17b", strict=True):
        prompt(screen, name)
        screen.keyboard.press(key)
    question(screen, LEFT)
    assert [(shown(vote), vote.body["both_bad"]) for vote in service.said("vote")] == [(3, False), (-3, False), (0, True)]


def test_pairs_are_voted_on_by_mouse(service: Service, screen: Any, pair: Make) -> None:
    service.ask(pair("a", priority=2), pair("b", priority=1)).start()
    service.sign_in(screen)
    prompt(screen, "a")
    screen.get_by_role("button", name="B better").click()
    prompt(screen, "b")
    screen.get_by_role("button", name="Both bad").click()
    question(screen, LEFT)
    assert [(shown(vote), vote.body["both_bad"]) for vote in service.said("vote")] == [(-2, False), (0, True)]


def test_a_ranking_is_given_by_key_and_mouse(service: Service, screen: Any, many: Make) -> None:
    service.ask(many("k", 3, form="ranking")).start()
    service.sign_in(screen)
    question(screen, FORMS["ranking"])
    for name in "23":
        screen.keyboard.press(name)
    screen.get_by_role("group", name="Rank of C").get_by_role("radio", name="1").check()
    screen.keyboard.press("Enter")
    question(screen, LEFT)
    (ranking,) = service.said("ranking")
    assert [ranking.body["ranks"][index] for index in ranking.order] == [2, 3, 1]


def test_a_rating_is_given_by_key(service: Service, screen: Any, many: Make) -> None:
    service.ask(many("r", 2, form="rating", axes=("clear", "right"), scale=(1, 5))).start()
    service.sign_in(screen)
    question(screen, FORMS["rating"])
    for name in "5432":
        screen.keyboard.press(name)
    screen.keyboard.press("Enter")
    question(screen, LEFT)
    (rating,) = service.said("rating")
    scores = {axis: [values[index] for index in rating.order] for axis, values in rating.body["scores"].items()}
    assert scores == {"clear": [5, 3], "right": [4, 2]}


def test_a_skip_goes_on_and_undo_brings_the_task_back(service: Service, screen: Any, pair: Make) -> None:
    service.ask(pair("a", priority=2), pair("b", priority=1)).start()
    service.sign_in(screen)
    prompt(screen, "a")
    screen.keyboard.press("s")
    prompt(screen, "b")
    screen.keyboard.press("u")
    prompt(screen, "a")
    assert [event.kind for event in service.store.events()] == ["skip", "undo"]


def test_drafts_survive_a_reload(service: Service, screen: Any, many: Make) -> None:
    service.ask(many("k", 3, form="ranking")).start()
    service.sign_in(screen)
    screen.keyboard.press("3")
    screen.reload()
    settled(screen)
    assert screen.get_by_role("group", name="Rank of A").get_by_role("radio", name="3").is_checked()


@pytest.mark.parametrize("form", FORMS)
def test_everyone_can_use_every_form(service: Service, screen: Any, usable: Any, pair: Make, many: Make, form: str) -> None:
    asked = {
        "pair": lambda: pair("p", "The gate is open.", "The gate is shut."),
        "ranking": lambda: many("k", 4, form="ranking"),
        "rating": lambda: many("r", 2, form="rating", axes=("clear", "right"), scale=(1, 5)),
    }
    service.ask(asked[form]()).start()
    service.sign_in(screen)
    question(screen, FORMS[form])
    usable(screen)
    for name in "dc":  # differences are marked, and a critique can be written
        screen.keyboard.press(name)
    usable(screen)
    screen.keyboard.press("Escape")
    screen.keyboard.press("?")
    assert screen.get_by_role("dialog").is_visible()
    usable(screen)


def test_an_administrator_asks_what_a_file_holds(service: Service, screen: Any, usable: Any, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Question {i}?", "responses": ["Yes.", "No."]}) + "\n" for i in range(2)))
    service.start().sign_in(screen, "root")
    screen.goto(f"{service.url}/admin")
    screen.locator("#gold :is(table, p)").wait_for()
    screen.get_by_label("File", exact=True).set_input_files(file)
    screen.get_by_role("button", name="Ask", exact=True).click()
    screen.get_by_text("2 new questions asked").wait_for()
    assert len(list(service.store.tasks())) == 2
    usable(screen)


def test_a_correction_is_compared_and_approved(service: Service, screen: Any, usable: Any) -> None:
    new_token(service.store, "shop")
    reply = Reply("How long do refunds take?", Response("Refunds take a year."))
    edit = Signal("s1", "u1", "edit", reply, text="Refunds take five days.")
    record(service.store, tenant(service.store, "shop"), [edit])
    service.start().sign_in(screen, "ada")
    screen.goto(f"{service.url}/corrections")
    screen.locator("#count", has_text="review").wait_for()
    assert screen.locator("#text mark").all_inner_texts() == ["five days"]
    usable(screen)
    screen.keyboard.press("a")
    screen.locator("#count", has_text="Nothing to review").wait_for()
    ((correction, ruling),) = quarantine.standing(service.store)
    assert (correction.text, ruling.verdict, ruling.annotator) == ("Refunds take five days.", "approved", "ada")
