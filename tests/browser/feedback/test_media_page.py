"""Images and sounds as prompts and answers: seen and heard before a vote counts, at any width."""

from __future__ import annotations

from typing import Any

import pytest
from feedback_service import question, shown

from media_examples import png, wav
from penstock.core.blobs import Blob
from penstock.feedback.records import Item, Response, Task

pytestmark = pytest.mark.slow

DARK, LIGHT, BEEP = png(40, 480), png(220, 480), wav(0.4, 3000)
CONTENTS = {Blob.of(DARK, "image/png"): DARK, Blob.of(LIGHT, "image/png"): LIGHT, Blob.of(BEEP, "audio/wav"): BEEP}
NIGHT, DAY, SOUND = CONTENTS


def asked(first: Response, second: Response, *prompt: Blob) -> Task:
    return Task(item=Item("Which is night?", (first, second), blobs=prompt), overlap=2)


def served(service: Any, task: Task) -> Any:
    service.store.ask([task], CONTENTS.__getitem__)
    return service.start()


def test_pictures_are_shown_side_by_side_and_voted_on(service: Any, page: Any) -> None:
    served(service, asked(Response("", blobs=(NIGHT,)), Response("", blobs=(DAY,))))
    service.sign_in(page)
    pictures = page.locator("#answers img")
    page.wait_for_function("() => [...document.querySelectorAll('#answers img')].every((one) => one.naturalWidth === 480)")
    boxes = [pictures.nth(place).bounding_box() for place in range(2)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert [pictures.nth(place).get_attribute("alt") for place in range(2)] == [
        "Answer A, 1 of 1: image", "Answer B, 1 of 1: image",
    ]  # fmt: skip
    page.keyboard.press("2")
    question(page, "No more tasks for now")
    assert [shown(vote) for vote in service.said("vote")] == [2]


def test_a_picture_is_enlarged_and_keys_do_not_vote_meanwhile(service: Any, page: Any) -> None:
    served(service, asked(Response("", blobs=(NIGHT,)), Response("", blobs=(DAY,))))
    service.sign_in(page)
    page.get_by_role("button", name="Answer B, 1 of 1: image").click()
    page.get_by_role("dialog", name="Answer B, 1 of 1: image").locator("img").wait_for()
    page.keyboard.press("2")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert service.said("vote") == []


def test_a_picture_fits_a_phone(service: Any, visitor: Any) -> None:
    served(service, asked(Response("", blobs=(NIGHT,)), Response("", blobs=(DAY,)), DAY))
    page = service.sign_in(visitor(viewport={"width": 390, "height": 844}))
    page.wait_for_function("() => [...document.images].every((one) => one.naturalWidth === 480)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_sound_that_was_not_played_stops_a_vote(service: Any, page: Any) -> None:
    served(service, asked(Response("", blobs=(SOUND,)), Response("Silence.")))
    service.sign_in(page)
    page.keyboard.press("2")
    page.locator("#notice", has_text="has not been played yet. Please play it, then answer.").wait_for()
    assert service.said("vote") == []
    page.locator("#answers audio").evaluate("(player) => player.play()")
    page.wait_for_function("() => document.querySelector('#answers audio').played.length > 0")
    page.keyboard.press("2")
    question(page, "No more tasks for now")
    assert len(service.said("vote")) == 1


def test_raw_text_keeps_the_pictures(service: Any, page: Any) -> None:
    served(service, asked(Response("*dark*", blobs=(NIGHT,)), Response("*light*", blobs=(DAY,)), DAY))
    service.sign_in(page)
    page.keyboard.press("r")
    page.locator("#answers", has_text="*dark*").wait_for()
    assert page.locator("#answers img").count() == 2
    assert page.locator("#prompt img").count() == 1
