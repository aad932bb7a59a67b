"""The live page in a browser: it follows a run that goes on, compares, shows gaps, asks people, and everyone can use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from live_server import LivePage

from live_examples import TOKENS, log_of, row, run_folder, small_run
from penstock.feedback.store import Store

Opened = Callable[..., Any]
RUNS = "table.runs tbody tr"


def in_sight(part: Any) -> dict[str, float]:
    """Where a part is, once it has been scrolled to."""
    part.scroll_into_view_if_needed()
    return part.bounding_box()


def test_all_runs_are_listed_and_one_opens_by_its_name(page: Any, opened: Opened, runs: Path) -> None:
    opened(page, "/", f"{RUNS} >> nth=1")
    assert f"{len(list(runs.iterdir()))} runs in" in page.inner_text(".headline")
    page.click("a:text-is('small')")
    page.wait_for_selector("h1:text-is('small')")
    page.wait_for_selector(".stages:has-text('10 of 10 steps')")
    assert page.inner_text(".stages").count("10 of 10 steps") == 1


def test_the_filter_leaves_runs_whose_name_holds_the_text(page: Any, opened: Opened) -> None:
    opened(page, "/", f"{RUNS} >> nth=1").fill("#filter", "oth")
    page.wait_for_function(f"() => document.querySelectorAll('{RUNS}').length === 1")
    assert page.inner_text("table.runs tbody a") == "other"


def test_curves_are_drawn_and_the_pointer_reads_them(curves: Any) -> None:
    box = curves.locator("figure.curve svg").first.bounding_box()
    curves.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 40)
    assert curves.inner_text("#tip").split("\n") == ["step 10", "1"]


def test_arrow_keys_read_a_curve_without_a_pointer(curves_anywhere: Any) -> None:
    curves_anywhere.focus("figure.curve svg >> nth=0")
    for key, told in (("Home", ["step 1", "0.1"]), ("ArrowRight", ["step 2", "0.2"])):
        curves_anywhere.keyboard.press(key)
        assert curves_anywhere.inner_text("#tip").split("\n") == told


def test_where_a_sentinel_tripped_every_curve_has_a_mark(curves: Any) -> None:
    mark = curves.locator("figure.curve >> nth=0 >> line.alarm title")
    assert mark.text_content() == "log-prob gap, step 3: mean gap 0.002"


def test_a_logarithmic_axis_is_a_switch_that_stays(curves: Any) -> None:
    linear = curves.get_attribute("figure.curve path.line >> nth=0", "d")
    curves.check("text=logarithmic")
    assert curves.get_attribute("figure.curve path.line >> nth=0", "d") != linear
    curves.reload()
    curves.wait_for_selector("figure.curve path.line")
    assert curves.is_checked("text=logarithmic")


def test_metrics_are_found_by_their_name(curves_anywhere: Any) -> None:
    curves_anywhere.fill("#metrics", "los")
    curves_anywhere.wait_for_function("() => document.querySelectorAll('figure.curve').length === 1")
    assert curves_anywhere.inner_text("figure.curve .label") == "loss"
    curves_anywhere.fill("#metrics", "nothing like this")
    curves_anywhere.wait_for_selector("text=No metric matches.")


def test_a_pinned_metric_comes_first_and_stays(curves: Any) -> None:
    curves.get_by_role("button", name="Pin loss").click()
    assert curves.locator(".group h3").all_inner_texts()[0] == "Pinned"
    curves.reload()
    curves.wait_for_selector("figure.curve path.line")
    assert curves.locator("figure.curve .label").first.inner_text() == "loss"


def test_a_heading_stands_above_the_charts_of_its_group(curves: Any) -> None:
    for group in curves.locator(".group").all():
        heading, charts = group.locator("h3").bounding_box(), [one.bounding_box() for one in group.locator("figure").all()]
        assert all(heading["y"] + heading["height"] <= chart["y"] for chart in charts)
        assert heading["x"] == min(chart["x"] for chart in charts)


def test_dragging_over_one_chart_zooms_all_and_the_cursor_is_shared(opened: Opened, screen: Any) -> None:
    opened(screen, "run/small/curves", "figure.curve path.line >> nth=1")
    chart = screen.locator("figure.curve svg").first
    box = in_sight(chart)
    screen.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    screen.mouse.down()
    screen.mouse.move(box["x"] + box["width"] * 0.68, box["y"] + 40, steps=3)
    screen.mouse.up()
    screen.wait_for_selector("text=Steps 3 to 7")
    dots = "[...document.querySelectorAll('figure.curve')].map((one) => one.querySelectorAll('.dot').length)"
    assert screen.evaluate(dots) == [5, 4]  # the loss of step 4 is no number
    box = in_sight(chart)
    screen.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 40)
    assert screen.locator("figure.curve .cursor[visibility=visible] circle").count() == 2
    screen.get_by_role("button", name="Show all steps").click()
    assert screen.evaluate(dots) == [10, 9]


def test_a_constant_zero_lies_on_its_axis(page: Any, live: LivePage, runs: Path) -> None:
    log = log_of(run_folder(runs, "zero", "grpo"), "grpo")
    for step in (1, 2, 3):
        log.metrics(step, {"loss": 0.0})
    page.goto(live.at("run/zero/curves"))
    page.wait_for_selector("figure.curve path.line", state="attached")
    texts = page.locator("figure.curve text.y").all_text_contents()
    assert texts[0] == "0"
    assert not any("−" in text for text in texts)


def test_a_run_without_steps_says_so(page: Any, opened: Opened, runs: Path) -> None:
    run_folder(runs, "fresh", "grpo", steps=0)
    opened(page, "/", "tr:has-text('fresh')")
    row = page.inner_text("tr:has-text('fresh')")
    assert "no steps yet" in row
    assert "null" not in row


def test_a_run_that_goes_on_is_followed_and_a_resume_that_goes_back_is_shown_as_it_is_now(
    screen: Any, opened: Opened, runs: Path, tmp_path: Path
) -> None:
    log = log_of(run_folder(runs, tmp_path.name, "grpo", steps=50), "grpo")
    log.metrics(1, {"reward/mean": 0.25})
    opened(screen, f"run/{tmp_path.name}/curves", "figure.curve .last:text-is('0.250')")
    for step in (2, 3):
        log.metrics(step, {"reward/mean": step / 4})
        screen.wait_for_selector(f"figure.curve .last:text-is('{step / 4:.3f}')")
        screen.wait_for_selector(f".stages:has-text('{step} of 50 steps')")
    log.truncate_after("grpo", 1)
    screen.wait_for_selector("figure.curve .last:text-is('0.250')")
    screen.wait_for_selector(".stages:has-text('1 of 50 steps')")
    assert screen.locator(".stages").count() == 1


def test_arrow_keys_go_through_the_steps(page: Any, opened: Opened) -> None:
    opened(page, "run/small/samples", "output.step:text-is('step 10')")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("text=The answer is 9.")
    page.keyboard.press("Home")
    page.wait_for_selector("text=The answer is 1.")
    assert "step=1" in page.url
    page.reload()
    page.wait_for_selector("text=The answer is 1.")


def test_samples_of_a_prompt_are_compared_word_by_word_and_with_another_step(page: Any, opened: Opened) -> None:
    opened(page, "run/small/samples?stage=grpo&step=2", "article ins")
    assert (page.inner_text("article del"), page.inner_text("article ins")) == ("2", "four")
    page.click("button:text('same prompt') >> nth=0")
    page.click(".same button:text-is('7')")
    page.wait_for_selector("text=step 7, sample 1")
    assert page.locator("article").count() == 5


def test_the_gap_of_each_token_is_coloured_and_told(page: Any, opened: Opened) -> None:
    opened(page, "run/small/samples?stage=grpo&step=1", "article").check("text=log-prob gap")
    page.wait_for_selector("article .token")
    classes = [token.get_attribute("class") for token in page.locator("article .token").all()]
    assert classes == ["token g0 more", "token g4 less"]
    assert "largest −0.3 at token 2" in page.inner_text("article .note >> nth=0")
    assert len(TOKENS["pieces"]) == 2


def test_text_of_a_run_never_becomes_markup(page: Any, opened: Opened, runs: Path) -> None:
    evil = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
    log = log_of(run_folder(runs, "evil", evil), evil)
    log.lifecycle(0, evil, field=evil)
    log.metrics(1, {evil: 1.0})
    log.samples(1, [row(evil, evil, finish=evil, error=evil, key=evil, tokens={"pieces": [evil], "logp": [0], "gap": [0]})])
    for pane in ("curves", "samples", "events", "spec"):
        opened(page, f"run/evil/{pane}", "text=onerror")
        assert page.locator("main img, main script").count() == 0
    assert "gone" not in page.title()


def test_seeds_become_a_band_over_which_runs_can_be_hidden(page: Any, opened: Opened) -> None:
    opened(page, "compare?runs=small,other&stage=grpo", "figure.curve path.band").uncheck(".runs-legend input >> nth=1")
    page.wait_for_function("() => document.querySelectorAll('figure.curve path.band').length === 0")
    assert page.locator("figure.curve >> nth=0 >> path.line").count() == 1


def test_two_samples_are_put_to_people_by_who_has_the_link_only(page: Any, live: LivePage, opened: Opened, runs: Path) -> None:
    samples = "run/small/samples?stage=grpo&step=2"
    opened(page, samples, "article").check("article input >> nth=0")
    assert page.is_disabled("button:text-is('Ask people')")
    page.goto(live.link)
    page.wait_for_selector("table.runs")
    assert "token" not in page.url
    opened(page, samples, "article")
    page.check("article input >> nth=0")
    page.check("article input >> nth=1")
    page.click("button:text-is('Ask people')")
    page.wait_for_selector("text=Asked: task")
    with Store.open(runs.parent / "feedback.db") as store:
        (name,) = store.tasks()
        assert store.task(name).form == "pair"


def test_the_page_says_when_its_server_is_gone_and_goes_on_when_it_is_back(curves: Any, watched: Any) -> None:
    watched.may_fail = {"ERR_FAILED", "ERR_CONNECTION"}
    curves.route("**/api/**", lambda route: route.abort())
    curves.wait_for_selector("#status.trouble")
    assert "cannot be reached" in curves.inner_text("#status")
    curves.unroute("**/api/**")
    curves.wait_for_selector("#status:not(.trouble)")


PLACES = {
    "/": f"{RUNS} >> nth=1",
    "run/small/curves": "figure.curve path.line",
    "run/small/samples?stage=grpo&step=2": "article ins",
    "run/small/time": ".lanes",
    "run/small/events": ".timeline tbody tr",
    "run/small/spec": "pre:not(:empty)",
    "compare?runs=small,other&stage=grpo": "figure.curve path.band",
    "compare": ".empty",
}
"""Addresses, and what is there when they are ready."""


def test_everyone_can_use_every_place(look: Any, opened: Opened, assert_usable: Callable[[Any], None]) -> None:
    for place, ready in PLACES.items():
        opened(look, place, ready)
        if "samples" in place:
            look.check("text=log-prob gap")
            look.check("article input >> nth=0")
        assert_usable(look)


def test_a_long_run_answers_at_once(page: Any, opened: Opened, runs: Path) -> None:
    """Not a measurement (``benchmarks/live_page.py``): only so many points reach the page however long the run is."""
    log = log_of(run_folder(runs, "long", "grpo", steps=5000), "grpo")
    for step in range(1, 5001):
        log.metrics(step, {"reward/mean": step / 5000, "loss": 1 / step})
    opened(page, "run/long/curves", "figure.curve path.line:not(.faint)")
    assert page.evaluate("document.querySelector('figure.curve path.line').getAttribute('d').length") < 10_000


def test_the_server_ends_in_order_and_leaves_the_run(page: Any, tmp_path: Path) -> None:
    small_run(tmp_path, "small")
    server = LivePage(tmp_path)
    page.goto(server.at("run/small/curves"))
    page.wait_for_selector("figure.curve path.line")
    small_run(tmp_path, "third")
    page.close()
    assert server.end() == 0
