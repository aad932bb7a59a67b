"""Calls between two ends of a real connection: what comes back, what is cancelled, who hears of an end."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rpc_examples import joined, raw, serving, serving_one

from penstock.core.errors import ConnectionLost, DeadlinePassed, PenstockError, RemoteError, StreamError, WireError
from penstock.net import rpc, wire
from penstock.net.rpc import WINDOW, Client, Many

SOON = 20.0
"""Seconds: longer than any of these calls takes, so that a deadline that passes is a failure."""


async def test_a_call_returns_what_the_handler_returns() -> None:
    async with serving_one() as (_, client):
        sent = {"columns": (np.arange(5, dtype=np.int32), [1.5, None]), "verb": "echo"}
        received = await client.call("echo", deadline=SOON, value=sent)
        assert received["columns"][0].tolist() == [0, 1, 2, 3, 4]
        assert received["columns"][1] == [1.5, None]
        assert isinstance(received["columns"], tuple)


async def test_a_handler_knows_its_peer_and_no_two_peers_share_an_id() -> None:
    async with serving() as (_, address):
        seen = []
        for _ in range(3):
            client = await joined(address, "generator-0")
            seen.append(tuple(await client.call("who", deadline=SOON)))
            await client.close()
        assert [who[1:] for who in seen] == [("generator-0", "generator")] * 3
        assert len({who[0] for who in seen}) == 3


async def test_calls_of_one_client_run_at_the_same_time_and_find_their_replies() -> None:
    async with serving_one() as (hub, client):
        first = asyncio.create_task(client.call("wait", deadline=SOON))
        await hub.someone_waits.wait()
        assert await client.call("echo", deadline=SOON, value="overtakes") == "overtakes"
        hub.gate.set()
        assert await first == "opened"


async def test_no_more_than_a_window_of_calls_is_open_and_all_of_them_end() -> None:
    async with serving_one() as (hub, client):
        calls = [asyncio.create_task(client.call("wait", deadline=SOON)) for _ in range(3 * WINDOW)]
        await hub.someone_waits.wait()
        other = await joined(client.server.rpartition(" ")[2])
        while hub.running < WINDOW:
            await other.call("echo", deadline=SOON, value=None)  # one more turn of both ends
        hub.gate.set()
        assert await asyncio.gather(*calls) == ["opened"] * (3 * WINDOW)
        assert hub.most <= WINDOW
        await other.close()


async def test_calls_begin_in_the_order_in_which_they_were_sent() -> None:
    async with serving_one() as (hub, client):
        calls = []
        for number in range(200):
            calls.append(asyncio.create_task(client.call("note", deadline=SOON, value=number)))
            await asyncio.sleep(0)  # the task begins
        await asyncio.gather(*calls)
        assert hub.begun == list(range(200))


@pytest.mark.parametrize(
    ("verb", "values", "error", "message"),
    [
        ("fail", {"kind": "stream"}, StreamError, "^group gsm8k/0/3 is stale$"),
        ("fail", {"kind": "key"}, RemoteError, "hub at .*: KeyError: 'reward'"),
        ("fail", {"kind": "cancelled"}, RemoteError, "CancelledError"),
        ("fail", {"kind": "unpackable"}, WireError, "builtins.set cannot travel"),
        ("echo", {"value": {1, 2}}, WireError, "builtins.set cannot travel"),
        ("echo", {"valeu": 1}, RemoteError, "TypeError.*valeu"),
        ("echo", {"peer": 1, "value": 1}, RemoteError, "TypeError.*peer"),
        ("lease", {}, WireError, 'hub has no verb "lease"; it has echo, fail, note, wait, who'),
    ],
)
async def test_errors_arrive_where_the_call_was_made(
    verb: str, values: dict[str, Any], error: type[PenstockError], message: str
) -> None:
    async with serving_one() as (_, client):
        with pytest.raises(error, match=message) as caught:
            await client.call(verb, deadline=SOON, **values)
        assert caught.type is error
        assert await client.call("echo", deadline=SOON, value="still here") == "still here"


async def until_cancelled(client: Client, count: int) -> None:
    """Further calls until the hub has seen ``count`` handlers cancelled; the test's minute is the deadline."""
    while await client.call("cancelled", deadline=SOON) < count:
        pass


async def test_a_deadline_that_passes_names_verb_and_server_and_cancels_the_handler() -> None:
    async with serving_one() as (hub, client):
        hub.server.handlers["cancelled"] = lambda peer: asyncio.sleep(0, hub.cancelled)
        with pytest.raises(DeadlinePassed, match=r'hub at 127.0.0.1:\d+ did not answer "wait" within 0.05 s'):
            await client.call("wait", deadline=0.05)
        await until_cancelled(client, 1)
        assert (hub.running, hub.cancelled) == (0, 1)


