"""The pages for everybody: on a phone, with assistive technology, in the light and in the dark; and texts that mean harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from feedback_service import nothing_left, press, question, settled

from penstock.feedback.records import Task

Make = Callable[..., Task]
LEAST = 44
"""Points of a side of what a finger must hit. SOURCE: WCAG 2.2, 2.5.5."""

SMALL = """(least) => [...document.querySelectorAll("button, .row label, nav a, input[type=number]")]
  .filter((one) => one.offsetParent).map((one) => [one.textContent, one.getBoundingClientRect()])
  .filter(([, box]) => box.width < least || box.height < least).map(([text, box]) => `${text} ${box.width}x${box.height}`)"""
"""What a finger would miss."""

FORMS = {
    "pair": "Which answer is better?",
    "axes": "Which answer is better?",
    "ranking": "Rank",
    "rating": "Rate",
    "percent": "Rate",
}


def task(form: str, pair: Make, many: Make) -> Task:
    return {
        "pair": lambda: pair("p", "A word.\n\n```python\nx = 1\n```\n\n| a | b |\n| --- | --- |\n| 1 | 2 |", "Another [word](https://example.org)."),
        "axes": lambda: pair("p", axes=("overall", "helpful", "harmless")),
        "ranking": lambda: many("k", 4, form="ranking"),
        "rating": lambda: many("r", 2, form="rating", axes=("clear", "right"), scale=(1, 5)),
        "percent": lambda: many("r", 2, form="rating", scale=(0, 100)),
    }[form]()  # fmt: skip


def test_a_vote_by_touch(service: Any, visitor: Any, pair: Make) -> None:
    page = service.desk(visitor("phone"), pair("p"))
    bar = page.locator("#bar").bounding_box()
    assert bar["y"] + bar["height"] == pytest.approx(844, abs=1)  # at hand, wherever one has scrolled to
    page.get_by_role("button", name="B better").tap()
    nothing_left(page)
    assert service.votes() == [-2]


LOOKS = [
    (form, screen, ("light", "dark")[(at + (screen == "desktop")) % 2])
    for at, form in enumerate(FORMS)
    for screen in ("phone", ("desktop", "firefox-phone", "firefox")[at % 3])
]
"""Pairwise: every form on a phone and on another screen, in both browsers and both colours (Firefox over BiDi knows the light
only)."""


@pytest.mark.parametrize(("form", "screen", "scheme"), LOOKS)
def test_every_form_is_accessible_needs_no_sideways_scrolling_and_fits_fingers(
    service: Any, visitor: Any, assert_usable: Any, pair: Make, many: Make, form: str, screen: str, scheme: str
) -> None:
    page = service.desk(visitor(screen, color_scheme=scheme), task(form, pair, many))
    question(page, FORMS[form])
    assert_usable(page)
    if screen == "phone":
        assert page.evaluate(SMALL, LEAST) == []
    press(page, "d", "c")  # differences are marked, and a critique can be written
    assert_usable(page)
    press(page, "Escape", "?")
    assert page.get_by_role("dialog").is_visible()
    assert_usable(page)


def test_pages_without_a_task_are_accessible(service: Any, look: Any, assert_usable: Any) -> None:
    invite = service.start().newcomer()
    for path, heading in ((invite, "Welcome"), ("/nothing", "Page not found"), ("/sign-in", "Sign in")):
        look.goto(service.url + path)
        look.get_by_role("heading", name=heading, level=1).wait_for()
        assert_usable(look)
    look.get_by_label("Name").fill("ann")
    look.get_by_label("Password").fill("not the right one")
    look.keyboard.press("Enter")
    look.get_by_role("alert").wait_for()
    assert look.get_by_label("Password").is_visible()
    assert_usable(look)
    service.sign_in(look)
    nothing_left(look)
    assert_usable(look)


def test_the_theme_button_outlives_a_reload(service: Any, page: Any) -> None:
    service.start()
    page.goto(f"{service.url}/sign-in")
    button = page.get_by_role("button", name="Colours")
    button.click()
    button.click()
    page.reload()
    assert button.get_attribute("aria-label") == "Colours: dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 23)"


def test_a_new_task_is_told_and_takes_the_focus(service: Any, page: Any, pair: Make) -> None:
    service.desk(page, pair("a", priority=2), pair("b", priority=1))
    page.keyboard.press("1")
    page.get_by_role("status").filter(has_text="Saved. Which answer is better?").wait_for()
    assert page.evaluate("document.activeElement.id") == "question"


HARM = """<script>window.harmed = 1</script><img src=x onerror="window.harmed = 2">

[press me](javascript:window.harmed=3) <a href="javascript:window.harmed=4">or me</a>

![a spy](https://spy.example/pixel.png) <img src="https://spy.example/pixel.png">

<style>body { display: none }</style><iframe src="https://spy.example/"></iframe>

<form action="https://spy.example/"><button>Sign in</button></form>
[a page](https://example.org "title\\" onclick=window.harmed=5")
"""


def test_a_response_that_means_harm_is_inert(service: Any, page: Any, watched: Any, pair: Make) -> None:
    service.desk(page, pair("p", HARM, "Fine."))
    answers = page.locator("#answers")
    answers.get_by_text("[image: a spy]").wait_for()
    for text in ("press me", "or me"):
        answers.get_by_text(text).click(force=True)
    press(page, "d", "d")
    settled(page)
    assert page.evaluate("window.harmed") is None
    assert answers.locator("script, img, iframe, style, form, [onclick], [onerror], [style], a[href^=javascript]").count() == 0
    assert answers.locator("a").get_attribute("rel") == "noopener noreferrer nofollow"
    assert watched.hosts() == {service.url.removeprefix("http://")}
