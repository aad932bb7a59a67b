"""A diffusion policy that was trained in several processes is replayed in one, to the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest
from training import digits_run

from penstock.cli.main import main
from penstock.runtime import launch


def test_updates_in_flight_are_replayed_transition_by_transition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = digits_run(steps=4, max_lag=2, samples=4, batch=4, evaluation=None)
    launch(replace(run, runtime="procs", device="auto"), tmp_path / "runs/run")
    capsys.readouterr()
    assert main(["replay", "runs/run"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("4 steps replayed: loss, gradient_norm, reward/mean are equal in each, and so are the weights of")
