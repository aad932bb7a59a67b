"""A diffusion policy that was trained in several processes is replayed in one, to the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.recipes.digits import digits
from penstock.runtime import launch

pytest.importorskip("sklearn")


@pytest.mark.slow
def test_updates_in_flight_are_replayed_transition_by_transition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = digits(steps=4)
    first, second = run.stages
    stages = (replace(first, steps=20), replace(second, max_lag=2, samples=4, batch=4, evaluation=None))
    launch(replace(run, stages=stages, runtime="procs", threads=1), tmp_path / "runs/run")
    capsys.readouterr()
    assert main(["replay", "runs/run"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("4 steps replayed: loss, gradient_norm, reward/mean are equal in each, and so are the weights of")
