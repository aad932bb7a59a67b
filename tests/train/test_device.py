"""The process-wide state of torch: threads, memory, and a device that is there."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from penstock.core.contracts import State
from penstock.core.errors import DeviceError
from penstock.net.memory import keep_freed_memory
from penstock.train.device import RandomStates, set_up


def test_threads_are_those_asked_for_or_those_of_the_environment() -> None:
    code = (
        "import torch; from penstock.train.device import set_up\n"
        "for asked in (3, 0): set_up('cpu', asked); print(torch.get_num_threads())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["3", "1"]


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_what_the_environment_says_of_freed_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    assert keep_freed_memory.__wrapped__() is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there_is_refused() -> None:
    before = torch.get_num_threads()
    with pytest.raises(DeviceError, match="device=cuda, but torch finds no CUDA device"):
        set_up("cuda", before)


def test_a_checkpoint_holds_the_random_states_of_python_numpy_and_torch() -> None:
    def drawn() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.rand(1))]

    drawn()  # one normal of a pair is left over
    state = RandomStates().state()
    stored = State(dict(state.arrays), json.loads(json.dumps(state.values)))
    expected = drawn() + drawn()
    RandomStates().load_state(stored)
    assert drawn() + drawn() == expected
