"""An annotator's session in a browser, against the real service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from feedback_service import PASSWORD, nothing_left, press, prompt, question, settled, shown

from penstock.feedback.records import Task

Make = Callable[..., Task]
AXES = {"form": "rating", "axes": ("clear", "right"), "scale": (1, 5)}


def test_a_whole_session_by_keyboard_alone(service: Any, screen: Any, pair: Make, many: Make) -> None:
    service.ask(pair("p", priority=3), many("k", 3, form="ranking", priority=2), many("r", 2, **AXES)).start()
    screen.goto(service.url)
    screen.wait_for_function("() => document.activeElement?.matches('input')")  # the name's field has the focus
    for word in ("ann", "Tab", PASSWORD, "Enter"):
        screen.keyboard.press(word) if word in ("Tab", "Enter") else screen.keyboard.type(word)
    question(screen, "Which answer is better?")
    press(screen, "Enter", "2")  # the guideline has been read
    question(screen, "Rank the answers")
    press(screen, "2", "3", "1", "Enter")
    question(screen, "Rate each answer")
    press(screen, "5", "4", "3", "2", "Enter")
    nothing_left(screen)
    vote, ranking, rating = service.store.events()
    assert shown(vote) == 2
    assert [ranking.body["ranks"][index] for index in ranking.order] == [2, 3, 1]
    scores = {axis: [values[index] for index in rating.order] for axis, values in rating.body["scores"].items()}
    assert scores == {"clear": [5, 3], "right": [4, 2]}
    assert screen.locator("#done").inner_text() == "3"


def test_keys_give_seven_strengths_a_tie_and_both_bad(service: Any, screen: Any, pair: Make) -> None:
    service.desk(screen, *(pair(f"q{i}", priority=9 - i) for i in range(9)))
    for i, name in enumerate("12345670b"):
        prompt(screen, f"q{i}")
        screen.keyboard.press(name)
    nothing_left(screen)
    assert service.votes() == [3, 2, 1, 0, -1, -2, -3, 0, 0]
    assert [vote.body["both_bad"] for vote in service.said("vote")] == [False] * 8 + [True]


def test_votes_and_ranks_are_given_by_mouse(service: Any, screen: Any, pair: Make, many: Make) -> None:
    service.desk(screen, pair("a", priority=3), pair("b", priority=2), many("k", 3, form="ranking", priority=1))
    for name, button in (("a", "B better"), ("b", "Both bad")):
        prompt(screen, name)
        screen.get_by_role("button", name=button).click()
    prompt(screen, "k")
    press(screen, "2", "3")
    screen.get_by_role("group", name="Rank of C").get_by_role("radio", name="1").check()
    screen.keyboard.press("Enter")
    nothing_left(screen)
    assert service.votes() == [-2, 0]
    assert [vote.body["both_bad"] for vote in service.said("vote")] == [False, True]
    (ranking,) = service.said("ranking")
    assert [ranking.body["ranks"][index] for index in ranking.order] == [2, 3, 1]


def test_a_pair_with_axes_waits_for_enter(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("p", axes=("overall", "helpful", "harmless")))
    page.keyboard.press("Enter")
    page.get_by_role("radio", name="B slightly better").first.focus()
    page.keyboard.press("6")
    page.get_by_role("heading", level=1).focus()
    page.keyboard.press("1")
    assert service.said("vote") == []
    page.keyboard.press("Enter")
    nothing_left(page)
    (vote,) = service.said("vote")
    sign = 1 if vote.order[0] == 0 else -1
    assert vote.body == {"preference": 3 * sign, "both_bad": False, "axes": {"helpful": -2 * sign}}


def test_skip_and_flag_go_on_and_say_why_and_a_skip_is_undone(service: Any, screen: Any, pair: Make) -> None:
    service.desk(screen, pair("a", priority=2), pair("b", priority=1))
    for name, key in (("a", "s"), ("b", "u"), ("a", "s"), ("b", "f")):
        prompt(screen, name)
        screen.keyboard.press(key)
    screen.get_by_label("What is wrong with this task?").fill("holds an address")
    screen.get_by_role("button", name="Flag and continue").click()
    nothing_left(screen)
    assert service.kinds() == ["skip", "undo", "skip", "flag"]
    assert service.said("flag")[0].body["reason"] == "holds an address"


def test_an_edit_and_a_critique_are_saved_beside_the_vote(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("p"))
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
    nothing_left(page)
    edit, critique, vote = service.store.events()
    assert edit.body == {"response": vote.order[1], "text": "A better answer."}
    assert critique.body == {"response": None, "text": "Both miss the point."}
    assert shown(vote) == -1


def test_undo_brings_the_task_and_its_answer_back(service: Any, page: Any, many: Make) -> None:
    service.desk(page, many("a", 3, form="ranking", priority=2), many("b", 3, form="ranking", priority=1))
    press(page, "3", "1", "2", "Enter")
    prompt(page, "b")
    page.keyboard.press("u")
    prompt(page, "a")
    assert page.get_by_text("B > C > A").is_visible()
    page.keyboard.press("Enter")
    prompt(page, "b")
    assert service.kinds() == ["ranking", "undo", "ranking"]
    assert page.locator("#done").inner_text() == "1"


def test_drafts_survive_a_reload_and_go_when_they_are_sent(service: Any, screen: Any, many: Make) -> None:
    service.desk(screen, many("k", 3, form="ranking"))
    press(screen, "3", "c")
    screen.get_by_label("What is good or bad").fill("half a thought")
    screen.reload()
    settled(screen)
    assert screen.get_by_role("group", name="Rank of A").get_by_role("radio", name="3").is_checked()
    screen.keyboard.press("c")
    assert screen.get_by_label("What is good or bad").input_value() == "half a thought"
    screen.keyboard.press("Control+Enter")
    screen.get_by_text("critique of all saved", exact=True).wait_for()
    press(screen, "1", "2", "Enter")
    nothing_left(screen)
    assert screen.evaluate("Object.keys(localStorage).filter((name) => /draft|act/.test(name))") == []


def test_signing_out_takes_the_drafts_along(service: Any, page: Any, many: Make) -> None:
    service.desk(page, many("k", 3, form="ranking"))
    page.keyboard.press("1")
    drafts = "Object.keys(localStorage).filter((name) => name.includes('/draft/')).length"
    assert page.evaluate(drafts) == 1
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert page.evaluate(drafts) == 0
    page.goto(service.url)
    page.get_by_role("heading", name="Sign in").wait_for()


def test_single_keys_can_be_switched_off(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("p"))
    page.keyboard.press("?")
    page.get_by_label("Use single-key shortcuts").uncheck()
    press(page, "Escape", "1")
    page.reload()
    settled(page)
    page.keyboard.press("1")
    assert service.store.events() == []
    page.get_by_role("button", name="A much better").click()
    nothing_left(page)
    assert service.votes() == [3]


def test_the_next_task_is_there_before_it_is_needed(service: Any, page: Any, pair: Make) -> None:
    service.ask(*(pair(f"q{i}", priority=9 - i) for i in range(3))).start()
    with page.expect_response("**/api/next*"):
        service.sign_in(page)
    page.wait_for_load_state("networkidle")
    assert len(service.store.held("ann")) == 2


def test_an_invite_sets_the_password_once_and_shows_the_guideline(
    service: Any, screen: Any, assert_usable: Callable[[Any], None], pair: Make
) -> None:
    invite = service.ask(pair("p")).start().url + service.newcomer()
    screen.goto(invite)
    screen.get_by_role("heading", name="Welcome").wait_for()
    assert_usable(screen)
    screen.get_by_label("Password").fill("some words to remember")
    screen.keyboard.press("Enter")
    guideline = screen.get_by_role("dialog", name="Guideline")
    guideline.wait_for()
    assert_usable(screen)
    guideline.get_by_role("button", name="I have read it").click()
    guideline.wait_for(state="hidden")
    assert screen.get_by_role("heading", level=1).inner_text() == "Which answer is better?"
    screen.goto(invite)
    screen.get_by_role("heading", name="Page not found").wait_for()
    assert screen.get_by_label("Password").count() == 0


def test_keys_do_nothing_while_one_chooses_what_to_write_about(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("p"))
    page.keyboard.press("c")
    page.get_by_role("radio", name="Answer B").check()
    press(page, "1", "s", "u", "Enter")
    page.get_by_label("What is good or bad").fill("Short.")
    page.keyboard.press("Control+Enter")
    page.get_by_text("critique saved", exact=True).wait_for()
    assert service.kinds() == ["critique"]


def test_a_browser_that_two_people_share_keeps_their_drafts_apart(service: Any, page: Any, many: Make) -> None:
    service.desk(page, many("k", 3, form="ranking"))
    page.keyboard.press("3")
    for name, kept in (("ben", 0), ("ann", 1)):
        page.context.clear_cookies()
        service.sign_in(page, name)
        assert page.get_by_role("radio", checked=True).count() == kept


@pytest.mark.parametrize(("choice", "kinds"), [("Save and send", ["edit", "vote"]), ("Send without saving", ["vote"])])
def test_what_was_written_and_not_saved_is_asked_about(
    service: Any, page: Any, pair: Make, choice: str, kinds: list[str]
) -> None:
    service.desk(page, pair("p"))
    page.keyboard.press("e")
    page.get_by_label("The answer as it should be").fill("A better answer.")
    press(page, "Escape", "3")
    page.get_by_role("button", name="Back").click()
    assert service.store.events() == []
    page.keyboard.press("2")
    page.get_by_role("button", name=choice).click()
    nothing_left(page)
    assert service.kinds() == kinds
    assert service.votes() == [2]
