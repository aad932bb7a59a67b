"""The live page in a browser: it follows a run that goes on, compares, shows gaps, asks people, and everyone can use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_server import LivePage

from live_examples import TOKENS, log_of, row, run_folder, small_run
from penstock.feedback.store import Store

pytestmark = pytest.mark.slow


def opened(page: Any, live: LivePage, place: str) -> Any:
    page.goto(live.at(place))
    return page


def test_all_runs_are_listed_and_one_opens_by_its_name(page: Any, live: LivePage) -> None:
    opened(page, live, "/")
    page.wait_for_selector("table.runs tbody tr >> nth=1")
    assert "2 runs in" in page.inner_text(".headline")
    page.click("a:text-is('small')")
    page.wait_for_selector("h1:text-is('small')")
    page.wait_for_selector(".stages:has-text('10 of 10 steps')")
    assert page.inner_text(".stages").count("10 of 10 steps") == 1


def test_the_filter_leaves_runs_whose_name_holds_the_text(page: Any, live: LivePage) -> None:
    opened(page, live, "/")
    page.fill("#filter", "oth")
    page.wait_for_function("() => document.querySelectorAll('table.runs tbody tr').length === 1")
    assert page.inner_text("table.runs tbody a") == "other"


def test_curves_are_drawn_and_the_pointer_reads_them(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    box = page.locator("figure.curve svg").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 40)
    assert page.inner_text("#tip").split("\n") == ["step 10", "1"]


def test_arrow_keys_read_a_curve_without_a_pointer(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    page.focus("figure.curve svg >> nth=0")
    page.keyboard.press("Home")
    assert page.inner_text("#tip").split("\n") == ["step 1", "0.1"]
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip").split("\n") == ["step 2", "0.2"]


def test_where_a_sentinel_tripped_every_curve_has_a_mark(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    mark = page.locator("figure.curve >> nth=0 >> line.alarm title")
    assert mark.text_content() == "log-prob gap, step 3: mean gap 0.002"


def test_a_logarithmic_axis_is_a_switch_that_stays(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    linear = page.get_attribute("figure.curve path.line >> nth=0", "d")
    page.check("text=logarithmic")
    assert page.get_attribute("figure.curve path.line >> nth=0", "d") != linear
    page.reload()
    page.wait_for_selector("figure.curve path.line")
    assert page.is_checked("text=logarithmic")


def test_metrics_are_found_by_their_name(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    page.fill("#metrics", "los")
    page.wait_for_function("() => document.querySelectorAll('figure.curve').length === 1")
    assert page.inner_text("figure.curve .label") == "loss"
    page.fill("#metrics", "nothing like this")
    page.wait_for_selector("text=No metric matches.")


def test_a_pinned_metric_comes_first_and_stays(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.get_by_role("button", name="Pin loss").click()
    assert page.locator(".group h3").all_inner_texts()[0] == "Pinned"
    page.reload()
    page.wait_for_selector("figure.curve path.line")
    assert page.locator("figure.curve .label").first.inner_text() == "loss"


def test_a_heading_stands_above_the_charts_of_its_group(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    for group in page.locator(".group").all():
        heading, charts = group.locator("h3").bounding_box(), [one.bounding_box() for one in group.locator("figure").all()]
        assert all(heading["y"] + heading["height"] <= chart["y"] for chart in charts)
        assert heading["x"] == min(chart["x"] for chart in charts)


def test_dragging_over_one_chart_zooms_all_and_the_cursor_is_shared(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line >> nth=1")
    box = page.locator("figure.curve svg").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.68, box["y"] + 40, steps=3)
    page.mouse.up()
    page.wait_for_selector("text=Steps 3 to 7")
    dots = "[...document.querySelectorAll('figure.curve')].map((one) => one.querySelectorAll('.dot').length)"
    assert page.evaluate(dots) == [5, 4]  # the loss of step 4 is no number
    box = page.locator("figure.curve svg").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 40)
    assert page.locator("figure.curve .cursor[visibility=visible] circle").count() == 2
    page.get_by_role("button", name="Show all steps").click()
    assert page.evaluate(dots) == [10, 9]


def test_a_constant_zero_lies_on_its_axis(page: Any, live: LivePage, runs: Path) -> None:
    log = log_of(run_folder(runs, "zero", "grpo"), "grpo")
    for step in (1, 2, 3):
        log.metrics(step, {"loss": 0.0})
    opened(page, live, "run/zero/curves")
    page.wait_for_selector("figure.curve path.line", state="attached")
    texts = page.locator("figure.curve text.y").all_text_contents()
    assert texts[0] == "0"
    assert not any("−" in text for text in texts)


def test_a_run_without_steps_says_so(page: Any, live: LivePage, runs: Path) -> None:
    run_folder(runs, "fresh", "grpo", steps=0)
    opened(page, live, "/")
    page.wait_for_selector("tr:has-text('fresh')")
    row = page.inner_text("tr:has-text('fresh')")
    assert "no steps yet" in row
    assert "null" not in row


def test_a_run_that_goes_on_is_followed_without_a_reload(page: Any, live: LivePage, runs: Path) -> None:
    log = log_of(run_folder(runs, "growing", "grpo", steps=50), "grpo")
    log.metrics(1, {"reward/mean": 0.25})
    opened(page, live, "run/growing/curves")
    page.wait_for_selector("figure.curve .last:text-is('0.250')")
    log.metrics(2, {"reward/mean": 0.75})
    page.wait_for_selector("figure.curve .last:text-is('0.750')")
    page.wait_for_selector(".stages:has-text('2 of 50 steps')")
    assert page.locator(".stages").count() == 1


def test_a_resume_that_goes_back_is_shown_as_it_is_now(page: Any, live: LivePage, runs: Path) -> None:
    log = log_of(run_folder(runs, "back", "grpo", steps=50), "grpo")
    for step in (1, 2, 3):
        log.metrics(step, {"reward/mean": step / 4})
    opened(page, live, "run/back/curves")
    page.wait_for_selector("figure.curve .last:text-is('0.750')")
    log.truncate_after("grpo", 1)
    page.wait_for_selector("figure.curve .last:text-is('0.250')")
    page.wait_for_selector(".stages:has-text('1 of 50 steps')")
    assert page.locator(".stages").count() == 1


def test_arrow_keys_go_through_the_steps(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/samples")
    page.wait_for_selector("output.step:text-is('step 10')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("text=The answer is 9.")
    page.keyboard.press("Home")
    page.wait_for_selector("text=The answer is 1.")
    assert "step=1" in page.url
    page.reload()
    page.wait_for_selector("text=The answer is 1.")


def test_samples_of_a_prompt_are_compared_word_by_word(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/samples?stage=grpo&step=2")
    page.wait_for_selector("article ins")
    assert (page.inner_text("article del"), page.inner_text("article ins")) == ("2", "four")


def test_the_same_prompt_at_another_step_stands_beside_it(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/samples?stage=grpo&step=2")
    page.click("button:text('same prompt') >> nth=0")
    page.click(".same button:text-is('7')")
    page.wait_for_selector("text=step 7, sample 1")
    assert page.locator("article").count() == 5


def test_the_gap_of_each_token_is_coloured_and_told(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/samples?stage=grpo&step=1")
    page.check("text=log-prob gap")
    page.wait_for_selector("article .token")
    classes = [token.get_attribute("class") for token in page.locator("article .token").all()]
    assert classes == ["token g0 more", "token g4 less"]
    assert "largest −0.3 at token 2" in page.inner_text("article .note >> nth=0")
    assert len(TOKENS["pieces"]) == 2


def test_text_of_a_run_never_becomes_markup(page: Any, live: LivePage, runs: Path) -> None:
    evil = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
    log = log_of(run_folder(runs, "evil", evil), evil)
    log.lifecycle(0, evil, field=evil)
    log.metrics(1, {evil: 1.0})
    log.samples(1, [row(evil, evil, finish=evil, error=evil, key=evil, tokens={"pieces": [evil], "logp": [0], "gap": [0]})])
    for pane in ("curves", "samples", "events", "spec"):
        opened(page, live, f"run/evil/{pane}")
        page.wait_for_selector("text=onerror")
        assert page.locator("main img, main script").count() == 0
    assert "gone" not in page.title()


def test_seeds_become_a_band_over_which_runs_can_be_hidden(page: Any, live: LivePage) -> None:
    opened(page, live, "compare?runs=small,other&stage=grpo")
    page.wait_for_selector("figure.curve path.band")
    page.uncheck(".runs-legend input >> nth=1")
    page.wait_for_function("() => document.querySelectorAll('figure.curve path.band').length === 0")
    assert page.locator("figure.curve >> nth=0 >> path.line").count() == 1


def test_two_samples_are_put_to_people_by_who_has_the_link(page: Any, live: LivePage, tmp_path: Path) -> None:
    page.goto(live.link)
    page.wait_for_selector("table.runs")
    assert "token" not in page.url
    opened(page, live, "run/small/samples?stage=grpo&step=2")
    page.check("article input >> nth=0")
    page.check("article input >> nth=1")
    page.click("button:text-is('Ask people')")
    page.wait_for_selector("text=Asked: task")
    with Store.open(tmp_path / "feedback.db") as store:
        (name,) = store.tasks()
        assert store.task(name).form == "pair"


def test_without_the_link_nobody_is_asked(page: Any, live: LivePage) -> None:
    opened(page, live, "run/small/samples?stage=grpo&step=2")
    page.check("article input >> nth=0")
    assert page.is_disabled("button:text-is('Ask people')")


def test_the_page_says_when_its_server_is_gone_and_goes_on_when_it_is_back(page: Any, live: LivePage, watched: Any) -> None:
    watched.may_fail = {"ERR_FAILED", "ERR_CONNECTION"}
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    page.route("**/api/**", lambda route: route.abort())
    page.wait_for_selector("#status.trouble")
    assert "cannot be reached" in page.inner_text("#status")
    page.unroute("**/api/**")
    page.wait_for_selector("#status:not(.trouble)")


PLACES = [
    "/", "run/small/curves", "run/small/samples?stage=grpo&step=2", "run/small/time", "run/small/events", "run/small/spec",
    "compare?runs=small,other&stage=grpo", "compare",
]  # fmt: skip
READY = "figure.curve path.line, article, .lanes, .timeline tbody tr, table.runs tbody tr, pre:not(:empty), .empty"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    visitor: Callable[..., Any], live: LivePage, accessible: Callable[[Any], list[str]], scheme: str
) -> None:
    page, found = visitor(color_scheme=scheme), {}
    for place in PLACES:
        opened(page, live, place)
        page.wait_for_selector(READY)
        if "samples" in place:
            page.check("text=log-prob gap")
            page.check("article input >> nth=0")
        found[place] = accessible(page)
    assert found == {place: [] for place in PLACES}


def test_a_phone_shows_every_place_without_scrolling_sideways(visitor: Callable[..., Any], live: LivePage) -> None:
    page = visitor(viewport={"width": 390, "height": 844})
    for place in PLACES:
        opened(page, live, place)
        page.wait_for_selector(READY)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, place


def test_a_long_run_answers_at_once(page: Any, live: LivePage, runs: Path) -> None:
    """Not a measurement (``benchmarks/live_page.py``): only so many points reach the page however long the run is."""
    log = log_of(run_folder(runs, "long", "grpo", steps=5000), "grpo")
    for step in range(1, 5001):
        log.metrics(step, {"reward/mean": step / 5000, "loss": 1 / step})
    opened(page, live, "run/long/curves")
    page.wait_for_selector("figure.curve path.line:not(.faint)")
    assert page.evaluate("document.querySelector('figure.curve path.line').getAttribute('d').length") < 10_000


def test_the_server_ends_in_order_and_leaves_the_run(live: LivePage, runs: Path, page: Any) -> None:
    opened(page, live, "run/small/curves")
    page.wait_for_selector("figure.curve path.line")
    small_run(runs, "third")
    page.close()
    assert live.end() == 0
