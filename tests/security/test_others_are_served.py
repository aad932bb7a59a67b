"""What ``benchmarks/strangers.py`` does to the real service: others are answered, and memory stays bounded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra feedback")
pytest.importorskip("argon2", reason="needs the extra feedback")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from strangers import ATTACKS, measure


@pytest.mark.usefixtures("cold")  # a fork has taken memory before
def test_others_are_answered_while_a_stranger_attacks():
    found = measure(5.0)
    for name in ATTACKS:
        assert found[name]["megabytes"] < 300, name
        for path in ("/health", "/api/me"):
            assert found[name][path]["failed"] == 0, (name, path)
            quiet = found["nobody attacks"][path]["p50"]
            assert found[name][path]["p50"] < max(20.0, 5 * quiet), (name, path)
