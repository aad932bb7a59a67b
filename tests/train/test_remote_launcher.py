"""Ranks that come over a socket: who is let in, what becomes of those that leave."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from penstock.core.errors import ConnectionLost, RanksLost, WireError
from penstock.net.blocking import BlockingLink
from penstock.train import fleet as fleets
from penstock.train.launcher import RankHandle, RemoteLauncher
from penstock.train.rendezvous import Rendezvous, connect_to_learner

TOKEN = "of this run"


def test_a_stranger_and_a_learner_that_cannot_prove_itself_are_refused(tmp_path: Path) -> None:
    launcher = RemoteLauncher(tmp_path, "127.0.0.1", TOKEN, threads=1, seconds=30.0)
    refused: list[Exception] = []

    def come() -> socket.socket:
        address = None
        while address is None:
            address = launcher.files.address()
        try:
            connect_to_learner(address, "of another run", 1)
        except WireError as error:
            refused.append(error)
        return connect_to_learner(address, TOKEN, 1)

    with ThreadPoolExecutor(1) as other, launcher.launching():
        coming = other.submit(come)
        launcher.launch({"rank": 1}).stop()
        coming.result().close()
    assert "refused the token" in str(refused[0])
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as other:
        coming = other.submit(connect_to_learner, listener.getsockname(), TOKEN, 1)
        false = BlockingLink(listener.accept()[0], "rank")
        false.send(["challenge", bytes(32), "learner"])
        false.receive(5.0)
        false.send(["welcome", bytes(32)])
        assert "does not know the token" in str(coming.exception())
        false.close()


def test_nobody_waits_where_no_file_says_so(tmp_path: Path) -> None:
    files = Rendezvous(tmp_path)
    assert files.address() is None
    files.listen(("10.0.0.1", 4711))
    assert files.address() == ("10.0.0.1", 4711)
    files.awaited.write_text('{"host": "10.0')
    assert files.address() is None


def test_a_rank_that_never_comes_is_named_with_its_log(tmp_path: Path) -> None:
    places = RemoteLauncher(tmp_path, "127.0.0.1", TOKEN, threads=1, seconds=0.0)
    with pytest.raises(RanksLost, match=r"rank 1 did not come within 0 s; its log is .*rank-1\.log"), places.launching():
        places.launch({"rank": 1})
    assert not places.files.awaited.exists()
    assert not places.files.working.exists()


def test_of_a_rank_that_comes_twice_the_later_one_counts(tmp_path: Path) -> None:
    places = RemoteLauncher(tmp_path, "127.0.0.1", TOKEN, threads=5, seconds=30.0)
    ranks: dict[str, socket.socket] = {}

    def come() -> None:
        place = None
        while place is None:
            place = places.files.address()
        for name, rank in (("first", 2), ("second", 2), ("other", 1)):
            ranks[name] = connect_to_learner(place, TOKEN, rank)

    with ThreadPoolExecutor(1) as other:
        with places.launching():
            coming = other.submit(come)
            one, two = places.launch({"rank": 1}), places.launch({"rank": 2})
            coming.result()
        assert BlockingLink(ranks["first"], "learner").ended() == "its connection ended"
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
    rank = RankHandle(BlockingLink(here, "rank 1"), log)
    BlockingLink(there, "learner").beat()
    assert rank.ended() == ""
    there.close()
    assert rank.ended() == "its connection ended"
    assert rank.last_words() == "MemoryError: no room"
    with pytest.raises(ConnectionLost):
        rank.link.receive(5.0)
    rank.stop()


ROLE = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from penstock.runtime.roles.rank import _serve
asyncio.run(_serve(SimpleNamespace(name="rank-1", folder=Path(sys.argv[1]), token=sys.argv[2])))
"""


def test_a_kept_rank_serves_one_fleet_after_another_and_its_death_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "rank-1.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as said:
        role = subprocess.Popen([sys.executable, "-c", ROLE, str(tmp_path), TOKEN], stderr=said, env=environment)
    try:
        places = RemoteLauncher(tmp_path, "127.0.0.1", TOKEN, threads=1)
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
    places = RemoteLauncher(tmp_path, "127.0.0.1", TOKEN, threads=5)
    places._came[1] = BlockingLink(here, "rank 1")
    handle = places.launch({"rank": 1, "threads": 2})
    other = BlockingLink(there, "learner")
    assert other.receive(5.0) == {"rank": 1, "threads": 5, "index": 0}
    handle.stop()
    other.close()


def test_the_file_that_says_where_a_learner_listens_holds_no_secret(tmp_path: Path) -> None:
    files = Rendezvous(tmp_path)
    files.listen(("127.0.0.1", 1))
    assert json.loads(files.awaited.read_text()) == {"host": "127.0.0.1", "port": 1}
