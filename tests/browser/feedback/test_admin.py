"""Administrators and adjudicators at their pages, against the real service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feedback_service import Service, question, shown

from penstock.feedback.records import Submission, Task

pytestmark = pytest.mark.slow

Make = Callable[..., Task]


def vote(service: Service, task: Task, annotator: str, preference: int) -> None:
    """A vote that came by another way than this test's browser."""
    service.store.hand_out(task.id, annotator)
    service.store.submit(Submission("vote", task.id, annotator, f"{annotator}:{task.id}", {"preference": preference}))


def at(service: Service, page: Any, path: str, name: str = "root") -> Any:
    service.sign_in(page, name)
    page.goto(service.url + path)
    return page


def test_an_administrator_enrols_somebody_who_then_votes(service: Any, page: Any, visitor: Any, pair: Make) -> None:
    service.ask(pair("p")).start()
    at(service, page, "/admin")
    page.get_by_text("Add a person").click()
    page.get_by_label("Name", exact=True).fill("fay")
    page.get_by_label("Groups (optional)").fill("language=fr, region=EU")
    page.get_by_role("button", name="Add", exact=True).click()
    link = page.get_by_role("textbox", name="Invite link for fay")
    link.wait_for()
    assert service.store.annotator("fay").attributes == {"language": "fr", "region": "EU"}
    newcomer = visitor()
    newcomer.goto(link.input_value())
    newcomer.get_by_label("Password").fill("some words to remember")
    newcomer.keyboard.press("Enter")
    question(newcomer, "Which answer is better?")
    newcomer.get_by_role("button", name="I have read it").click()
    newcomer.keyboard.press("3")
    question(newcomer, "No more tasks for now")
    assert [(event.annotator, shown(event)) for event in service.said("vote")] == [("fay", 1)]


def test_who_is_switched_off_is_out_at_once(service: Any, page: Any, visitor: Any, pair: Make) -> None:
    service.ask(pair("p")).start()
    other = service.sign_in(visitor())
    at(service, page, "/admin")
    page.get_by_role("button", name="Switch ann off").click()
    page.get_by_role("button", name="Switch ann on").wait_for()
    other.keyboard.press("1")
    other.get_by_role("heading", name="Sign in").wait_for()
    assert service.said("vote") == []


def test_the_numbers_the_chart_and_the_lineage_are_there(service: Any, page: Any, pair: Make) -> None:
    tasks = [pair(f"q{i}") for i in range(3)]
    service.ask(*tasks)
    for task in tasks:
        vote(service, task, "ann", 2)
        vote(service, task, "ben", 1)
    at(service.start(), page, "/admin")
    page.get_by_role("img", name="6 votes on 1 days").wait_for()
    assert page.get_by_role("row", name="ann annotator 3").is_visible()
    assert page.get_by_role("progressbar", name="Questions: finished tasks").get_attribute("value") == "3"
    page.locator("#log summary").first.click()
    assert page.get_by_text("Question q2?").first.is_visible()


def test_a_vote_is_retracted_with_a_reason(service: Any, page: Any, pair: Make) -> None:
    task = pair("p")
    service.ask(task)
    vote(service, task, "ann", 2)
    at(service.start(), page, "/admin")
    page.get_by_label("Select event 1").check()
    page.get_by_role("button", name="Retract 1 selected").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("was a test")
    page.get_by_role("dialog").get_by_role("button", name="Retract").click()
    page.get_by_role("cell", name="event 1: was a test").wait_for()
    (event,) = service.said("retract")
    assert (event.target, event.body, event.annotator) == (1, {"reason": "was a test"}, "root")


def test_the_log_is_filtered_and_several_events_are_retracted_at_once(service: Any, page: Any, pair: Make) -> None:
    tasks = [pair(f"q{i}") for i in range(40)]
    service.ask(*tasks)
    for task in tasks:
        vote(service, task, "ann", 2)
    vote(service, tasks[3], "ben", -2)
    at(service.start(), page, "/admin")
    page.locator("#log tbody tr").nth(24).wait_for()
    assert page.get_by_role("button", name="Retract").count() == 1
    page.get_by_label("Text").fill("Question q3?")
    page.get_by_label("Text").press("Tab")
    page.wait_for_function("() => document.querySelectorAll('#log tbody tr').length === 2")
    for box in page.locator("#log").get_by_role("checkbox").all():
        box.check()
    page.get_by_role("button", name="Retract 2 selected").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("a broken prompt")
    page.get_by_role("dialog").get_by_role("button", name="Retract").click()
    page.get_by_role("cell", name="event 4: a broken prompt").wait_for()
    assert sorted(event.target for event in service.said("retract")) == [4, 41]


