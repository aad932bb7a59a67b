"""Runs of several processes from the cell of a notebook: a real kernel carries them out, shows progress and obeys Interrupt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import last_step

jupyter_client = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

DEADLINE = 300.0

RUN = """
import marks, penstock
from penstock.algos import GRPO
from penstock.config.run import CheckpointSpec, ModelSpec, Online, Run
from penstock.core.types import Sampling

stage = Online(
    name="grpo", model=ModelSpec(preset="1m", layers=1, vocabulary=300, context=32),
    data=penstock.rows([{"prompt": "ab", "answer": "b"}] * 2),
    rewards=(penstock.reward(marks.score),), algorithm=GRPO(),
    sampling=Sampling(max_new_tokens=4), samples=2, batch=2, steps=STEPS,
)
run = Run(name="run", stages=(stage,), device="cpu", runtime="procs", checkpoint=CheckpointSpec(every=1))
"""


class Notebook:
    """A kernel, cell by cell. ``shown`` is all that it printed and drew."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client, self.shown = manager, client, ""

    def cell(self, source: str) -> dict[str, Any]:
        """Run a cell to its end; gives its reply."""
        reply = self.client.execute_interactive(source, timeout=DEADLINE, output_hook=self._hear)
        return dict(reply["content"])

    def _hear(self, message: Any) -> None:
        content = message["content"]
        self.shown += content.get("text", "") + str(content.get("data", ""))


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    """Next to a file with a reward of its user's own."""
    (tmp_path / "marks.py").write_text("def score(sample, columns):\n    return float(sample.text == columns['answer'])\n")
    manager, client = jupyter_client.start_new_kernel(kernel_name="python3", startup_timeout=DEADLINE, cwd=str(tmp_path))
    try:
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_trains_in_processes_and_shows_it(notebook: Notebook, tmp_path: Path) -> None:
    assert notebook.cell(RUN.replace("STEPS", "2"))["status"] == "ok"
    reply = notebook.cell('result = penstock.train(run, folder="runs/one"); print("done:", result.headline)')
    assert reply["status"] == "ok", reply
    assert "done:" in notebook.shown
    assert "grpo" in notebook.shown
    assert last_step(tmp_path / "runs" / "one") == 2


def test_interrupt_saves_and_another_cell_goes_on(notebook: Notebook, tmp_path: Path) -> None:
    notebook.cell(RUN.replace("STEPS", "40"))
    folder = tmp_path / "runs" / "one"
    code = 'penstock.train(run, folder="runs/one", progress=False)'
    message = notebook.client.execute(code, stop_on_error=False)  # else the kernel may refuse the next cell for a moment
    ends = time.monotonic() + DEADLINE
    while last_step(folder) < 2 and time.monotonic() < ends:
        time.sleep(0.1)
    notebook.manager.interrupt_kernel()
    reply = notebook.client.get_shell_msg(timeout=DEADLINE)
    while reply["parent_header"].get("msg_id") != message:
        reply = notebook.client.get_shell_msg(timeout=DEADLINE)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert "everything is saved" in reply["content"]["evalue"]
    stopped = last_step(folder)
    assert 2 <= stopped < 40
    assert notebook.cell('penstock.train(run, folder="runs/one", resume=True, progress=False)')["status"] == "ok"
    assert last_step(folder) == 40
