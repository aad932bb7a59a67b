"""Environments in worker processes, next to the process that decides for them.

Each worker steps one block of environments. Decisions, observations, rewards and ends are arrays in memory that both
processes map; a socket carries a byte for a step and a few for its answer. The one that decides is a policy worker: it takes
whichever blocks have answered and decides for all of them in one call of the network, so that a slow block holds up no other
(SRL, Mei et al. 2023, arXiv 2306.16688).
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.config.spec import parse, plain
from penstock.control.environments import Block, Stepped
from penstock.control.stage import EnvironmentsSpec, Interface
from penstock.core.errors import EnvError, PenstockError, SpecError

PATIENCE = 300.0
"""Seconds in which a worker has to answer."""
STEP, RESET = b"s", b"r"
ANSWER = struct.Struct("<ciB")
"""How it went, how many episodes ended (−1: no array of them), and whether some environments only reset themselves."""
DONE, FAILED = b"k", b"e"
NOTHING = -1


class WorkerLost(EnvError):
    """A worker process ended, or does not answer."""


@dataclass(frozen=True)
class Layout:
    """Sizes of the arrays that a worker shares."""

    rows: int
    numbers: int
    pixels: bool
    decided: int
    continuous: bool
    seeds: int

    @property
    def arrays(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shape and type of each, by name."""
        rows, shown = (self.rows,), (self.rows, self.numbers)
        seen: Any = np.uint8 if self.pixels else np.float32
        found: dict[str, tuple[tuple[int, ...], Any]] = {"observation": (shown, seen), "last": (shown, seen)}
        found["decision"] = ((self.rows, self.decided), np.float32 if self.continuous else np.int64)
        found |= {"reward": (rows, np.float32), "ended": (rows, np.int32), "seeds": ((self.seeds,), np.int64)}
        return found | dict.fromkeys(("terminated", "truncated", "acted", "start"), (rows, np.bool_))

    @property
    def size(self) -> int:
        return sum(_padded(shape, kind) for shape, kind in self.arrays.values())

    def mapped(self, descriptor: int) -> dict[str, NDArray[Any]]:
        """The arrays within a file of ``size`` bytes."""
        memory, offset, found = mmap.mmap(descriptor, self.size), 0, {}
        for name, (shape, kind) in self.arrays.items():
            found[name] = np.ndarray(shape, kind, memory, offset)
            offset += _padded(shape, kind)
        return found