def test_the_work_of_a_person_is_excluded_for_some_days_and_taken_back_in_the_log(service: Any, page: Any, pair: Make) -> None:
    task = pair("p")
    service.ask(task)
    vote(service, task, "ann", 2)
    at(service.start(), page, "/admin")
    page.get_by_role("button", name="Exclude the work of ann").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Last day").fill("2026-01-31")
    dialog.get_by_label("Reason").fill("answers without reading")
    dialog.get_by_role("button", name="Exclude", exact=True).click()
    page.get_by_role("cell", name="ann does not count to 2026-02-01 00:00: answers without reading").wait_for()
    page.get_by_label("Select event 2").check()
    page.get_by_role("button", name="Retract 1 selected").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("it was a test")
    page.get_by_role("dialog").get_by_role("button", name="Retract").click()
    page.get_by_role("cell", name="ann counts again (event 2): it was a test").wait_for()
    (event,) = service.said("include")
    assert (event.target, event.annotator) == (2, "root")


def test_tables_scroll_inside_their_boxes_on_a_phone(service: Any, visitor: Any, pair: Make) -> None:
    task = pair("p")
    service.ask(task)
    vote(service, task, "ann", 2)
    page = visitor(viewport={"width": 390, "height": 780})
    at(service.start(), page, "/admin")
    page.locator("#people tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = "document.querySelector('#people')"
    page.evaluate(f"{box}.scrollLeft = 10000")
    last = page.locator("#people tbody tr").first.get_by_role("button").last.bounding_box()
    assert last["x"] + last["width"] <= 390


def test_an_export_is_saved_and_its_hash_is_told(service: Any, page: Any, pair: Make, tmp_path: Path) -> None:
    task = pair("p")
    service.ask(task).start()
    at(service, page, "/admin")
    page.get_by_role("link", name="pairs as jsonl").click()
    page.get_by_text("there are no rows to export yet").wait_for()
    vote(service, task, "ann", 2)
    with page.expect_download() as download:
        page.get_by_role("link", name="pairs as jsonl").click()
    download.value.save_as(tmp_path / "rows.jsonl")
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["chosen"] == "First answer to p."
    page.locator("#exported", has_text="content ").wait_for()


def test_a_dispute_is_found_judged_and_gone(service: Any, page: Any, pair: Make) -> None:
    disputed = pair("disputed")
    service.ask(disputed)
    for name, preference in (("ann", 2), ("ben", -2)):
        vote(service, disputed, name, preference)
    at(service.start(), page, "/adjudicate", "ada")
    page.get_by_text("No open disputes").wait_for()
    page.get_by_role("button", name="Find new disputes").click()
    page.get_by_text("1 open dispute").wait_for()
    page.locator("#prompt", has_text="Question disputed?").wait_for()
    said = page.get_by_role("region", name="What annotators answered").get_by_role("listitem").all_inner_texts()
    assert sorted(said) == ["A better", "B better"]
    page.keyboard.press("1")
    question(page, "No more tasks for now")
    page.get_by_text("No open disputes").wait_for()
    last = service.said("vote")[-1]
    assert (last.annotator, shown(last)) == ("ada", 3)


def test_an_annotator_has_no_way_to_the_other_pages(service: Any, page: Any) -> None:
    service.start()
    service.sign_in(page)
    assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == ["Annotate"]
    for path in ("/admin", "/adjudicate"):
        page.goto(service.url + path)
        page.get_by_role("heading", name="You don't have access to this page").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_accessible_and_fit_a_phone(service: Any, visitor: Any, accessible: Any, pair: Make, scheme: str) -> None:
    task = pair("p")
    service.ask(task)
    vote(service, task, "ann", 2)
    vote(service, task, "ben", -1)
    service.start()
    page = visitor(color_scheme=scheme, viewport={"width": 390, "height": 780})
    at(service, page, "/admin")
    page.get_by_role("img", name="2 votes on 1 days").wait_for()
    page.get_by_text("Add a person").click()
    page.locator("#log summary").first.click()
    assert accessible(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(f"{service.url}/adjudicate")
    page.get_by_role("button", name="Find new disputes").click()
    question(page, "Which answer is better?")
    page.get_by_text("All open disputes").click()
    assert accessible(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
