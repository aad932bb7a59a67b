"""Code that comes with a checkpoint is never run, whatever answers on the terminal."""

import json
from io import StringIO

import pytest

from penstock.cli.main import main
from penstock.core.errors import ModelError
from penstock.models.embedding import ModelEmbedder
from penstock.models.files import load_model, load_text, save_model

FOREIGN = """
from pathlib import Path

Path(__file__).with_name("ran").touch()
"""


@pytest.fixture
def folder(built, tmp_path):
    """A checkpoint whose classes are in a file of its own."""
    path = save_model(built["llama"], tmp_path / "model")
    (path / "foreign.py").write_text(FOREIGN)
    return path


def says(folder, file, **fields):
    place = folder / file
    place.write_text(json.dumps({**json.loads(place.read_text()), **fields}))


CLASSES = {"AutoConfig": "foreign.Config", "AutoModel": "foreign.Model", "AutoModelForCausalLM": "foreign.Model"}


def test_a_model_of_a_foreign_type_is_refused_in_one_line(folder):
    says(folder, "config.json", model_type="foreign", auto_map=CLASSES)
    with pytest.raises(ModelError, match="such code is never run") as refused:
        load_model(str(folder))
    assert "\n" not in str(refused.value)
    with pytest.raises(ModelError):
        ModelEmbedder(str(folder))
    assert not (folder / "ran").exists()


def test_a_tokenizer_with_code_of_its_own_is_refused(folder):
    says(folder, "tokenizer_config.json", tokenizer_class="Foreign", auto_map={"AutoTokenizer": ["foreign.Tokenizer", None]})
    with pytest.raises(ModelError, match="such code is never run"):
        load_text(str(folder))
    assert not (folder / "ran").exists()


def test_a_model_of_a_known_type_loads_as_transformers_has_it(folder):
    says(folder, "config.json", auto_map=CLASSES)
    assert type(load_model(str(folder)).network).__name__ == "LlamaForCausalLM"
    assert not (folder / "ran").exists()


def test_a_yes_on_the_terminal_runs_nothing(folder, monkeypatch, capfd):
    says(folder, "config.json", model_type="foreign", auto_map=CLASSES)
    monkeypatch.setattr("sys.stdin", StringIO("y\ny\n"))
    assert main(["generate", str(folder), "--prompt", "hello"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "such code is never run" in line
    assert not (folder / "ran").exists()