async def test_cancelling_a_call_cancels_its_handler_and_no_other() -> None:
    async with serving_one() as (hub, client):
        hub.server.handlers["cancelled"] = lambda peer: asyncio.sleep(0, hub.cancelled)
        kept = asyncio.create_task(client.call("wait", deadline=SOON))
        given_up = asyncio.create_task(client.call("wait", deadline=SOON))
        while await client.call("echo", deadline=SOON, value=None) or hub.running < 2:
            pass
        given_up.cancel()
        await until_cancelled(client, 1)
        assert given_up.cancelled()
        hub.gate.set()
        assert await kept == "opened"


async def test_calls_cancelled_before_their_handlers_begin_leave_their_places_free() -> None:
    async with serving_one() as (hub, client):
        for _ in range(5):
            calls = [asyncio.create_task(client.call("wait", deadline=SOON)) for _ in range(WINDOW)]
            await asyncio.sleep(0)  # each has posted its message, none has been sent
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert await client.call("echo", deadline=SOON, value="free") == "free"
        assert hub.running == 0


async def test_a_call_cancelled_while_its_array_is_sent_leaves_the_connection_whole() -> None:
    async with serving_one() as (_, client):
        array = np.arange(1 << 21)
        call = asyncio.create_task(client.call("echo", deadline=SOON, value=array))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the first part is in the socket
        call.cancel()
        received = await client.call("echo", deadline=SOON, value=array)
        assert np.array_equal(received, array)


async def test_large_and_small_messages_cross_each_other_unharmed() -> None:
    async with serving_one() as (_, client):
        sizes = [1, 1 << 20, 0, 1 << 16, 3, 1 << 21, (1 << 16) - 1, 100]
        sent = [[np.full(size, number, np.uint8), number] for number, size in enumerate(sizes * 3)]
        received = await asyncio.gather(*(client.call("echo", deadline=SOON, value=value) for value in sent))
        assert all(np.array_equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(sent, received, strict=True))


async def test_what_one_frame_does_not_hold_comes_item_by_item_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BODY", 1 << 17)
    arrays = [np.full(1 << 17, number, np.uint8) for number in range(20)]

    async with serving_one() as (hub, client):
        hub.server.handlers["lease"] = lambda peer: asyncio.sleep(0, Many({"number": 7}, arrays))
        leased = await client.call("lease", deadline=SOON)
        assert leased.value == {"number": 7}
        assert all(np.array_equal(came, sent) for came, sent in zip(leased.items, arrays, strict=True))
        with pytest.raises(WireError, match="in several messages"):
            await client.call("echo", deadline=SOON, value=arrays)


async def test_a_call_whose_items_do_not_all_travel_fails_as_a_whole() -> None:
    async with serving_one() as (hub, client):
        hub.server.handlers["lease"] = lambda peer: asyncio.sleep(0, Many(None, [1, 2, {3}]))
        for _ in range(2):
            with pytest.raises(WireError, match="set cannot travel"):
                await client.call("lease", deadline=SOON)
        assert await client.call("echo", deadline=SOON, value=1) == 1


async def test_a_server_without_room_for_a_connection_says_so_and_takes_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "CROWDED", 0.01)

    loop, full = asyncio.get_running_loop(), [True] * 3
    accept = loop.sock_accept

    async def crowded(listener: socket.socket) -> Any:
        connection, address = await accept(listener)
        if not full:
            return connection, address
        full.pop()
        connection.close()
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(loop, "sock_accept", crowded)
    async with serving() as (hub, address):
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                await joined(address)
        client = await joined(address)
        assert await client.call("echo", value=1) == 1
        await client.close()
        assert len(hub.lines) == 1
        assert "hub takes no connections for now: [Errno" in hub.lines[0]


async def test_a_peer_that_is_dropped_has_left_when_its_successor_comes() -> None:
    async with serving() as (hub, address):
        old, other = await joined(address), await joined(address, "generator-1")
        call = asyncio.create_task(old.call("wait", deadline=SOON))
        await hub.someone_waits.wait()
        await hub.server.drop("generator-0")
        assert [(peer.name, running) for peer, running in hub.left] == [("generator-0", 0)]
        new = await joined(address)
        assert await new.call("who") == [3, "generator-0", "generator"]
        with pytest.raises(ConnectionLost):
            await call
        assert await other.call("echo", value=1) == 1
        for client in (old, other, new):
            await client.close()


