"""What a channel could not deliver reaches the run's log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.recipes.quickstart import quickstart
from penstock.runtime.stages import remote_online


def test_a_failed_delivery_of_the_process_group_is_reported_to_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: dict[str, Any] = {}
    made = SimpleNamespace(publisher=lambda *given, **options: opened.update(options))
    monkeypatch.setattr(remote_online, "channel", lambda kind: made)
    heard: list[tuple[str, dict[str, Any]]] = []
    run = quickstart()
    run = replace(run, runtime="procs", roles=replace(run.roles, channel="process group", generators=3))
    flow = remote_online.RemoteOnline.__new__(remote_online.RemoteOnline)
    flow.run, flow.bootstrap = run, SimpleNamespace(weights=tmp_path)
    flow.parts = SimpleNamespace(stage=run.stages[-1], learner=SimpleNamespace(weights=None))
    flow.stream = SimpleNamespace(hub=SimpleNamespace(departure=None))
    flow.context = SimpleNamespace(report=lambda what, **fields: heard.append((what, fields)))
    flow._publisher(tmp_path, None, 0)
    opened["report"]("weights not delivered", version=4, members=["generator-1"], reason="gone")
    assert opened["generators"] == 3
    assert heard == [("weights not delivered", {"version": 4, "members": ["generator-1"], "reason": "gone"})]
