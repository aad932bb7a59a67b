"""Published families through whole runs in chat: SFT with long rows dropped, a reward model of another family, GRPO."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_runs import grpo, run_of, sft, told, values
from transformers import AutoTokenizer

import published
from penstock.algos import BradleyTerry
from penstock.config.parts import DataSpec, Drop, EvaluationSpec, ModelSpec, Truncate
from penstock.models.files import load_text
from penstock.runtime import launch

ROWS = [
    {"prompt": f"what is {n} + 4", "completion": f"the sum is {n + 4}", "chosen": "7", "rejected": "no " * n}
    for n in range(3, 9)
]
LONG = {"prompt": "why", "completion": "because " * 40, "chosen": "a", "rejected": "because " * 40}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One checkpoint of every family."""
    base = tmp_path_factory.mktemp("families")
    return {name: published.publish(name, base / name) for name in sorted(published.FAMILIES)}


def rows_file(folder: Path, *more):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (*ROWS, *more)))
    return str(file)


def metrics_of(folder, name):
    return [value for _, value in values(folder, name)]


@pytest.mark.parametrize("name", sorted(published.FAMILIES))
def test_a_family_is_tuned_scored_by_another_and_reinforced(name, folders, tmp_path):
    """The generator's log-probs are the learner's: sentinels compare them. What is saved names every end again."""
    other = folders["phi-4" if name == "qwen-3" else "qwen-3"]
    data = DataSpec(source=rows_file(tmp_path, LONG), chat={"enable_thinking": False}, too_long=Drop(tokens=100))
    short = DataSpec(
        source=data.source, prompt="{{ prompt * 99 if prompt == 'why' else prompt }}", chat=True, too_long=Drop(tokens=60)
    )
    held_out = EvaluationSpec(data=DataSpec(source=data.source, chat=True, size=2))
    run = run_of(
        sft(name="rm", model=ModelSpec(path=str(other)), data=data, algorithm=BradleyTerry(), steps=1),
        sft(model=ModelSpec(path=str(folders[name])), data=data, steps=1),
        grpo("model:@rm", tokens=6, model=ModelSpec(path="@sft"), data=short, evaluation=held_out),
    )
    launch(run, tmp_path / "run")
    (event,) = told(tmp_path / "run", what="long rows", stage="sft")
    assert (event["dropped"], event["kept"], event["limit"]) == (1.0, len(ROWS), 100)
    assert metrics_of(tmp_path / "run", "data/dropped") == [1.0, 1.0, 1.0]
    text, known = load_text(str(tmp_path / "run" / "model")), load_text(str(folders[name]))
    assert text.ends == known.ends
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model").chat_template == published.FAMILIES[name].template
    assert np.isfinite(metrics_of(tmp_path / "run", "reward/mean")).all()


def test_truncated_rows_are_trained_and_counted(folders, tmp_path):
    data = DataSpec(source=rows_file(tmp_path, LONG), chat=True, too_long=Truncate(tokens=60))
    stage = sft(model=ModelSpec(path=str(folders["llama-3"])), data=data, batch=len(ROWS) + 1, steps=1)
    launch(run_of(stage), tmp_path / "run")
    assert metrics_of(tmp_path / "run", "data/truncated") == [1.0]
    assert metrics_of(tmp_path / "run", "data/dropped") == [0.0]
