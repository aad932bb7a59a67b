"""How threads wait for one another is set before torch is loaded, and a user's own setting stays."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.usefixtures("cold")  # what is set before torch is loaded
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["unset", "a count of the user's", "a policy of the user's"],
)
def test_threads_do_not_spin_long_unless_the_user_says_so(given: dict[str, str], expected: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = "import os, sys, penstock; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", code], env={**kept, **given}, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", expected]
