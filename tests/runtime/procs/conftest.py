"""Runs in processes; whatever a test does, none of them outlives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import RECIPES, Start, Started


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("letters", "--steps", "8", first=…, in_roles=…)``: begin a run in processes; without a recipe, go on with it."""
    begun: list[Started] = []

    def begin(recipe: str = "", *words: str, folder: Path = tmp_path, **more: object) -> Started:
        named = [f"{RECIPES}:{recipe}", "--name", "run", "--runtime", "procs", *words] if recipe else ["--resume", "runs/run"]
        begun.append(Started(folder, "train", *named, **more))  # type: ignore[arg-type]
        return begun[-1]

    yield begin
    for run in begun:
        run.kill_everyone()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``undisturbed("letters", "--steps", "8")``: the folder of that run in one process, made once."""
    made: dict[tuple[str, ...], Path] = {}

    def folder(recipe: str, *words: str) -> Path:
        if (recipe, *words) not in made:
            home = tmp_path_factory.mktemp("undisturbed")
            (home / "go").touch()
            run = Started(home, "train", f"{RECIPES}:{recipe}", "--name", "run", *words)
            assert run.wait(200) == 0, run.everything()
            made[recipe, *words] = run.run
        return made[recipe, *words]

    return folder