def _padded(shape: tuple[int, ...], kind: Any) -> int:
    """Bytes of an array, up to the next cache line."""
    return -(-int(np.prod(shape)) * np.dtype(kind).itemsize // 64) * 64


class WorkerBlock:
    """A block that a worker process steps; to an actor it is like :class:`Block`.

    Raises:
        WorkerLost: the process ended or did not answer in time; ``reset`` starts another one.
        SpecError: the environment is wrong, in the worker's words.
    """

    def __init__(self, spec: EnvironmentsSpec, seeds: Sequence[int], base: Path | None, like: Block) -> None:
        self.spec, self.base, self.name = spec, base, spec.id
        self.interface = like.interface
        self.seen, self.decisions, self.count = like.seen, like.decisions, like.count * len(seeds)
        shown: Any = like.observation_NF
        pixels, continuous = self.seen.dtype == np.uint8, bool(self.decisions.continuous)
        self.layout = Layout(self.count, shown.shape[1], pixels, self.decisions.size, continuous, len(seeds))
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the block
        self.file.truncate(self.layout.size)
        self.shared = self.layout.mapped(self.file.fileno())
        self.waits = False
        """Whether decisions were sent that nothing was received for."""
        self.process: subprocess.Popen[bytes] | None = None
        self.start(seeds)

    @property
    def observation_NF(self) -> NDArray[Any]:
        """What the environments show; it is overwritten by the next step."""
        return self.shared["observation"]

    @property
    def start_N(self) -> NDArray[np.bool_]:
        return self.shared["start"]

    def start(self, seeds: Sequence[int]) -> None:
        """Start the process; :meth:`begun` waits for its first observations."""
        self.shared["seeds"][:] = seeds
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE)
        given = {"spec": plain(self.spec), "base": str(self.base or ""), "interface": self.interface}
        given |= {"layout": vars(self.layout), "path": sys.path}
        kept = (theirs.fileno(), self.file.fileno())
        command = [sys.executable, "-m", "penstock.control.workers", *map(str, kept)]
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(command, pass_fds=kept, env={**os.environ, **own}, stdin=subprocess.DEVNULL)
        theirs.close()
        text = json.dumps(given).encode()
        self.socket.sendall(struct.pack("<I", len(text)) + text)
        self.waits = True

    def begun(self) -> None:
        """Wait until the first observations of new episodes are there."""
        self._answer()

    def send(self, decision_ND: NDArray[Any]) -> None:
        """Decide for every environment, one row each."""
        self.shared["decision"][:] = decision_ND
        self._say(STEP)

    def receive(self) -> Stepped:
        """What came of the decisions that were sent last; its arrays are overwritten by the next step."""
        ended, acted = self._answer()
        shared = self.shared
        ended_E = None if ended == NOTHING else shared["ended"][:ended].copy()
        last_EF = None if ended == NOTHING else shared["last"][:ended].copy()
        acted_N = shared["acted"] if acted else None
        return Stepped(shared["reward"], shared["terminated"], shared["truncated"], acted_N, ended_E, last_EF)

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin everywhere anew; in a new process where the old one is lost or in the middle of a step."""
        if self.waits or self.process is None or self.process.poll() is not None:
            self.close()
            self.start(seeds)
            return
        self.shared["seeds"][:] = seeds
        self._say(RESET)

    def _say(self, what: bytes) -> None:
        try:
            self.socket.sendall(what)
        except OSError:
            raise self._lost("ended") from None
        self.waits = True

    def _answer(self) -> tuple[int, int]:
        try:
            how, ended, acted = ANSWER.unpack(self._read(ANSWER.size))
        except TimeoutError:
            raise self._lost(f"gave no answer within {PATIENCE:g} s") from None
        if how == FAILED:
            raise SpecError(self._read(ended).decode())
        self.waits = False
        return ended, acted

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                part = self.socket.recv(size - len(found))
            except ConnectionError:
                part = b""
            if not part:
                raise self._lost("ended")
            found += part
        return found

    def _lost(self, how: str) -> WorkerLost:
        assert self.process is not None
        self.waits = True
        return WorkerLost(f"{self.name}: the environment worker of process {self.process.pid} {how}")

    def close(self) -> None:
        """End the process."""
        if self.process is None:
            return
        self.socket.close()  # which it takes as its end
        try:
            self.process.wait(1.0 if not self.waits else 0.1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def answered(blocks: Sequence[WorkerBlock]) -> list[int]:
    """Which of these blocks may be received from, or were never sent anything; waits for one of them at least."""
    free = [index for index, block in enumerate(blocks) if not block.waits]
    sockets = [block.socket for block in blocks]
    ready, _, _ = select.select(sockets, [], [], 0 if free else PATIENCE)
    if not free and not ready:
        raise blocks[0]._lost(f"and {len(blocks) - 1} others gave no answer within {PATIENCE:g} s")
    return sorted({*free, *(sockets.index(one) for one in ready)})


def serve(connection: socket.socket, descriptor: int) -> None:
    """Step a block as its owner says, until that is gone."""
    (size,) = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))
    given = json.loads(connection.recv(size, socket.MSG_WAITALL))
    shared, block = Layout(**given["layout"]).mapped(descriptor), None
    what = RESET
    while what:
        seeds = shared["seeds"].tolist()
        if block is None:
            base = Path(given["base"]) if given["base"] else None
            block = Block(parse(EnvironmentsSpec, given["spec"]), seeds, base, Interface(*given["interface"]))
            ended, acted = NOTHING, 0
        elif what == RESET:
            block.reset(seeds)
            ended, acted = NOTHING, 0
        else:
            ended, acted = _stepped(block, shared)
        shared["observation"][:], shared["start"][:] = block.observation_NF, block.start_N
        connection.sendall(ANSWER.pack(DONE, ended, acted))
        what = connection.recv(1)
    if block is not None:
        block.close()


def _stepped(block: Block, shared: dict[str, NDArray[Any]]) -> tuple[int, int]:
    """One step of a block into the shared arrays."""
    block.send(shared["decision"])
    came = block.receive()
    shared["reward"][:], shared["terminated"][:], shared["truncated"][:] = came.reward_N, came.terminated_N, came.truncated_N
    if came.acted_N is not None:
        shared["acted"][:] = came.acted_N
    if came.ended_E is None:
        return NOTHING, came.acted_N is not None
    count = len(came.ended_E)
    shared["ended"][:count], shared["last"][:count] = came.ended_E, came.last_EF
    return count, came.acted_N is not None


def main() -> None:
    """A worker: descriptors of its socket and of the shared memory are its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides when it ends
    connection, descriptor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    try:
        serve(connection, descriptor)
    except (BrokenPipeError, ConnectionError):
        return
    except Exception as error:
        text = (str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}").encode()
        connection.sendall(ANSWER.pack(FAILED, len(text), 0) + text)


if __name__ == "__main__":
    main()
