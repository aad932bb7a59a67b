"""An annotator's session in a browser, against the real service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from feedback_service import PASSWORD, prompt, question, settled, shown

from penstock.feedback.records import Task

pytestmark = pytest.mark.slow

Make = Callable[..., Task]
LEFT = "No more tasks for now"


def test_a_whole_session_by_keyboard_alone(service: Any, page: Any, pair: Make, many: Make) -> None:
    ratings = many("r", 2, form="rating", axes=("clear", "right"), scale=(1, 5))
    service.ask(pair("p", priority=3), many("k", 3, form="ranking", priority=2), ratings).start()
    page.goto(service.url)
    page.wait_for_function("() => document.activeElement?.matches('input')")  # the name's field has the focus
    for word in ("ann", "Tab", PASSWORD, "Enter"):
        page.keyboard.press(word) if word in ("Tab", "Enter") else page.keyboard.type(word)
    question(page, "Which answer is better?")
    page.keyboard.press("Enter")  # the guideline has been read
    page.keyboard.press("2")
    question(page, "Rank the answers")
    for name in "231":
        page.keyboard.press(name)
    page.keyboard.press("Enter")
    question(page, "Rate each answer")
    for name in "5432":
        page.keyboard.press(name)
    page.keyboard.press("Enter")
    question(page, LEFT)
    vote, ranking, rating = service.store.events()
    assert shown(vote) == 2
    assert [ranking.body["ranks"][index] for index in ranking.order] == [2, 3, 1]
    scores = {axis: [values[index] for index in rating.order] for axis, values in rating.body["scores"].items()}
    assert scores == {"clear": [5, 3], "right": [4, 2]}
    assert page.locator("#done").inner_text() == "3"


def test_keys_give_seven_strengths_a_tie_and_both_bad(service: Any, page: Any, pair: Make) -> None:
    service.ask(*(pair(f"q{i}", priority=9 - i) for i in range(9))).start()
    service.sign_in(page)
    for i, name in enumerate("12345670b"):
        prompt(page, f"q{i}")
        page.keyboard.press(name)
    question(page, LEFT)
    votes = service.said("vote")
    assert [shown(vote) for vote in votes] == [3, 2, 1, 0, -1, -2, -3, 0, 0]
    assert [vote.body["both_bad"] for vote in votes] == [False] * 8 + [True]


def test_a_pair_with_axes_waits_for_enter(service: Any, page: Any, pair: Make) -> None:
    service.ask(pair("p", axes=("overall", "helpful", "harmless"))).start()
    service.sign_in(page)
    page.keyboard.press("Enter")
    page.get_by_role("radio", name="B slightly better").first.focus()
    page.keyboard.press("6")
    page.get_by_role("heading", level=1).focus()
    page.keyboard.press("1")
    assert service.said("vote") == []
    page.keyboard.press("Enter")
    question(page, LEFT)
    (vote,) = service.said("vote")
    sign = 1 if vote.order[0] == 0 else -1
    assert vote.body == {"preference": 3 * sign, "both_bad": False, "axes": {"helpful": -2 * sign}}


def test_skip_and_flag_go_on_and_say_why(service: Any, page: Any, pair: Make) -> None:
    service.ask(pair("a", priority=2), pair("b", priority=1)).start()
    service.sign_in(page)
    prompt(page, "a")
    page.keyboard.press("s")
    prompt(page, "b")
    page.keyboard.press("f")
    page.get_by_label("What is wrong with this task?").fill("holds an address")
    page.get_by_role("button", name="Flag and continue").click()
    question(page, LEFT)
    skip, flag = service.store.events()
    assert (skip.kind, flag.kind, flag.body["reason"]) == ("skip", "flag", "holds an address")


def test_an_edit_and_a_critique_are_saved_beside_the_vote(service: Any, page: Any, pair: Make) -> None:
    service.ask(pair("p")).start()
    service.sign_in(page)
    page.keyboard.press("e")
    page.get_by_role("radio", name="Answer B").check()
    page.get_by_label("The answer as it should be").fill("A better answer.")
    page.keyboard.press("Control+Enter")
    page.get_by_text("edit saved", exact=True).wait_for()
    page.keyboard.press("c")
    page.get_by_label("What is good or bad").fill("Both miss the point.")
    page.keyboard.press("Control+Enter")
    page.get_by_text("critique of all saved", exact=True).wait_for()
    page.keyboard.press("5")
    question(page, LEFT)
    edit, critique, vote = service.store.events()
    assert edit.body == {"response": vote.order[1], "text": "A better answer."}
    assert critique.body == {"response": None, "text": "Both miss the point."}
    assert shown(vote) == -1


def test_undo_brings_the_task_and_its_answer_back(service: Any, page: Any, many: Make) -> None:
    service.ask(many("a", 3, form="ranking", priority=2), many("b", 3, form="ranking", priority=1)).start()
    service.sign_in(page)
    for name in ("3", "1", "2", "Enter"):
        page.keyboard.press(name)
    prompt(page, "b")
    page.keyboard.press("u")
    prompt(page, "a")
    assert page.get_by_text("B > C > A").is_visible()
    page.keyboard.press("Enter")
    prompt(page, "b")
    assert [event.kind for event in service.store.events()] == ["ranking", "undo", "ranking"]
    assert page.locator("#done").inner_text() == "1"


def test_drafts_survive_a_reload_and_go_when_they_are_sent(service: Any, page: Any, many: Make) -> None:
    service.ask(many("k", 3, form="ranking")).start()
    service.sign_in(page)
    page.keyboard.press("3")
    page.keyboard.press("c")
    page.get_by_label("What is good or bad").fill("half a thought")
    page.reload()
    settled(page)
    assert page.get_by_role("group", name="Rank of A").get_by_role("radio", name="3").is_checked()
    page.keyboard.press("c")
    assert page.get_by_label("What is good or bad").input_value() == "half a thought"
    page.keyboard.press("Control+Enter")
    page.get_by_text("critique of all saved", exact=True).wait_for()
    for name in ("1", "2", "Enter"):
        page.keyboard.press(name)
    question(page, LEFT)
    assert page.evaluate("Object.keys(localStorage).filter((name) => /draft|act/.test(name))") == []


def test_signing_out_takes_the_drafts_along(service: Any, page: Any, many: Make) -> None:
    service.ask(many("k", 3, form="ranking")).start()
    service.sign_in(page)
    page.keyboard.press("1")
    assert page.evaluate("Object.keys(localStorage).filter((name) => name.includes('/draft/')).length") == 1
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert page.evaluate("Object.keys(localStorage).filter((name) => name.includes('/draft/')).length") == 0
    page.goto(service.url)
    page.get_by_role("heading", name="Sign in").wait_for()


def test_differences_are_marked_word_by_word(service: Any, page: Any, pair: Make) -> None:
    service.ask(pair("p", "the gate is open now", "the gate is shut now")).start()
    service.sign_in(page)
    page.keyboard.press("d")
    assert sorted(page.locator("mark").all_inner_texts()) == ["open", "shut"]
    page.keyboard.press("d")
    assert page.locator("mark").count() == 0


def test_single_keys_can_be_switched_off(service: Any, page: Any, pair: Make) -> None:
    service.ask(pair("p")).start()
    service.sign_in(page)
    page.keyboard.press("?")
    page.get_by_label("Use single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    page.reload()
    settled(page)
    page.keyboard.press("1")
    assert service.store.events() == []
    page.get_by_role("button", name="A much better").click()
    question(page, LEFT)
    assert [shown(vote) for vote in service.said("vote")] == [3]


def test_the_next_task_is_there_before_it_is_needed(service: Any, page: Any, pair: Make) -> None:
    service.ask(*(pair(f"q{i}", priority=9 - i) for i in range(3))).start()
    with page.expect_response("**/api/next*"):
        service.sign_in(page)
    page.wait_for_load_state("networkidle")
    assert len(service.store.held("ann")) == 2


def test_an_invite_sets_the_password_once(service: Any, page: Any, pair: Make) -> None:
    from penstock.feedback.service.accounts import Accounts

    secret = Accounts(service.store.database, service.store.now).enrol("newcomer", "annotator", {})
    service.ask(pair("p")).start()
    page.goto(f"{service.url}/invite/{secret}")
    page.get_by_label("Password").fill("some words to remember")
    page.keyboard.press("Enter")
    settled(page)
    page.keyboard.press("Enter")
    question(page, "Which answer is better?")
    page.goto(f"{service.url}/invite/{secret}")
    page.get_by_role("heading", name="Page not found").wait_for()
    assert page.get_by_label("Password").count() == 0


def test_keys_do_nothing_while_one_chooses_what_to_write_about(service: Any, page: Any, pair: Make) -> None:
    service.ask(pair("p")).start()
    service.sign_in(page)
    page.keyboard.press("c")
    page.get_by_role("radio", name="Answer B").check()
    for name in ("1", "s", "u", "Enter"):
        page.keyboard.press(name)
    page.get_by_label("What is good or bad").fill("Short.")
    page.keyboard.press("Control+Enter")
    page.get_by_text("critique saved", exact=True).wait_for()
    assert [event.kind for event in service.store.events()] == ["critique"]


def test_a_browser_that_two_people_share_keeps_their_drafts_apart(service: Any, page: Any, many: Make) -> None:
    service.ask(many("k", 3, form="ranking")).start()
    service.sign_in(page)
    page.keyboard.press("3")
    page.context.clear_cookies()
    service.sign_in(page, "ben")
    assert page.get_by_role("radio", checked=True).count() == 0
    page.context.clear_cookies()
    service.sign_in(page)
    assert page.get_by_role("radio", checked=True).count() == 1


@pytest.mark.parametrize(("choice", "kinds"), [("Save and send", ["edit", "vote"]), ("Send without saving", ["vote"])])
def test_what_was_written_and_not_saved_is_asked_about(
    service: Any, page: Any, pair: Make, choice: str, kinds: list[str]
) -> None:
    service.ask(pair("p")).start()
    service.sign_in(page)
    page.keyboard.press("e")
    page.get_by_label("The answer as it should be").fill("A better answer.")
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    page.get_by_role("button", name="Back").click()
    assert service.store.events() == []
    page.keyboard.press("2")
    page.get_by_role("button", name=choice).click()
    question(page, LEFT)
    assert [event.kind for event in service.store.events()] == kinds
    assert shown(service.said("vote")[0]) == 2
