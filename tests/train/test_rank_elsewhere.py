"""Ranks that come over a socket: who is let in, what becomes of those that leave."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.core.errors import ConnectionLost, RanksLost, WireError
from penstock.train import fleet as fleets
from penstock.train.rank_elsewhere import Elsewhere, RankElsewhere
from penstock.train.rank_meeting import GREETING, Meeting, admit, introduce

TOKEN = "of this run"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(30)
        yield made


def met(listener: socket.socket, token: str = TOKEN, rank: int = 3) -> tuple[Any, Any]:
    """What the learner's half and the rank's half of a meeting give, or raise."""

    def taken() -> int:
        connection, _ = listener.accept()
        with connection:
            return admit(connection, TOKEN)

    with ThreadPoolExecutor(1) as other:
        told = other.submit(taken)
        came: Any
        try:
            came = introduce("127.0.0.1", listener.getsockname()[1], token, rank)
            came.close()
        except (WireError, OSError) as error:
            came = error
        return told.exception() or told.result(), came


def test_the_learner_learns_which_rank_came(listener: socket.socket) -> None:
    told, _ = met(listener, rank=3)
    assert told == 3


def test_a_stranger_is_not_let_in(listener: socket.socket) -> None:
    told, came = met(listener, token="of another run")
    assert isinstance(told, WireError)
    assert isinstance(came, OSError)


def test_a_rank_does_not_follow_a_learner_that_cannot_prove_itself(listener: socket.socket) -> None:
    def pretend() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(bytes(32))
            connection.recv(100)
            connection.sendall(bytes(32))

    with ThreadPoolExecutor(1) as other:
        other.submit(pretend)
        with pytest.raises(WireError, match="does not know the token"):
            introduce("127.0.0.1", listener.getsockname()[1], TOKEN, 1)


def test_the_proof_of_another_meeting_is_worth_nothing(listener: socket.socket) -> None:
    address = listener.getsockname()
    heard: list[bytes] = []

    def relay() -> None:  # lets a true rank sign its number, and keeps what it says
        connection, _ = listener.accept()
        with connection:
            connection.sendall(bytes(32))
            heard.append(connection.recv(100))

    with ThreadPoolExecutor(1) as other:
        told = other.submit(relay)
        with pytest.raises(OSError, match="left"):
            introduce(*address, TOKEN, 1)
        told.result()

        def again() -> int:
            connection, _ = listener.accept()
            with connection:
                return admit(connection, TOKEN)

        taken = other.submit(again)
        with socket.create_connection(address, GREETING) as thief:
            thief.recv(32)
            thief.sendall(heard[0])
            assert isinstance(taken.exception(), WireError)


def test_nobody_waits_where_no_file_says_so(tmp_path: Path) -> None:
    files = Meeting(tmp_path)
    assert files.address() is None
    files.listen(("10.0.0.1", 4711))
    assert files.address() == ("10.0.0.1", 4711)
    files.awaited.write_text('{"host": "10.0')
    assert files.address() is None


def test_a_rank_that_never_comes_is_named_with_its_log(tmp_path: Path) -> None:
    places = Elsewhere(tmp_path, "127.0.0.1", TOKEN, threads=1, seconds=0.0)
    with pytest.raises(RanksLost, match=r"rank 1 did not come within 0 s; its log is .*rank-1\.log"), places.meeting():
        places.start({"rank": 1})
    assert not places.files.awaited.exists()
    assert not places.files.working.exists()


def test_of_a_rank_that_comes_twice_the_later_one_counts(tmp_path: Path) -> None:
    places = Elsewhere(tmp_path, "127.0.0.1", TOKEN, threads=5, seconds=30.0)
    ranks: dict[str, socket.socket] = {}

    def come() -> None:
        place = None
        while place is None:
            place = places.files.address()
        for name, rank in (("first", 2), ("second", 2), ("other", 1)):
            ranks[name] = introduce(*place, TOKEN, rank)

    with ThreadPoolExecutor(1) as other:
        with places.meeting():
            coming = other.submit(come)
            one, two = places.start({"rank": 1}), places.start({"rank": 2})
            coming.result()
        assert ranks["first"].recv(1) == b""
        ranks["second"].sendall(b"x")
        assert two.ended() == ""
    assert places.files.working.exists()
    for handle in (one, two):
        handle.stop()
    places.close()
    assert not places.files.working.exists()
    for connection in ranks.values():
        connection.close()


def test_a_rank_whose_connection_ended_is_gone_with_its_last_words(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    log = tmp_path / "rank-1.log"
    log.write_text("Traceback\nMemoryError: no room\n\n")
    rank = RankElsewhere(1, here, log)
    assert rank.ended() == ""
    there.close()
    assert rank.ended() == "its connection ended"
    assert rank.last_words() == "MemoryError: no room"
    with pytest.raises(ConnectionLost):
        rank.receive(5.0)
    rank.stop()


ROLE = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from penstock.runtime.roles.rank import _serve
asyncio.run(_serve(SimpleNamespace(name="rank-1", folder=Path(sys.argv[1]), token=sys.argv[2])))
"""


@pytest.mark.slow
def test_a_kept_rank_serves_one_fleet_after_another_and_its_death_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rank-1.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as said:
        role = subprocess.Popen([sys.executable, "-c", ROLE, str(tmp_path), TOKEN], stderr=said, env=environment)
    try:
        places = Elsewhere(tmp_path, "127.0.0.1", TOKEN, threads=1)
        for _ in range(2):
            fleet = fleets.Fleet(2, torch.device("cpu"), places)
            assert fleet.call("drop", {"learner": 0}) == [None, None]
            fleet.close()
        fleet = fleets.Fleet(2, torch.device("cpu"), places)
        (child,) = Path(f"/proc/{role.pid}/task/{role.pid}/children").read_text().split()
        os.kill(int(child), 9)
        while not fleet.handles[0].ended():
            threading.Event().wait(0.05)
        with pytest.raises(RanksLost, match="rank 1 of 2 is gone"):
            fleet.call("drop", {"learner": 0})
        assert not places.files.working.exists()
    finally:
        role.kill()
        role.wait()


def test_the_greeting_of_a_rank_elsewhere_names_its_own_threads_and_first_device(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    places = Elsewhere(tmp_path, "127.0.0.1", TOKEN, threads=5)
    places._came[1] = here
    handle = places.start({"rank": 1, "threads": 2})
    from penstock.train import frames

    assert frames.read(there.fileno(), 5.0) == {"rank": 1, "threads": 5, "index": 0}
    handle.stop()
    there.close()


def test_the_file_that_says_where_a_learner_listens_holds_no_secret(tmp_path: Path) -> None:
    files = Meeting(tmp_path)
    files.listen(("127.0.0.1", 1))
    assert json.loads(files.awaited.read_text()) == {"host": "127.0.0.1", "port": 1}
