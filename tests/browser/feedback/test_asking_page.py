"""An administrator asks by upload, makes gold questions, changes and deletes people; annotators correct answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feedback_service import PASSWORD, give_reason, nothing_left, question

from penstock.feedback.errors import NotFound
from penstock.feedback.records import Item, Response, Task

Make = Callable[..., Task]


def at_admin(service: Any, page: Any) -> Any:
    service.at(page, "/admin")
    page.locator("#gold :is(table, p)").wait_for()
    return page


def test_questions_are_checked_and_asked_from_a_file(service: Any, screen: Any, assert_usable: Any, tmp_path: Path) -> None:
    rows = [{"prompt": f"Question {i}?", "responses": ["Yes.", "No."], "note": "x"} for i in range(2)]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    at_admin(service.start(), screen)
    screen.get_by_label("File", exact=True).set_input_files(path)
    screen.get_by_role("button", name="Check", exact=True).click()
    screen.get_by_text("The file holds 2 questions; columns not used: note.").wait_for()
    assert list(service.store.tasks()) == []
    screen.get_by_role("button", name="Ask", exact=True).click()
    screen.get_by_text("2 new questions asked").wait_for()
    assert len(list(service.store.tasks())) == 2
    assert_usable(screen)


def test_gold_is_made_from_the_log_and_taken_back(service: Any, page: Any, pair: Make) -> None:
    task = pair("p")
    service.ask(task)
    service.vote(task, "ann", 2)
    at_admin(service.start(), page)
    page.get_by_label("Select event 1").check()
    page.get_by_role("button", name="Make gold").click()
    page.get_by_label("Right answer", exact=True).fill("1")
    give_reason(page, "known", "Make gold")
    page.get_by_role("row", name="Question p? First answer to p. in use").wait_for()
    page.get_by_role("button", name="Stop using Question p?").click()
    give_reason(page, "wrong", "Stop using it")
    page.get_by_role("row", name="Question p? First answer to p. no longer used").wait_for()
    assert service.kinds()[1:] == ["promote", "demote"]


def test_a_person_gets_another_role_and_is_deleted_by_name(service: Any, page: Any) -> None:
    at_admin(service.start(), page)
    page.get_by_role("button", name="Change ben").click()
    page.get_by_label("Role").last.select_option("adjudicator")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    page.get_by_role("row", name="ben adjudicator").wait_for()
    page.get_by_role("button", name="Delete ben").click()
    page.get_by_label("Type the name to confirm").fill("ben")
    page.get_by_role("button", name="Delete this person").click()
    page.get_by_role("button", name="Delete ben").wait_for(state="detached")
    with pytest.raises(NotFound):
        service.store.annotator("ben")


def test_an_answer_is_corrected_in_place(service: Any, page: Any) -> None:
    item = Item(prompt="Question p?", responses=(Response("A gate open."),))
    service.desk(page, Task(item=item, form="correction", overlap=1))
    question(page, "Correct the answer")
    page.get_by_label("The corrected answer").fill("A gate opens.")
    assert page.locator("#below mark").all_inner_texts() == ["opens"]
    page.keyboard.press("Control+Enter")
    nothing_left(page)
    assert [event.body["text"] for event in service.said("correction")] == ["A gate opens."]
    assert PASSWORD not in page.content()
