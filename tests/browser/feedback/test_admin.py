"""Administrators and adjudicators at their pages, against the real service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feedback_service import give_reason, nothing_left, question, shown

from penstock.feedback.records import Task

Make = Callable[..., Task]


@pytest.fixture
def voted(service: Any, pair: Make) -> Task:
    """A question that ann has answered."""
    task = pair("p")
    service.ask(task).vote(task, "ann", 2)
    return task


def test_an_administrator_enrols_somebody_who_then_votes(service: Any, page: Any, visitor: Any, pair: Make) -> None:
    service.ask(pair("p")).start().at(page, "/admin")
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
    nothing_left(newcomer)
    assert [(event.annotator, shown(event)) for event in service.said("vote")] == [("fay", 1)]


def test_who_is_switched_off_is_out_at_once(service: Any, page: Any, visitor: Any, pair: Make) -> None:
    other = service.desk(visitor(), pair("p"))
    service.at(page, "/admin")
    page.get_by_role("button", name="Switch ann off").click()
    page.get_by_role("button", name="Switch ann on").wait_for()
    other.keyboard.press("1")
    other.get_by_role("heading", name="Sign in").wait_for()
    assert service.said("vote") == []


def test_the_numbers_the_chart_and_the_lineage_are_there(service: Any, page: Any, pair: Make) -> None:
    tasks = [pair(f"q{i}") for i in range(3)]
    service.ask(*tasks)
    for task in tasks:
        service.vote(task, "ann", 2)
        service.vote(task, "ben", 1)
    service.start().at(page, "/admin")
    page.get_by_role("img", name="6 votes on 1 days").wait_for()
    assert page.get_by_role("row", name="ann annotator 3").is_visible()
    assert page.get_by_role("progressbar", name="Questions: finished tasks").get_attribute("value") == "3"
    page.locator("#log summary").first.click()
    assert page.get_by_text("Question q2?").first.is_visible()


def test_the_log_is_filtered_and_several_events_are_retracted_at_once(service: Any, page: Any, pair: Make) -> None:
    tasks = [pair(f"q{i}") for i in range(40)]
    service.ask(*tasks)
    for task in tasks:
        service.vote(task, "ann", 2)
    service.vote(tasks[3], "ben", -2)
    service.start().at(page, "/admin")
    page.locator("#log tbody tr").nth(24).wait_for()
    assert page.get_by_role("button", name="Retract").count() == 1
    page.get_by_label("Text", exact=True).fill("Question q3?")
    page.get_by_label("Text", exact=True).press("Tab")
    page.wait_for_function("() => document.querySelectorAll('#log tbody tr').length === 2")
    for box in page.locator("#log").get_by_role("checkbox").all():
        box.check()
    page.get_by_role("button", name="Retract 2 selected").click()
    give_reason(page, "a broken prompt", "Retract")
    page.get_by_role("cell", name="event 4: a broken prompt").wait_for()
    assert sorted(event.target for event in service.said("retract")) == [4, 41]
    assert {(event.annotator, event.body["reason"]) for event in service.said("retract")} == {("root", "a broken prompt")}


@pytest.mark.usefixtures("voted")
def test_the_work_of_a_person_is_excluded_for_some_days_and_taken_back_in_the_log(service: Any, page: Any) -> None:
    service.start().at(page, "/admin")
    page.get_by_role("button", name="Exclude the work of ann").click()
    page.get_by_role("dialog").get_by_label("Last day").fill("2026-01-31")
    give_reason(page, "answers without reading", "Exclude")
    page.get_by_role("cell", name="ann does not count to 2026-02-01 00:00: answers without reading").wait_for()
    page.get_by_label("Select event 2").check()
    page.get_by_role("button", name="Retract 1 selected").click()
    give_reason(page, "it was a test", "Retract")
    page.get_by_role("cell", name="ann counts again (event 2): it was a test").wait_for()
    (event,) = service.said("include")
    assert (event.target, event.annotator) == (2, "root")


@pytest.mark.usefixtures("voted")
def test_tables_scroll_inside_their_boxes_on_a_phone(service: Any, visitor: Any) -> None:
    page = visitor("phone")
    service.start().at(page, "/admin")
    page.locator("#people tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = "document.querySelector('#people')"
    page.evaluate(f"{box}.scrollLeft = 10000")
    last = page.locator("#people tbody tr").first.get_by_role("button").last.bounding_box()
    assert last["x"] + last["width"] <= 390


def test_an_export_is_saved_and_its_hash_is_told(service: Any, page: Any, pair: Make, tmp_path: Path) -> None:
    task = pair("p")
    service.ask(task).start().at(page, "/admin")
    page.get_by_role("link", name="pairs as jsonl").click()
    page.get_by_text("there are no rows to export yet").wait_for()
    service.vote(task, "ann", 2)
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
        service.vote(disputed, name, preference)
    service.start().at(page, "/adjudicate", "ada")
    page.get_by_text("No open disputes").wait_for()
    page.get_by_role("button", name="Find new disputes").click()
    page.get_by_text("1 open dispute").wait_for()
    page.locator("#prompt", has_text="Question disputed?").wait_for()
    said = page.get_by_role("region", name="What annotators answered").get_by_role("listitem").all_inner_texts()
    assert sorted(said) == ["A better", "B better"]
    page.keyboard.press("1")
    nothing_left(page)
    page.get_by_text("No open disputes").wait_for()
    last = service.said("vote")[-1]
    assert (last.annotator, shown(last)) == ("ada", 3)


def test_an_annotator_has_no_way_to_the_other_pages(service: Any, page: Any) -> None:
    service.start().sign_in(page)
    assert page.get_by_role("navigation").get_by_role("link").all_inner_texts() == ["Annotate"]
    for path in ("/admin", "/adjudicate", "/corrections"):
        page.goto(service.url + path)
        page.get_by_role("heading", name="You don't have access to this page").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_accessible_and_fit_a_phone(
    service: Any, visitor: Any, assert_usable: Any, voted: Task, scheme: str
) -> None:
    service.vote(voted, "ben", -1)
    page = service.start().at(visitor("phone", color_scheme=scheme), "/admin")
    page.get_by_role("img", name="2 votes on 1 days").wait_for()
    page.get_by_text("Add a person").click()
    page.locator("#log summary").first.click()
    assert_usable(page)
    page.goto(f"{service.url}/adjudicate")
    page.get_by_role("button", name="Find new disputes").click()
    question(page, "Which answer is better?")
    page.get_by_text("All open disputes").click()
    assert_usable(page)
