"""``penstock ui``: what it refuses before it listens, and what runs log for it. The page is tested in tests/browser/live."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from cli_examples import Penstock

for needed in ("sqlalchemy", "starlette", "httpx"):
    pytest.importorskip(needed, reason="needs the extras feedback and ui")

import httpx  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from penstock.cli.commands.ui import described  # noqa: E402
from penstock.core.events import read_events  # noqa: E402
from penstock.feedback.records import Item  # noqa: E402
from penstock.feedback.store import Store  # noqa: E402
from penstock.models.files import load_text  # noqa: E402
from penstock.runtime.judging import group_of  # noqa: E402
from penstock.ui.live.app import Access, app_of  # noqa: E402


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        ([".", "b"], 'penstock ui takes no "b"'),
        ([".", "--port", "-1"], "--port -1; at least 0"),
        ([".", "--colour", "red"], "--colour"),
        ([".", "--store", "no/such/folder/feedback.db"], "feedback"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_fix(penstock: Penstock, words: list[str], told: str) -> None:
    penstock("ui", *words).assert_refused(told)


def test_a_port_that_is_taken_is_named(penstock: Penstock, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        penstock("ui", ".", "--port", str(port)).assert_refused(f"--port {port}")


def test_a_store_that_is_made_only_now_is_named_as_new(tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.touch()
    assert described(str(there)) == f"samples can be put to people in the store {there}"
    assert described(str(tmp_path / "typo.db")) == f"samples can be put to people in a new store {tmp_path / 'typo.db'}"
    assert described("postgresql://me@host/name") == "samples can be put to people in the store at me@host/name"
    assert described("") == "to put samples to people, give --store"


def sampled(folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step, row) of every sample in a run's log."""
    events = [event for event in read_events(folder / "events.jsonl") if event["kind"] == "samples"]
    return [(event["step"], row) for event in events for row in event["rows"]]


def test_a_run_logs_siblings_and_the_gap_of_their_tokens(finished: Path, tmp_path: Path) -> None:
    trained = [row for _, row in sampled(tmp_path / finished) if not row["held_out"]]
    assert {row["key"].partition("#")[2] for row in trained} == {"0", "1"}
    gaps = [gap for row in trained for gap in row["tokens"]["gap"]]
    assert gaps
    assert max(map(abs, gaps)) < 1e-4
    assert all(len(row["tokens"]["pieces"]) == row["length"] for row in trained)


def test_a_run_logs_which_weights_an_evaluation_measured(finished: Path, tmp_path: Path) -> None:
    evaluated = [(step, row["version"]) for step, row in sampled(tmp_path / finished) if row["held_out"]]
    assert evaluated
    assert all(step == version for step, version in evaluated)


def asked(root: Path, store: Store, **question: Any) -> Item:
    """The question that the live page makes of samples of a run."""
    app = app_of(root, Access("token-of-the-tests"), store)

    async def over() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8901") as client:
            return await client.post("/api/ask", json=question, headers={"x-penstock-token": "token-of-the-tests"})

    answer = asyncio.run(over()).raise_for_status().json()
    assert answer["exact"]
    return store.task(answer["tasks"][0]).item


def test_a_question_about_a_run_holds_what_lineage_and_training_need(finished: Path, tmp_path: Path) -> None:
    """The last evaluation drew with the weights that the run saved, so they give its log-probs again from its ids."""
    folder = tmp_path / finished
    row = next(place for place, (step, row) in enumerate(sampled(folder)) if step == 4 and row["held_out"])
    row -= next(place for place, (step, _) in enumerate(sampled(folder)) if step == 4)
    with Store.open(tmp_path / "feedback.db") as store:
        item = asked(tmp_path / "runs", store, run="run", stage="grpo", samples=[{"step": 4, "row": row}])
    (response,) = item.responses
    name = json.loads((folder / "run.json").read_text())["name"]
    assert (response.run, response.stage, response.version) == (name, "grpo", 4)
    assert (response.sampling["temperature"], response.sampling["max_new_tokens"]) == (0.0, 4)
    network = AutoModelForCausalLM.from_pretrained(folder / "model")
    drawn = len(response.logp)
    assert load_text(str(folder / "model")).decode(response.tokens[-drawn:]).startswith(response.text)
    with torch.no_grad():
        logits_TV = network(torch.tensor([response.tokens])).logits[0].float()
    logp_TV = logits_TV.log_softmax(-1)[-drawn - 1 : -1]
    again_A = logp_TV.gather(-1, torch.tensor(response.tokens[-drawn:])[:, None])[:, 0]
    assert torch.allclose(again_A, torch.tensor(response.logp), atol=1e-4)
    (sample,) = group_of(item).samples
    assert (sample.tokens_T.tolist(), int(sample.action_T.sum())) == (list(response.tokens), drawn)
