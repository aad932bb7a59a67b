"""Who may connect, what strangers can do, and what a process that dies or stands still does to those that talk with it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rpc_examples import TOKEN, joined, port, serving, serving_one

from network_relay import relayed
from penstock.core.errors import ConnectionLost, DeadlinePassed, WireError
from penstock.net import handshake, wire
from penstock.net.handshake import server_half
from penstock.net.link import Link
from penstock.net.rpc import connect

SOON = 20.0


async def test_a_wrong_token_is_refused_on_both_sides_and_disturbs_nobody() -> None:
    async with serving_one() as (hub, client):
        address = client.server.rpartition(" ")[2]
        with pytest.raises(WireError, match=f"hub at {address} refused the token"):
            await connect(address, "another token", name="stranger", role="generator")
        assert await client.call("echo", deadline=SOON, value=1) == 1
        assert len(hub.lines) == 1
        assert 'called itself generator "stranger" and does not know the token' in hub.lines[0]
        assert [peer.name for peer in hub.server.peers.values()] == ["generator-0"]
        assert hub.left == []


async def test_the_token_never_crosses_the_wire() -> None:
    async with serving() as (_, address), relayed(address) as (relay, there):
        client = await joined(there)
        assert await client.call("echo", deadline=SOON, value="seen by the relay") == "seen by the relay"
        await client.close()
        seen = b"".join(relay.crossed)
        assert b"seen by the relay" in seen
        assert TOKEN.encode() not in seen


async def test_a_recorded_greeting_opens_no_second_connection() -> None:
    async with serving() as (hub, address), relayed(address) as (relay, there):
        await (await joined(there)).close()
        hello = next(data for data in relay.crossed if b"hello" in data)
        replay = Link(socket.create_connection(port(address)), address)
        await replay.receive()  # another challenge than the recorded one
        replay.post([hello])
        assert await replay.receive() == ["refused"]
        assert "does not know the token" in hub.lines[0]
        replay.close()


async def test_a_server_that_does_not_know_the_token_is_not_believed() -> None:
    async def impostor(listener: socket.socket) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        false = Link(connection, "client")
        await false.send(wire.pack(["challenge", bytes(32), "hub"]))
        await false.receive()
        await false.send(wire.pack(["welcome", bytes(32)]))
        with pytest.raises(ConnectionLost):
            await false.receive()
        false.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        false = asyncio.create_task(impostor(listener))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(WireError, match=f"{address} does not know the token"):
            await joined(address)
        await false


GARBAGE = {
    "nothing": b"",
    "zeros": bytes(200),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a frame of noise": wire.PRELUDE.pack(wire.MAGIC, 64, 0) + np.random.default_rng(0).bytes(64),
    "a large announcement": wire.PRELUDE.pack(wire.MAGIC, wire.MAX_HEADER, wire.MAX_BODY),
    "a message before the greeting": b"".join(wire.pack(["call", 1, "echo", {"value": 1}])),
    "a greeting of other types": b"".join(wire.pack(["hello", 1, 2, 3, 4])),
    "a greeting that ends early": b"".join(wire.pack(["hello", "x", "y", bytes(32), bytes(32)]))[:-3],
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_instead_of_a_greeting_ends_that_connection_only(garbage: bytes) -> None:
    async with serving_one() as (hub, client):
        host, number = port(client.server.rpartition(" ")[2])
        reader, writer = await asyncio.open_connection(host, number)
        writer.write(garbage)
        writer.write_eof()
        await reader.read()  # until the server ends it
        writer.close()
        while not hub.lines:
            assert await client.call("echo", deadline=SOON, value=1) == 1
        assert hub.lines[0].startswith("hub refused a connection: ")
        assert hub.left == []


async def test_garbage_after_the_greeting_ends_that_connection_and_its_peer_leaves() -> None:
    async with serving() as (hub, address):
        client = await joined(address)
        call = asyncio.create_task(client.call("wait", deadline=SOON))
        await hub.someone_waits.wait()
        client._link.post([b"no frame begins like this"])
        with pytest.raises(ConnectionLost):
            await call
        await hub.someone_left.wait()
        assert [(peer.name, running) for peer, running in hub.left] == [("generator-0", 0)]
        assert 'generator "generator-0"' in hub.lines[0]
        await client.close()


async def test_garbage_from_the_server_fails_the_open_calls() -> None:
    async def garbling(connection: socket.socket) -> None:
        server = Link(connection, "client")
        await server.shake_hands(server_half(TOKEN, "hub", "client"))
        await server.receive()
        await server.send([b"no frame begins like this"])
        with pytest.raises(ConnectionLost):
            await server.receive()
        server.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        accepting = asyncio.create_task(asyncio.get_running_loop().sock_accept(listener))
        joining = asyncio.ensure_future(joined(f"127.0.0.1:{listener.getsockname()[1]}"))
        garbled = asyncio.create_task(garbling((await accepting)[0]))
        client = await joining
        with pytest.raises(ConnectionLost, match="sent something that is no frame"):
            await client.call("echo", deadline=SOON, value=1)
        await garbled
        await client.close()


async def test_who_does_not_greet_in_time_is_shut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "SECONDS", 0.05)

    async with serving() as (hub, address):
        reader, writer = await asyncio.open_connection(*port(address))
        await reader.read()  # the challenge, and then the end
        writer.close()
        assert "did not greet in time" in hub.lines[0]


async def test_a_server_that_does_not_greet_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(DeadlinePassed, match=f'{address} did not answer the greeting of generator "a"'):
            await connect(address, TOKEN, name="a", role="generator", deadline=0.05)


async def test_where_nobody_listens_the_error_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionLost, match=f"no server listens at {address}"):
        await joined(address)


SERVER = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from rpc_examples import Hub

async def main():
    print(await Hub().server.start(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

CLIENT = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from rpc_examples import joined

async def main():
    client = await joined(sys.argv[1])
    await asyncio.gather(*(client.call("wait", deadline=60) for _ in range(3)))

asyncio.run(main())
"""


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


async def test_a_client_process_that_is_killed_leaves_once_and_its_handlers_end() -> None:
    async with serving() as (hub, address):
        with process(CLIENT, address) as child:
            await hub.someone_waits.wait()
            child.kill()
            await hub.someone_left.wait()
            assert (hub.running, hub.cancelled) == (0, hub.most)
    assert [peer.name for peer, _ in hub.left] == ["generator-0"]


async def test_when_the_server_process_is_killed_open_calls_fail_and_name_it() -> None:
    with process(SERVER) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        client = await joined(address)
        call = asyncio.create_task(client.call("wait", deadline=SOON))
        await client.call("echo", deadline=SOON, value=1)
        child.kill()
        with pytest.raises(ConnectionLost, match=f"hub at {address}"):
            await call
        await client.lost.wait()
        await client.close()


async def test_a_server_process_that_stands_still_costs_no_more_than_the_deadline_and_may_go_on() -> None:
    with process(SERVER) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        client = await joined(address)
        os.kill(child.pid, signal.SIGSTOP)
        large = np.zeros(1 << 24, np.uint8)  # more than the socket takes while nobody reads
        with pytest.raises(DeadlinePassed, match=f'hub at {address} did not answer "echo" within 0.2 s'):
            await client.call("echo", deadline=0.2, value=large)
        os.kill(child.pid, signal.SIGCONT)
        assert await client.call("echo", deadline=SOON, value="goes on") == "goes on"
        await client.close()
