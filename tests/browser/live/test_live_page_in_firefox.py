"""The live page in Firefox, on a desktop and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_server import LivePage

from live_examples import log_of, run_folder

pytestmark = pytest.mark.slow

BROWSER = "firefox-esr"
PLACES = {
    "/": "table.runs tbody tr >> nth=1",
    "run/small/curves": "figure.curve path.line",
    "run/small/samples?stage=grpo&step=2": "article ins",
    "run/small/time": ".lanes",
    "run/small/events": ".timeline tbody tr",
    "run/small/spec": "pre:not(:empty)",
    "compare?runs=small,other&stage=grpo": "figure.curve path.band",
}
"""Addresses, and what is there when they are ready."""


def opened(screen: Any, live: LivePage, place: str) -> Any:
    screen.goto(live.at(place))
    screen.wait_for_selector(PLACES[place])
    return screen


def test_metrics_are_found_by_their_name(screen: Any, live: LivePage) -> None:
    opened(screen, live, "run/small/curves").fill("#metrics", "los")
    screen.wait_for_function("() => document.querySelectorAll('figure.curve').length === 1")
    assert screen.inner_text("figure.curve .label") == "loss"


def test_dragging_over_a_chart_zooms_and_a_button_shows_all_again(screen: Any, live: LivePage) -> None:
    opened(screen, live, "run/small/curves")
    box = screen.locator("figure.curve svg").first.bounding_box()
    screen.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    screen.mouse.down()
    screen.mouse.move(box["x"] + box["width"] * 0.68, box["y"] + 40, steps=3)
    screen.mouse.up()
    screen.wait_for_selector("text=Steps 3 to 7")
    assert screen.locator("figure.curve >> nth=0 >> .dot").count() == 5
    screen.get_by_role("button", name="Show all steps").click()
    assert screen.locator("figure.curve >> nth=0 >> .dot").count() == 10


def test_arrow_keys_read_a_curve(screen: Any, live: LivePage) -> None:
    opened(screen, live, "run/small/curves").focus("figure.curve svg >> nth=0")
    screen.keyboard.press("Home")
    screen.keyboard.press("ArrowRight")
    assert screen.inner_text("#tip").split("\n") == ["step 2", "0.2"]


def test_a_run_that_goes_on_is_followed(screen: Any, live: LivePage, runs: Path) -> None:
    log = log_of(run_folder(runs, "growing", "grpo", steps=50), "grpo")
    log.metrics(1, {"reward/mean": 0.25})
    screen.goto(live.at("run/growing/curves"))
    screen.wait_for_selector("figure.curve .last:text-is('0.250')")
    log.metrics(2, {"reward/mean": 0.75})
    screen.wait_for_selector("figure.curve .last:text-is('0.750')")
    assert "2 of 50 steps" in screen.inner_text(".stages")


def test_everyone_can_use_every_place(screen: Any, live: LivePage, usable: Any) -> None:
    for place in PLACES:
        opened(screen, live, place)
        usable(screen)
    assert screen.locator("figure.curve path.band").count() > 0
