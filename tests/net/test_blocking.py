"""Links of threads: values, deadlines, ends, and a silence that is noticed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.core.errors import ConnectionLost, DeadlinePassed, WireError
from penstock.net import link
from penstock.net.blocking import BlockingLink
from penstock.net.handshake import client_half, server_half

Pair = tuple[BlockingLink, BlockingLink]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = (BlockingLink(end, f"end {place}") for place, end in enumerate(socket.socketpair()))
    yield here, there
    here.close()
    there.close()


def test_values_larger_than_the_socket_takes_arrive_whole_and_may_be_written_to(pair: Pair) -> None:
    here, there = pair
    sent = {"item": np.arange(1 << 20), "needs": frozenset({"logp"})}
    sending = threading.Thread(target=here.send, args=(sent,))
    sending.start()
    came = there.receive(20.0)
    sending.join()
    assert np.array_equal(came["item"], sent["item"])
    assert came["needs"] == sent["needs"]
    came["item"] += 1


def test_both_halves_of_the_handshake_meet(pair: Pair) -> None:
    here, there = pair
    found: list[object] = []
    serving = threading.Thread(target=lambda: found.append(here.shake_hands(server_half("token", "learner", "end 1"))))
    serving.start()
    assert there.shake_hands(client_half("token", "rank-1", "rank", "end 0")) == "learner"
    serving.join()
    assert found == [("rank-1", "rank")]


def test_who_does_not_know_the_token_is_refused_at_both_ends(pair: Pair) -> None:
    here, there = pair
    errors: list[Exception] = []

    def serve() -> None:
        with pytest.raises(WireError, match="does not know the token") as caught:
            here.shake_hands(server_half("token", "learner", "end 1"))
        errors.append(caught.value)

    serving = threading.Thread(target=serve)
    serving.start()
    with pytest.raises(WireError, match="refused the token"):
        there.shake_hands(client_half("another", "rank-1", "rank", "end 0"))
    serving.join()
    assert len(errors) == 1


def test_a_wait_has_a_deadline_and_an_end_is_named(pair: Pair) -> None:
    here, there = pair
    with pytest.raises(DeadlinePassed, match="nothing came from end 0 in time"):
        here.receive(0.01)
    assert here.ended() == ""
    there.close()
    assert here.ended() == "its connection ended"
    with pytest.raises(ConnectionLost, match="the other end closed it"):
        here.receive(1.0)


def test_an_end_that_falls_silent_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = pair
    monkeypatch.setattr(link, "SILENCE", 0.2)
    link._links.discard(there)  # its heartbeats no longer come
    with pytest.raises(ConnectionLost, match=r"nothing was heard of it for 0.2 s"):
        here.receive(30.0)


def test_heartbeats_keep_a_wait_alive_beyond_the_silence_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE", 0.5)
    here, there = (BlockingLink(end, "end") for end in socket.socketpair())
    with pytest.raises(DeadlinePassed):
        here.receive(2.0)
    here.close()
    there.close()


def test_a_forked_child_sends_no_heartbeats_on_links_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    end, other = socket.socketpair()
    inherited = BlockingLink(end, "end")
    if (child := os.fork()) == 0:
        link.SILENCE = 0.05
        own = [BlockingLink(one, "own") for one in socket.socketpair()]
        time.sleep(0.5)
        os._exit(len(own) - 2)
    assert os.waitpid(child, 0)[1] == 0
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.recv(1)
    inherited.close()
    other.close()


def test_before_the_handshake_is_done_nothing_of_the_program_is_imported(pair: Pair) -> None:
    """Who has not yet proved to belong to the run names no module."""
    here, there = pair
    there.send(client_half)  # a function of the program, which a peer that is known may send
    with pytest.raises(WireError, match="nothing is registered"):
        here.shake_hands(server_half("token", "learner", "end 1"))
    there.send(client_half)
    assert here.receive(20.0) is client_half
