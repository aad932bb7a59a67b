"""What an annotator reads: prompts as conversations, answers exactly as they were written, and both before anything counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from feedback_service import nothing_left, press, prompt

from penstock.feedback.records import Item, Response, Task

Make = Callable[..., Task]
CONVERSATION = "".join(f"\n\nHuman: Question {i}? {'words ' * 30}\n\nAssistant: Reply {i}." for i in range(9))
CONVERSATION += "\n\nHuman: The last question?\n\nAssistant:"


def asked(text: str, first: str = "One.", second: str = "Two.") -> Task:
    return Task(item=Item(prompt=text, responses=(Response(first), Response(second))), overlap=2)


def test_nothing_is_voted_while_the_guideline_covers_a_first_visit(service: Any, screen: Any, pair: Make) -> None:
    service.ask(pair("p")).start().sign_in(screen, read=False)
    assert screen.get_by_role("dialog", name="Guideline").is_visible()
    press(screen, *"1234567b")
    assert service.store.events() == []
    screen.keyboard.press("Enter")
    screen.get_by_role("dialog", name="Guideline").wait_for(state="hidden")
    screen.keyboard.press("2")
    nothing_left(screen)
    assert service.votes() == [2]
    screen.reload()
    nothing_left(screen)
    assert not screen.get_by_role("dialog", name="Guideline").is_visible()


def test_an_answer_below_the_screen_is_shown_before_a_vote_counts(service: Any, visitor: Any) -> None:
    page = service.desk(visitor("phone"), asked("Which?", "A long line of words.\n\n" * 60, "A second line.\n\n" * 60))
    page.get_by_role("button", name="A better").tap()
    page.locator("#notice", has_text="Not sent: answer B has not been on your screen yet").wait_for()
    assert service.store.events() == []
    assert page.locator(".place-1").bounding_box()["y"] < 300
    page.get_by_role("button", name="A better").tap()
    nothing_left(page)
    assert len(service.said("vote")) == 1


def test_a_conversation_is_shown_in_turns_opens_at_its_end_and_leaves_room_for_the_answers(service: Any, visitor: Any) -> None:
    page = service.desk(visitor(viewport={"width": 1280, "height": 720}), asked(CONVERSATION))
    assert page.locator("#answers").bounding_box()["y"] < 400
    turns = page.locator("#prompt .turn")
    assert turns.count() == 19
    assert turns.last.inner_text().split("\n")[0] == "User"
    box, last = page.locator("#prompt").bounding_box(), turns.last.bounding_box()
    assert last["y"] >= box["y"]
    assert last["y"] + last["height"] <= box["y"] + box["height"] + 1
    more = page.get_by_role("button", name="Show the whole prompt")
    assert "linear-gradient" in page.evaluate("getComputedStyle(document.querySelector('#prompt')).maskImage")
    more.click()
    assert page.evaluate("document.querySelector('#prompt').scrollHeight - document.querySelector('#prompt').clientHeight") == 0


def test_line_breaks_stay_and_formulas_are_rendered(service: Any, page: Any) -> None:
    service.desk(page, asked("Which?", "first\nsecond", r"so \(x^2\) and \[\frac{1}{2}\]"))
    page.locator("#answers math").first.wait_for()
    texts = page.locator("#answers .prose").all_inner_texts()
    assert "first\nsecond" in texts
    assert page.locator("#answers math").count() == 2
    assert page.locator("math msup").bounding_box()["width"] > 5


def test_the_raw_text_is_a_switch_that_stays(service: Any, page: Any) -> None:
    service.desk(page, asked("*Which*?", "a  **b**\n\n\n  c", "d"))
    page.keyboard.press("r")
    assert "a  **b**\n\n\n  c" in page.locator("#answers .raw").all_inner_texts()
    assert page.locator("#prompt").inner_text() == "*Which*?"
    page.reload()
    page.locator("#answers .raw").first.wait_for()


def test_unrelated_answers_offer_no_differences_and_similar_ones_remember_the_choice(service: Any, page: Any) -> None:
    service.desk(
        page,
        replace(asked("Question a?", "Cats sleep all day.", "Rivers flow to the sea!"), priority=3),
        replace(asked("Question b?", "the gate is open now", "the gate is shut now"), priority=2),
        replace(asked("Question c?", "the gate is red now", "the gate is blue now"), priority=1),
    )
    prompt(page, "a")
    page.keyboard.press("d")
    assert not page.locator("#diff").is_visible()
    assert page.locator("mark").count() == 0
    page.keyboard.press("1")
    prompt(page, "b")
    assert page.locator("mark").count() == 0
    before = page.evaluate("getComputedStyle(document.querySelector('.answer .prose')).fontFamily")
    page.keyboard.press("d")
    assert sorted(page.locator("mark").all_inner_texts()) == ["open", "shut"]
    page.keyboard.press("d")
    assert page.locator("mark").count() == 0
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.querySelector('.answer .plain')).fontFamily") == before
    page.keyboard.press("1")
    prompt(page, "c")
    assert sorted(page.locator("mark").all_inner_texts()) == ["blue", "red"]


def test_how_far_one_is_and_how_much_is_left_are_told(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, *(pair(f"q{i}", priority=9 - i) for i in range(6)))
    page.locator(".done", has_text="0 of 6 done").wait_for()
    for i in range(4):
        prompt(page, f"q{i}")
        page.keyboard.press("1")
    prompt(page, "q4")
    assert page.locator(".done").inner_text().startswith("4 of 6 done")
    assert "to go" in page.locator("#pace").inner_text()


def test_on_a_phone_the_scale_is_words(service: Any, visitor: Any, pair: Make) -> None:
    page = service.desk(visitor("phone"), pair("p"))
    texts = [text.replace("\n", " ") for text in page.locator(".votes button").all_inner_texts()]
    assert texts == [
        "A much better", "A better", "A slightly better", "Tie", "B slightly better", "B better", "B much better", "Both bad",
    ]  # fmt: skip
    assert page.evaluate(
        "[...document.querySelectorAll('.votes button')].every((one) => one.scrollWidth <= one.clientWidth + 1)"
    )
