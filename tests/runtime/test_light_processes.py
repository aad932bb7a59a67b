"""Processes that compute nothing start at once and stay small: torch takes seconds to import and hundreds of megabytes."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["penstock.runtime.hub", "penstock.runtime.remote", "penstock.runtime.roles.rank"])
def test_the_hub_its_clients_and_the_keeper_of_a_rank_import_no_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
