"""Recipes of control that are quick to begin: they train, evaluate and film; what they learn is in docs/control.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from penstock.config.run import Run
from penstock.recipes.highway import highway
from penstock.recipes.spread import spread
from penstock.runtime import launch


@pytest.mark.parametrize(("recipe", "needs"), [(highway, "envpool"), (spread, "mpe2")])
def test_a_recipe_trains_evaluates_and_films(tmp_path: Path, recipe: Callable[..., Run], needs: str) -> None:
    pytest.importorskip(needs)
    result = launch(recipe(steps=2), tmp_path / "run")
    scores = [event["values"]["evaluation/reward"] for event in result.metrics if "evaluation/reward" in event["values"]]
    assert len(scores) == 2
    assert len(result.samples) == 2
    assert all(row["blobs"][0]["kind"] == "image/apng" for event in result.samples for row in event["rows"])
    assert len(list((tmp_path / "run" / "blobs").iterdir())) >= 1
