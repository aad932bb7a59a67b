"""What happens on the way between the page and the service: nothing is lost, nothing counts twice, and the page says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from feedback_service import PASSWORD, nothing_left, prompt

from penstock.feedback.records import Task

Make = Callable[..., Task]
FAILED = "Failed to load resource: net::"


def test_pressing_twice_is_one_vote(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("p"))
    page.evaluate(
        "() => { const send = (key) => document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));"
        " send('1'); send('1'); send('7'); document.querySelector('.votes button').click(); }"
    )
    nothing_left(page)
    assert service.votes() == [3]


def test_an_answer_that_arrived_unheard_is_sent_again_and_counts_once(
    service: Any, page: Any, watched: Any, pair: Make
) -> None:
    watched.may_fail.add(FAILED)
    service.desk(page, pair("p"))
    keys = []

    def deaf(route: Any) -> None:
        keys.append(route.request.post_data_json["key"])
        answer = route.fetch()
        if len(keys) == 1:
            route.abort()
        else:
            route.fulfill(response=answer)

    page.route("**/api/submit*", deaf)
    prompt(page, "p")
    page.keyboard.press("3")
    page.locator("#unsaved", has_text="Not saved yet").wait_for()
    assert len(service.said("vote")) == 1
    page.get_by_role("button", name="Try now").click()
    nothing_left(page)
    assert keys == [keys[0]] * 2
    assert len(service.said("vote")) == 1
    assert not page.locator("#unsaved").is_visible()


def test_an_answer_waits_out_a_restart_of_the_service_and_a_reload(service: Any, page: Any, watched: Any, pair: Make) -> None:
    watched.may_fail.add(FAILED)
    service.desk(page, pair("p"))
    service.end()
    page.keyboard.press("6")
    page.locator("#unsaved", has_text="Not saved yet").wait_for()
    assert service.said("vote") == []
    service.start()
    page.reload()
    nothing_left(page)
    assert service.votes() == [-2]


def test_a_second_tab_follows_the_first(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("a", priority=2), pair("b", priority=1))
    other = page.context.new_page()
    other.goto(service.url)
    prompt(page, "a")
    prompt(other, "a")
    page.keyboard.press("2")
    prompt(page, "b")
    prompt(other, "b")
    other.get_by_text("perhaps in another tab").wait_for()
    other.keyboard.press("2")
    nothing_left(other)
    nothing_left(page)
    assert len(service.said("vote")) == 2


def test_the_same_task_answered_on_two_devices_is_one_vote(service: Any, visitor: Any, pair: Make) -> None:
    service.ask(pair("a")).start()
    first, second = (service.sign_in(visitor()) for _ in range(2))
    for device in (first, second):
        prompt(device, "a")
    first.keyboard.press("1")
    nothing_left(first)
    second.keyboard.press("7")
    second.get_by_text("You have already answered this task").wait_for()
    nothing_left(second)
    assert service.votes() == [3]


def test_a_lease_that_ran_out_is_told_and_taken_again_at_work_and_an_answer_counts_without_one(
    service: Any, page: Any, pair: Make
) -> None:
    service.desk(page, pair("a"), lease_seconds=1.5)
    expired = page.locator("#expired", has_text="has run out")
    expired.wait_for()
    assert service.store.held("ann") == []
    page.mouse.click(5, 400)
    page.locator("#expired").wait_for(state="hidden")
    assert len(service.store.held("ann")) == 1
    expired.wait_for()
    assert service.store.held("ann") == []
    page.keyboard.press("2")
    nothing_left(page)
    assert service.votes() == [2]


def test_what_was_written_for_a_task_that_others_took_is_kept_to_copy(service: Any, page: Any, pair: Make) -> None:
    taken = pair("a", overlap=1, priority=2)
    service.desk(page, taken, pair("b", priority=1), lease_seconds=1.5)
    prompt(page, "a")
    page.keyboard.press("c")
    page.get_by_label("What is good or bad").fill("a long thought")
    page.locator("#expired", has_text="has run out").wait_for()
    service.vote(taken, "ben", 1)
    page.get_by_role("button", name="Keep this task").click()
    page.get_by_role("heading", name="This task is no longer available").wait_for()
    assert "a long thought" in page.get_by_label("Your time on it ran out").input_value()
    page.get_by_role("button", name="Next task").click()
    prompt(page, "b")


def test_a_lease_is_renewed_while_one_works(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("a"), lease_seconds=4)
    page.keyboard.press("c")
    until = time.monotonic() + 8
    while time.monotonic() < until:
        page.keyboard.type("word ")
        page.wait_for_timeout(100)
    assert len(service.store.held("ann")) == 1
    assert not page.locator("#expired").is_visible()


def test_what_could_not_be_sent_for_want_of_a_session_is_sent_after_the_next_sign_in(
    service: Any, page: Any, pair: Make
) -> None:
    service.desk(page, pair("a"))
    page.context.clear_cookies()
    page.keyboard.press("3")
    page.get_by_role("heading", name="Sign in").wait_for()
    service.sign_in(page)
    nothing_left(page)
    assert service.votes() == [1]


def test_a_page_that_the_service_does_not_answer_goes_on_when_it_does(
    service: Any, page: Any, watched: Any, pair: Make
) -> None:
    watched.may_fail.add(FAILED)
    service.ask(pair("a", priority=2), pair("b", priority=1)).start()
    page.route("**/api/next*", lambda route: route.abort())
    page.goto(f"{service.url}/sign-in")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.locator("#notice", has_text="Waiting for the server").wait_for()
    page.unroute("**/api/next*")
    prompt(page, "a")
    page.locator("#notice").wait_for(state="hidden")
    assert page.locator("#answers article").count() == 2
