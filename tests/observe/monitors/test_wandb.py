"""W&B: what a run in offline mode wrote, and servers that are gone or refuse the key."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from monitor_examples import BEGAN, STORY, answering, folder, free_port, run_of, told

pytest.importorskip("wandb")

from wandb.proto.wandb_internal_pb2 import Record

from penstock.observe.monitors import monitors_of


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def monitor_of(tmp_path: Path, destination: str = "", **changes: Any) -> Any:
    return monitors_of(run_of(f"wandb:{destination}" if destination else "wandb", **changes), folder(tmp_path))[0]


def records(path: Path) -> list[Record]:
    """All that is in the transaction logs under a folder. The service writes a log to its end after the run has left."""
    found: list[Record] = []
    end = time.monotonic() + 30
    for log in sorted(path.rglob("run-*.wandb")):
        while not (read := [Record.FromString(data) for data in pieces(log.read_bytes())]) or not ended(read):
            assert time.monotonic() < end, f"{log.name} has no end"
            time.sleep(0.05)
        found += read
    return found


def ended(found: list[Record]) -> bool:
    return any(record.HasField("exit") for record in found)


def pieces(log: bytes) -> Iterator[bytes]:
    """The records of a log: blocks of 32 KiB with pieces of checksum, length and kind; a header of 7 bytes is before them.

    SOURCE: LevelDB, "Log format"; W&B puts its own header into the first block.
    """
    at, whole = 7, b""
    while at + 7 <= len(log):
        if 32768 - at % 32768 < 7:  # no room for another piece
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", log, at)
        if at + 7 + length > len(log):
            return
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole in itself, or the last piece
            yield whole
            whole = b""


def history(found: list[Record]) -> list[dict[str, Any]]:
    """What was logged, a mapping each time."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """The folder and the records of a run that was told the story and has not finished."""
    path = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        assert told(monitor_of(path, "team/water", seed=7), STORY) == []
    return path, records(path)


def test_metrics_have_steps_over_all_stages_and_the_time_of_their_step(story: tuple[Path, list[Record]]) -> None:
    """Numbers are sent later."""
    found = [one for one in history(story[1]) if "grpo/reward/mean" in one]
    assert [(one["step"], one["grpo/reward/mean"], one["stage"]) for one in found] == [(5, 0.25, "grpo"), (6, 0.5, "grpo")]
    assert [one["_timestamp"] for one in found] == [BEGAN + 2, BEGAN + 4]


def test_the_run_has_project_name_and_spec(story: tuple[Path, list[Record]]) -> None:
    (run,) = [record.run for record in story[1] if record.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.entity, run.project, run.display_name, config["seed"]) == ("team", "water", "run", 7)


def test_samples_are_a_table(story: tuple[Path, list[Record]]) -> None:
    assert any(one.get("grpo/samples/_type", one.get("grpo/samples")) for one in history(story[1]))
    (table,) = story[0].rglob("*.table.json")
    content = json.loads(table.read_text(encoding="utf-8"))
    assert dict(zip(content["columns"], content["data"][0], strict=True))["text"] == "line\nline"


def test_alarms_are_alerts(story: tuple[Path, list[Record]]) -> None:
    (alert,) = [record.alert for record in story[1] if record.HasField("alert")]
    assert (alert.title, alert.text, alert.level) == ("grpo: flat groups", "step 2: no gradient", "WARN")


def test_a_run_that_has_not_finished_has_failed(story: tuple[Path, list[Record]]) -> None:
    (end,) = [record.exit for record in story[1] if record.HasField("exit")]
    assert end.exit_code == 1


def test_a_finished_run_says_its_headline(tmp_path: Path) -> None:
    (folder(tmp_path) / "summary.json").write_text('{"headline": "reward 0.2 to 0.5"}', encoding="utf-8")
    told(monitor_of(tmp_path), STORY)
    found = records(tmp_path)
    (end,) = [record.exit for record in found if record.HasField("exit")]
    said = [json.loads(item.value_json) for record in found for item in record.summary.update if item.key == "headline"]
    assert (end.exit_code, said[-1]) == (0, "reward 0.2 to 0.5")


def test_a_resumed_run_has_the_same_id(tmp_path: Path) -> None:
    told(monitor_of(tmp_path), STORY[:2])
    told(monitor_of(tmp_path), STORY[2:])
    assert len({record.run.run_id for record in records(tmp_path) if record.HasField("run")}) == 1


ELSEWHERE = """
import sys, pathlib
from monitor_examples import BEGAN, STORY, folder, run_of, told
from penstock.observe.monitors import monitors_of, wandb
wandb.WAIT = 2.0
for warned in told(monitors_of(run_of("wandb"), folder(pathlib.Path(sys.argv[1])))[0], STORY):
    print("warned:", warned.replace("\\n", " "))
"""


def warned_elsewhere(tmp_path: Path, **environment: str) -> list[str]:
    """What is warned of in a process of its own, which ends in time: the library reads its settings once."""
    told = {**os.environ, "WANDB_MODE": "online", "NETRC": str(tmp_path / "none"), "PYTHONPATH": str(Path(__file__).parent)}
    told.pop("WANDB_API_KEY", None)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path)],
        env=told | environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if line.startswith("warned:")]


def test_a_refused_key_is_one_warning(tmp_path: Path) -> None:
    with answering(lambda method, path, body: (401, b'{"errors": [{"message": "no such key"}]}')) as url:
        (warned,) = warned_elsewhere(tmp_path, WANDB_BASE_URL=url, WANDB_API_KEY="0" * 40)
    assert "wandb failed" in warned


@pytest.mark.parametrize("key", [{"WANDB_API_KEY": "0" * 40}, {}], ids=["with a key", "without one nobody is asked for it"])
def test_a_dead_server_is_one_warning(key: dict[str, str], tmp_path: Path) -> None:
    (warned,) = warned_elsewhere(tmp_path, WANDB_BASE_URL=f"http://127.0.0.1:{free_port()}", **key)
    assert "wandb failed" in warned
