"""The device and the process-wide state of torch."""

from __future__ import annotations

import random

import numpy as np
import torch

from penstock.core.contracts import State
from penstock.core.errors import DeviceError
from penstock.net.memory import keep_freed_memory

USUAL_THREADS = torch.get_num_threads()


def set_up(device: str, threads: int) -> torch.device:
    """Set the CPU threads and give the device: ``auto`` takes CUDA where there is one.

    Threads 0: torch's own choice, which is ``OMP_NUM_THREADS`` or else a thread for each core that this process may use.

    Raises:
        DeviceError: CUDA was asked for and there is none.
    """
    torch.set_num_threads(threads or USUAL_THREADS)
    torch.set_float32_matmul_precision("highest")
    keep_freed_memory()
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device=cuda, but torch finds no CUDA device on this machine; set device=cpu or device=auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def threads() -> int:
    """CPU threads of this process's matrix products."""
    return torch.get_num_threads()


class RandomStates:
    """The process's global random states: nothing of ours draws from them, but a user's reward may."""

    def state(self) -> State:
        version, words, gauss = random.getstate()
        kind, numpy_words, *more = np.random.get_state(legacy=True)
        values = {"version": version, "words": list(words), "gauss": gauss}
        values |= {"numpy": [str(kind), np.asarray(numpy_words).tolist(), *more]}
        return State({"torch": torch.get_rng_state()}, values)

    def load_state(self, state: State) -> None:
        torch.set_rng_state(state.arrays["torch"])
        values = state.values
        random.setstate((values["version"], tuple(values["words"]), values["gauss"]))
        if "numpy" in values:  # not in checkpoints from before it was kept
            np.random.set_state(tuple(values["numpy"]))
