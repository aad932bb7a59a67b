"""Samples put to people: what becomes a question, what is refused, and what the store then hands out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from live_examples import row, run_folder

pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed: pip install penstock[feedback]")

from penstock.core.events import packed
from penstock.core.seeds import seed_of
from penstock.feedback.records import Annotator, Response
from penstock.feedback.store import Store
from penstock.ui.live.ask import task_of
from penstock.web.refusals import Refusal


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "feedback.db") as opened:
        yield opened


@pytest.fixture
def put(told, store: Store) -> Callable[..., Any]:
    """``put(question)``: what the server answers to somebody who has the token and asks people this."""
    return lambda body: told("/api/ask", "POST", token=True, store=store, json=body)


def question(*rows: int, step: int = 2, **fields: Any) -> dict[str, Any]:
    return {"run": "small", "stage": "grpo", "samples": [{"step": step, "row": place} for place in rows], **fields}


def test_two_samples_of_a_prompt_become_a_pair_that_is_handed_out(put, store: Store) -> None:
    answer = put(question(0, 1, overlap=2))
    assert answer.status_code == 200
    store.enrol(Annotator("ann"))
    lease = store.next_task("ann")
    assert lease is not None
    task = store.task(lease.task)
    assert [task.id] == answer.json()["tasks"]
    assert (task.form, task.overlap, task.item.prompt, task.item.key) == ("pair", 2, "2 + 2 =", "sums/0/2")
    assert task.item.responses[0] == Response(
        "The answer is 2.", (7, 1, 2), (-1.5, -0.25), run="small", stage="grpo", version=1,
        sampling={"temperature": 0.7, "max_new_tokens": 8, "seed": seed_of(0, "grpo")},
    )  # fmt: skip
    assert task.strategy != "random"


def test_whether_all_samples_have_exact_tokens_is_told(put) -> None:
    assert [put(question(*rows)).json()["exact"] for rows in ((0,), (0, 1))] == [True, False]


def test_an_evaluated_sample_tells_how_it_was_evaluated() -> None:
    stage = {"name": "s", "sampling": {"temperature": 1.0, "top_k": 5}, "evaluation": {"temperature": 0.0, "max_new_tokens": 9}}
    task = task_of({"name": "r", "stages": [stage]}, "s", [(1, row("a", "b", held_out=True))], 3)
    assert task.item.responses[0].sampling == {"temperature": 0.0, "top_k": 5, "max_new_tokens": 9}


DAMAGED = [
    {"ids": "x", "logp": ""},
    {"ids": packed([1], "<i4")},
    {"ids": packed([-1], "<i4"), "logp": ""},
    {"ids": "", "logp": packed([0.5], "<f4")},
    {"ids": packed([1], "<i4"), "logp": packed([math.nan], "<f4")},
]


@pytest.mark.parametrize("tokens", DAMAGED)
def test_damaged_tokens_are_no_question(tokens: dict[str, str]) -> None:
    with pytest.raises(Refusal, match="choose others"):
        task_of({"name": "r"}, "s", [(1, row("a", "b", tokens=tokens))], 3)


def test_asking_again_asks_nothing_twice(put, store: Store) -> None:
    for _ in range(2):
        put(question(0, 1))
    assert store.counts()["ask"].tasks == 1


def test_the_same_prompt_at_two_steps_is_a_pair(put, store: Store) -> None:
    body = question(0) | {"samples": [{"step": 2, "row": 0}, {"step": 9, "row": 0}]}
    (name,) = put(body).json()["tasks"]
    assert [one.text for one in store.task(name).item.responses] == ["The answer is 2.", "The answer is 9."]


@pytest.mark.parametrize(("count", "form"), [(1, "rating"), (2, "pair"), (3, "ranking")])
def test_the_form_follows_from_how_many_are_chosen(count: int, form: str) -> None:
    assert task_of({"name": "run"}, "s", [(1, row("a", f"text {place}")) for place in range(count)], 3).form == form


NO_QUESTION = [("", "without text"), (["a"], None), ({"a": 1}, None), ("x" * 200_001, None)]


@pytest.mark.parametrize(("text", "words"), NO_QUESTION, ids=["none", "list", "object", "too long"])
def test_a_sample_whose_text_no_question_can_hold_is_refused(text: object, words: str | None) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        task_of({"name": "run"}, "s", [(1, row("a", "fine")), (1, row("a", "fine") | {"text": text})], 3)
    assert refused.value.status == 400


def test_without_a_store_the_answer_names_the_flag(told) -> None:
    answer = told("/api/ask", "POST", token=True, json=question(0, 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_store")
    assert "--store" in answer.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"x-penstock-token": "wrong"}, {"x-penstock-token": b"\xff\xfe"}])
def test_without_the_token_nothing_is_told(told, store: Store, headers: dict[str, str]) -> None:
    answer = told("/api/ask", "POST", store=store, headers=headers, json=question(0, 1))
    assert (answer.status_code, store.counts()) == (403, {})


def test_a_form_of_another_site_cannot_ask(told, store: Store) -> None:
    assert told("/api/ask", "POST", token=True, store=store, data={"run": "small"}).status_code == 415


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (question(0, 2), 400), (question(0, 99), 404), (question(), 400), (question(*[0] * 9), 400), (question(0, 0), 400),
        (question(0, 1, overlap=0), 400), (question(0, 1, other=1), 400), (question(0) | {"samples": ["x"]}, 400),
        (question(0) | {"samples": 5}, 400), (question(0) | {"run": "../small"}, 404), (question(0) | {"stage": "none"}, 404),
    ],
)  # fmt: skip
def test_what_cannot_be_a_question_is_refused(put, store: Store, body: dict[str, Any], status: int) -> None:
    assert (put(body).status_code, store.counts()) == (status, {})


def test_half_a_character_is_refused_and_not_stored(asked, store: Store, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "small", "grpo")
    line = '{"kind": "samples", "time": 1, "stage": "grpo", "step": 2, "rows": [{"prompt": "p", "text": "\\ud800"}]}\n'
    (folder / "events.jsonl").write_text(line)
    answer = asked("/api/ask", "POST", token=True, store=store, json=question(0))
    assert (answer.status_code, store.counts()) == (400, {})
