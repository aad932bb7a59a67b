"""The command line in this process, and runs that tests copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_examples import RECIPES, Outcome, Penstock
from processes import Server, metrics, outcome

from penstock.cli.main import main


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Penstock:
    """``penstock("train", …)``: run a command in this process with ``tmp_path`` as its folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def server() -> Server:
    """Starts commands in processes of their own."""
    return Server()


@pytest.fixture(scope="session")
def uninterrupted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``uninterrupted("tiny", seed=0)``: the folder of a finished run, made once; not to be changed."""
    made: dict[tuple[str, int], Path] = {}

    def folder(recipe: str, seed: int = 0) -> Path:
        if (recipe, seed) not in made:
            home = tmp_path_factory.mktemp("uninterrupted")
            ended = server.run(home, "train", f"{RECIPES}:{recipe}", "--seed", str(seed), "--name", "run")
            assert ended.code == 0, ended.text
            made[recipe, seed] = home / "runs" / "run"
        return made[recipe, seed]

    return folder


@pytest.fixture
def finished(uninterrupted: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run of one's own, under the name that ``tmp_path`` as working folder gives it."""
    shutil.copytree(uninterrupted("tiny"), tmp_path / "runs" / "run")
    return Path("runs/run")


@pytest.fixture(scope="session")
def half_way(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed in the third step of its second stage: checkpoints of sft (2, 4) and grpo (2). Not to be changed."""
    home = tmp_path_factory.mktemp("half_way")
    kill = """
import os, time
def once_saved():
    while not os.path.exists('runs/run/checkpoints/stage-01-grpo-step-000002'):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
arm('penstock.loops.learn:Trainer.step', 7, once_saved)
"""
    ended = server.run(home, "train", f"{RECIPES}:tiny", "--name", "run", first=kill)
    assert ended.code == -9, ended.text
    return home / "runs" / "run"


@pytest.fixture
def halted(half_way: Path, tmp_path: Path) -> Path:
    """A run of one's own that was killed half-way, under the name that ``tmp_path`` as working folder gives it."""
    shutil.copytree(half_way, tmp_path / "runs" / "run")
    return Path("runs/run")


@pytest.fixture
def assert_goes_on(penstock: Penstock, uninterrupted: Callable[..., Path]) -> Callable[..., Outcome]:
    """``assert_goes_on()``: resume a run, which then ends as if nothing had happened; gives what the command answered."""

    def resume(*words: str, recipe: str = "tiny", folder: str = "runs/run") -> Outcome:
        answer = penstock("train", *words, "--resume", folder)
        assert answer.code == 0, answer.err
        assert outcome(Path(folder)) == outcome(uninterrupted(recipe))
        assert metrics(Path(folder)) == metrics(uninterrupted(recipe))
        return answer

    return resume
