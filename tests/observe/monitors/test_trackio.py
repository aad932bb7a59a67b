"""trackio: its local store read back, and servers that are gone or refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from monitor_examples import STORY, answering, event, folder, free_port, run_of, told

pytest.importorskip("trackio")

from trackio.sqlite_storage import SQLiteStorage

from penstock.observe.monitors import monitors_of


def project_of(tmp_path: Path) -> str:
    """A project of the test's own: all tests of a process have one store."""
    return "of-" + tmp_path.name.replace("_", "-")


def monitor_of(tmp_path: Path, **changes: Any) -> Any:
    return monitors_of(run_of(f"trackio:{project_of(tmp_path)}", **changes), folder(tmp_path))[0]


def logs(tmp_path: Path) -> list[dict[str, Any]]:
    (name,) = SQLiteStorage.get_runs(project_of(tmp_path))
    return SQLiteStorage.get_logs(project_of(tmp_path), name)


def test_metrics_have_steps_over_all_stages(tmp_path: Path) -> None:
    assert told(monitor_of(tmp_path), STORY) == []
    found = [(one["step"], one["grpo/reward/mean"], one["stage"]) for one in logs(tmp_path) if "grpo/reward/mean" in one]
    assert found == [(5, 0.25, "grpo"), (6, 0.5, "grpo")]  # the first stage had 4 steps


def test_samples_are_a_table(tmp_path: Path) -> None:
    told(monitor_of(tmp_path), STORY)
    (table,) = [one["grpo/samples"] for one in logs(tmp_path) if "grpo/samples" in one]
    assert table["_type"] == "trackio.table"
    assert table["_value"][0]["text"] == "line\nline"


def test_alarms_are_alerts(tmp_path: Path) -> None:
    fatal = {**STORY[3], "severity": "fatal", "sentinel": "worse"}
    told(monitor_of(tmp_path), [*STORY, fatal])
    found = {(one["title"], one["text"], one["level"]) for one in SQLiteStorage.get_alerts(project_of(tmp_path))}
    assert found == {
        ("grpo: flat groups", "step 2: no gradient", "warn"),
        ("grpo: worse", "step 2: no gradient", "error"),
    }


def test_the_spec_is_the_config(tmp_path: Path) -> None:
    told(monitor_of(tmp_path, seed=7), STORY)
    (name,) = SQLiteStorage.get_runs(project_of(tmp_path))
    found = SQLiteStorage.get_run_config(project_of(tmp_path), name)
    assert found is not None
    assert (found["seed"], found["stages.1.batch"]) == (7, 4)


def test_the_end_is_logged(tmp_path: Path) -> None:
    (folder(tmp_path) / "summary.json").write_text('{"headline": "reward 0.2 to 0.5"}', encoding="utf-8")
    told(monitor_of(tmp_path), STORY)
    assert logs(tmp_path)[-1]["summary/headline"] == "reward 0.2 to 0.5"


def test_a_resumed_run_goes_on_in_the_same_one(tmp_path: Path) -> None:
    told(monitor_of(tmp_path), STORY[:2])
    told(monitor_of(tmp_path), STORY[2:])
    assert [one["step"] for one in logs(tmp_path) if "grpo/reward/mean" in one] == [5, 6]


def test_two_runs_of_one_name_are_two(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        monitor = monitors_of(run_of(f"trackio:{project_of(tmp_path)}"), folder(tmp_path / place))[0]
        told(monitor, STORY)
    assert len(SQLiteStorage.get_runs(project_of(tmp_path))) == 2


def test_a_step_without_samples_is_no_table(tmp_path: Path) -> None:
    assert told(monitor_of(tmp_path), [*STORY[:2], event("samples", rows=[])]) == []
    assert not any("grpo/samples" in one for one in logs(tmp_path))


def test_without_a_key_a_server_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_SERVER_URL", f"http://127.0.0.1:{free_port()}")
    (warned,) = told(monitor_of(tmp_path), STORY)
    assert "trackio failed (ValueError: Self-hosted logging requires a write token" in warned


@pytest.mark.parametrize("server", ["dead", "refusing"])
def test_a_server_that_takes_nothing_ends_nothing(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "wrong")
    with answering(lambda method, path, body: (403, b'{"error": "no"}')) as url:
        monkeypatch.setenv("TRACKIO_SERVER_URL", url if server == "refusing" else f"http://127.0.0.1:{free_port()}")
        warned = told(monitor_of(tmp_path), STORY, seconds=50.0)
    assert not any("too slow" in one for one in warned)
