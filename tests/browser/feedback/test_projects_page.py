"""Two projects and three people at the pages of one service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feedback_service import nothing_left, prompt, settled

from penstock.feedback.records import Task

Make = Callable[..., Task]


def test_a_project_is_made_and_filled_and_only_its_members_choose_and_judge_it(
    service: Any, page: Any, visitor: Any, pair: Make, tmp_path: Path
) -> None:
    service.ask(pair("open", overlap=4)).start().at(page, "/admin")  # who is at the desk holds a seat, the administrator too
    page.get_by_text("New project", exact=True).click()
    page.get_by_label("Name of the project").fill("legal")
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_url("**/admin?project=legal")
    page.locator("#project-title", has_text="legal").wait_for()

    page.get_by_text("Guideline and settings").click()
    page.get_by_label("Guideline (Markdown").fill("# Only the law counts")
    page.get_by_label("Version", exact=True).fill("a")
    page.get_by_label("Answers wanted").fill("1")
    page.get_by_role("button", name="Save settings").click()
    page.get_by_text("Saved. People who").wait_for()
    page.get_by_label("Enrolled, but not in this project").select_option("ann")
    page.get_by_role("button", name="Add to this project").click()
    page.locator("#people").get_by_role("rowheader", name="ann").wait_for()

    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"prompt": "Question secret?", "responses": ["One.", "Two."]}), encoding="utf-8")
    page.get_by_label("File", exact=True).set_input_files(file)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_text("1 new question asked.").wait_for()

    ann = service.sign_in(visitor(), "ann")
    prompt(ann, "open")
    ann.get_by_label("Project").select_option("legal")
    ann.get_by_role("dialog", name="Guideline").get_by_text("Only the law counts").wait_for()
    ann.get_by_role("button", name="I have read it").click()
    prompt(ann, "secret")
    ann.goto(service.url)  # the browser remembers the project
    prompt(ann, "secret")
    ann.keyboard.press("1")
    nothing_left(ann)
    ann.get_by_label("Project").select_option("default")
    prompt(ann, "open")

    ben = service.sign_in(visitor(), "ben")
    prompt(ben, "open")
    assert not ben.get_by_label("Project").count()
    ben.goto(service.url + "/?project=legal")
    settled(ben)
    prompt(ben, "open")
    [vote] = service.said("vote")
    assert (vote.annotator, vote.project, vote.guideline) == ("ann", "legal", "a")

    page.reload()
    page.locator("#people").get_by_role("rowheader", name="ann").wait_for()
