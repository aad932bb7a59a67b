"""The example of docs/environments.md is what it says: whole, short, and it trains."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_page_trains(tmp_path):
    (example, *_) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "environments.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(example.splitlines()) <= 24
    (tmp_path / "guess.py").write_text(example.replace("steps=5", "steps=2"))
    done = subprocess.run(
        [sys.executable, "guess.py"], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "guess" in (tmp_path / "runs" / "train" / "events.jsonl").read_text(encoding="utf-8")