async def test_a_client_that_does_not_read_stops_nobody_else() -> None:
    async with serving_one() as (_, client):
        deaf = await raw(client.server.rpartition(" ")[2])
        for number in range(32):
            await deaf.send(wire.pack(["call", number, "echo", {"value": np.zeros(1 << 20, np.uint8)}]))
        assert await client.call("echo", deadline=SOON, value="heard") == "heard"
        deaf.close()


async def test_a_client_that_closes_leaves_once_and_after_its_handlers_ended() -> None:
    async with serving() as (hub, address):
        client = await joined(address)
        calls = [asyncio.create_task(client.call("wait", deadline=SOON)) for _ in range(3)]
        await hub.someone_waits.wait()
        await client.close()
        await hub.someone_left.wait()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
        assert hub.cancelled == 3
    assert [(peer.name, running) for peer, running in hub.left] == [("generator-0", 0)]
    assert hub.lines == []


async def test_when_the_server_stops_every_peer_leaves_and_open_and_waiting_calls_fail() -> None:
    async with serving() as (hub, address):
        client = await joined(address)
        calls = [asyncio.create_task(client.call("wait", deadline=SOON)) for _ in range(2 * WINDOW)]
        await hub.someone_waits.wait()
        await hub.server.stop()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ConnectionLost}
        assert len(hub.left) == 1
        with pytest.raises(ConnectionLost, match=f"hub at {address}"):
            await client.until_lost()
        with pytest.raises(ConnectionLost, match=f"hub at {address}"):
            await client.call("echo", deadline=SOON, value=1)


async def test_what_fails_when_a_peer_left_is_reported_and_the_server_goes_on() -> None:
    async with serving() as (hub, address):
        hub.left = None  # type: ignore[assignment]  # the handler's append fails
        await (await joined(address)).close()
        client = await joined(address)
        while not hub.lines:
            await client.call("echo", deadline=SOON, value=None)
        assert 'hub failed when generator "generator-0" left: AttributeError' in hub.lines[0]
        await client.close()


@pytest.mark.parametrize(
    "message",
    [
        ["call", 1, "echo"],
        ["call", "1", "echo", {}],
        ["shout", 1],
        None,
        {"call": 1},
        ["value", 1, 2],
    ],
)
async def test_a_message_out_of_order_ends_that_connection_only(message: Any) -> None:
    async with serving_one() as (hub, client):
        rude = await raw(client.server.rpartition(" ")[2])
        await rude.send(wire.pack(message))
        with pytest.raises(ConnectionLost):
            await rude.receive()
        await hub.someone_left.wait()
        assert [peer.name for peer, _ in hub.left] == ["rude"]
        assert 'generator "rude"' in hub.lines[0]
        assert await client.call("echo", deadline=SOON, value=1) == 1
        rude.close()


async def test_more_calls_than_a_window_end_the_connection() -> None:
    async with serving() as (hub, address):
        rude = await raw(address)
        for number in range(WINDOW + 1):
            await rude.send(wire.pack(["call", number, "wait", {}]))
        await hub.someone_left.wait()
        assert f"has more than {WINDOW} calls open" in hub.lines[0]
        assert hub.running == 0
        rude.close()


async def test_many_small_items_that_wait_to_leave_do_not_count_as_calls_of_who_reads_them_slowly() -> None:
    async with serving() as (hub, address):
        many = Many(None, [bytes(10_000)] * 3000)
        hub.server.handlers["lease"] = lambda peer: asyncio.sleep(0, many)
        slow = await raw(address)
        await slow.send(wire.pack(["call", 1, "lease", {}]))
        for number in range(2, 50):
            await slow.send(wire.pack(["call", number, "echo", {"value": number}]))
        kinds = [await slow.receive() for _ in range(3000 + 49)]
        assert sum(message[0] == "item" for message in kinds) == 3000
        assert hub.lines == []
        slow.close()


async def test_a_failure_whose_caller_has_left_is_nothing_that_asyncio_prints() -> None:
    """What asyncio would print fails any test here."""

    async def fails() -> None:
        raise ConnectionLost("the connection has ended")

    session = rpc._Session.__new__(rpc._Session)
    session.link = SimpleNamespace(reason="another process takes its place")  # type: ignore[assignment]
    task = asyncio.create_task(fails())
    session.running = {7: task}
    await asyncio.wait([task])
    session.reply(7, task)
    assert session.running == {}
