"""Answers to rows with pictures, as ``penstock generate --prompts FILE.jsonl`` gives them."""

import json

import pytest

import seeing
from media_examples import png
from penstock.config.media import Vision
from penstock.config.run import DataSpec
from penstock.core.errors import SpecError
from penstock.core.types import Sampling
from penstock.models.files import save_model
from penstock.runtime.answers import answer, asked_of_rows, opened

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A data set of two pictures and a text, next to the model of a folder."""
    monkeypatch.chdir(tmp_path)
    for shade in (10, 200):
        (tmp_path / f"{shade}.png").write_bytes(png(shade, 24))
    made = [
        {"image": "10.png", "q": "<image>what?"},
        {"image": ["200.png", "10.png"], "q": "<image> or <image>"},
        {"q": "how?"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    save_model(seeing.built(), tmp_path / "model")
    return DataSpec(source="rows.jsonl", prompt="{{ q }}"), made


def test_each_row_is_answered_in_its_place_as_the_generator_answers_it(rows, tmp_path):
    data, made = rows
    model = opened(str(tmp_path / "model"), "cpu", media=Vision())
    found, prompts = asked_of_rows(data, model.text)
    assert [dict(row) for row in found] == made
    assert [len(prompt.blobs) for prompt in prompts] == [1, 2, 0]
    together = answer(model, prompts, GREEDY, 2)
    assert [len(answers) for answers in together] == [2, 2, 2]
    alone = [answer(model, [prompt], GREEDY, 1)[0] for prompt in prompts]
    assert [answers[:1] for answers in together] == alone


def test_a_mark_that_a_model_of_text_would_read_as_letters_is_refused(rows, tmp_path):
    data, _ = rows
    model = opened(str(tmp_path / "model"), "cpu")
    with pytest.raises(SpecError, match="has the mark <image>, and the model reads text alone; give --media"):
        asked_of_rows(data, model.text)
