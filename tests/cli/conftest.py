"""The command line in this process, and runs that tests copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli.main import main
from processes import Server

RECIPES = Path(__file__).with_name("tiny_recipes.py")


class Outcome(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    def assert_refused(self, *parts: str) -> None:
        """One clear line on standard error, exit code 2, every one of ``parts`` in the line."""
        assert self.code == 2
        assert self.err.startswith("penstock: error: ")
        assert self.err.count("\n") == 1, self.err
        for part in parts:
            assert part in self.err


Penstock = Callable[..., Outcome]


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
def tiny_recipe() -> str:
    return f"{RECIPES}:tiny"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Starts commands in processes of their own."""
    made = Server()
    yield made
    made.close()


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
