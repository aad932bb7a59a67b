"""Images and sounds as prompts and answers: seen and heard before a vote counts, at any width."""

from __future__ import annotations

from typing import Any

from feedback_service import nothing_left, press

from media_examples import png, wav
from penstock.core.blobs import Blob
from penstock.feedback.records import Item, Response, Task

DARK, LIGHT, BEEP = png(40, 480), png(220, 480), wav(0.4, 3000)
CONTENTS = {Blob.of(DARK, "image/png"): DARK, Blob.of(LIGHT, "image/png"): LIGHT, Blob.of(BEEP, "audio/wav"): BEEP}
NIGHT, DAY, SOUND = CONTENTS


BOTH = (Response("", blobs=(NIGHT,)), Response("", blobs=(DAY,)))


def served(service: Any, page: Any, first: Response, second: Response, *prompt: Blob) -> Any:
    """The page of somebody who is asked this."""
    service.store.ask([Task(item=Item("Which is night?", (first, second), blobs=prompt), overlap=2)], CONTENTS.__getitem__)
    return service.start().sign_in(page)


def test_pictures_are_shown_side_by_side_enlarged_without_a_vote_and_voted_on(service: Any, page: Any) -> None:
    served(service, page, *BOTH)
    pictures = page.locator("#answers img")
    page.wait_for_function("() => [...document.querySelectorAll('#answers img')].every((one) => one.naturalWidth === 480)")
    boxes = [pictures.nth(place).bounding_box() for place in range(2)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert boxes[0]["y"] == boxes[1]["y"]
    names = [pictures.nth(place).get_attribute("alt") for place in range(2)]
    assert names == ["Answer A, 1 of 1: image", "Answer B, 1 of 1: image"]
    page.get_by_role("button", name=names[1]).click()
    page.get_by_role("dialog", name=names[1]).locator("img").wait_for()
    press(page, "2", "Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert service.said("vote") == []
    page.keyboard.press("2")
    nothing_left(page)
    assert service.votes() == [2]


def test_a_picture_fits_a_phone(service: Any, visitor: Any) -> None:
    page = served(service, visitor("phone"), *BOTH, DAY)
    page.wait_for_function("() => [...document.images].every((one) => one.naturalWidth === 480)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_sound_that_was_not_played_stops_a_vote(service: Any, page: Any) -> None:
    served(service, page, Response("", blobs=(SOUND,)), Response("Silence."))
    page.keyboard.press("2")
    page.locator("#notice", has_text="has not been played yet. Please play it, then answer.").wait_for()
    assert service.said("vote") == []
    page.locator("#answers audio").evaluate("(player) => player.play()")
    page.wait_for_function("() => document.querySelector('#answers audio').played.length > 0")
    page.keyboard.press("2")
    nothing_left(page)
    assert len(service.said("vote")) == 1


def test_raw_text_keeps_the_pictures(service: Any, page: Any) -> None:
    served(service, page, Response("*dark*", blobs=(NIGHT,)), Response("*light*", blobs=(DAY,)), DAY)
    page.keyboard.press("r")
    page.locator("#answers", has_text="*dark*").wait_for()
    assert page.locator("#answers img").count() == 2
    assert page.locator("#prompt img").count() == 1
