"""What ``penstock serve`` says to wrong words: one line, exit code 2."""

import socket

import pytest

from penstock.cli.main import main
from penstock.models.files import save_model


@pytest.fixture
def refused(capsys):
    def run(*words):
        code = main(["serve", *words])
        said = capsys.readouterr().err
        assert (code, said.count("\n")) == (2, 1), said
        return said

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing from penstock serve: MODEL A model folder (runs/NAME/model)"),
        (("a", "b"), 'penstock serve takes no "b"'),
        (("m", "--prot", "1"), "unknown flag --prot; did you mean"),
        (("m", "--port", "x"), "--port"),
        (("m", "--port", "-1"), "--port -1; at least 0"),
        (("m", "--max-running", "0"), "--max-running 0; at least 1"),
        (("m", "--device", "tpu"), "invalid choice 'tpu' for argument '--device'"),
        (("m", "--host", "0.0.0.0"), "open to other machines; give --token-file FILE"),
        (("m", "--token-file", "/nowhere/token"), "/nowhere/token: No such file"),
        (("./no/such/model", "--port", "0"), "no such folder"),
        (("m", "--fetch", "images.example.org"), "--fetch is of images; give --media vision"),
        (("m", "--media", "taste"), "invalid choice 'taste' for argument '--media'"),
    ],
)
def test_wrong_words_are_refused_in_one_line(refused, words, message):
    assert message in refused(*words)


def test_a_key_needs_a_token(refused, tmp_path):
    (tmp_path / "key").write_text("a-key-of-some-length\n")
    (tmp_path / "key").chmod(0o600)
    assert "--key-file without --token-file" in refused("m", "--key-file", str(tmp_path / "key"))


def test_a_folder_that_is_no_model_is_named(refused, tmp_path):
    assert f"{tmp_path}: no config.json" in refused(str(tmp_path), "--port", "0")


def test_a_model_that_reads_no_media_is_named(refused, tiny, tmp_path):
    save_model(tiny(), tmp_path / "model")
    assert 'model.media=Vision of type "qwen2" is not supported' in refused(
        str(tmp_path / "model"), "--port", "0", "--media", "vision"
    )


def test_a_run_without_a_model_says_how_to_get_one(refused, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert "the run has no model yet" in refused(str(tmp_path), "--port", "0")


def test_a_taken_port_and_a_strange_address_are_named(refused, tiny, tmp_path):
    save_model(tiny(), tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}: Address already in use; choose another" in refused(str(tmp_path / "model"), "--port", port)
    assert "--port 99999: " in refused(str(tmp_path / "model"), "--port", "99999")


def test_help_is_shown(capsys):
    assert main(["serve", "--help"]) == 0
    assert "--token-file FILE" in capsys.readouterr().out
