"""A run in processes of others, followed by what it writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LETTERS = f"{Path(__file__).resolve().parents[1] / 'runtime' / 'procs' / 'procs_recipes.py'}:letters"
"""A recipe whose steps take as long as a flag says."""


class Followed:
    """``run``: the run's folder; ``logs``: a folder whose ``*.log`` are shown where a wait is in vain."""

    run: Path
    logs: Path

    def events(self) -> list[dict[str, Any]]:
        file = self.run / "events.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def steps(self) -> list[int]:
        """The steps that were trained, in the order in which they are in the log."""
        return [one["step"] for one in self.events() if one["kind"] == "metrics" and "loss" in one["values"]]

    def resumed(self) -> list[str]:
        """What each resume went on after."""
        return [one["after"] for one in self.events() if one.get("what") == "resumed"]

    @property
    def log(self) -> str:
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in self.logs.glob("*.log"))

    def look(self) -> str:
        """Called while something is waited for; gives what else is shown where that is in vain."""
        return ""

    def until(self, ready: Callable[[], Any], what: str, seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            shown = self.look()
            assert time.monotonic() < deadline, f"no {what} in {seconds} s\n{self.log}\n{shown}"
            time.sleep(0.1)
