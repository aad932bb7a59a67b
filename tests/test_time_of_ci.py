"""Tests that CI has no time for are skipped by name, and none is lost without a word."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def summary(until: float) -> str:
    """The last line of pytest over a small file."""
    words = [sys.executable, "-m", "pytest", "-n0", "-q", "-rs", "-p", "no:cacheprovider", "tests/test_words.py"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "TESTS_BEGIN_UNTIL": str(until)}, capture_output=True, text=True)
    return done.stdout


def test_a_test_that_has_not_begun_in_time_is_skipped_and_counted():
    late = summary(time.time() - 1)
    assert " passed" not in late
    assert "the time for these tests was over" in late


def test_a_test_that_begins_in_time_is_run():
    assert " skipped" not in summary(time.time() + 600)
