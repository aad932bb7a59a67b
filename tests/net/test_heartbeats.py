"""A peer that vanishes without closing its connection is noticed by both ends; one that only computes is not taken for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from rpc_examples import Hub, joined, serving

from network_relay import relayed
from penstock.core.errors import ConnectionLost
from penstock.net import link

SOON = 30.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE", 1.0)


@pytest.mark.usefixtures("impatient")
async def test_both_ends_notice_a_network_that_forwards_nothing_and_closes_nothing() -> None:
    async with serving() as (hub, address), relayed(address) as (relay, there):
        client = await joined(there)
        call = asyncio.create_task(client.call("wait", deadline=SOON))
        await hub.someone_waits.wait()
        relay.open.clear()
        await hub.someone_left.wait()
        assert [(peer.name, running) for peer, running in hub.left] == [("generator-0", 0)]
        assert hub.lines == ['hub ended the connection of generator "generator-0": nothing was heard of it for 1 s']
        with pytest.raises(ConnectionLost, match="nothing was heard of it for 1 s"):
            await call
        await client.close()


COMPUTES = f"""
import asyncio, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from rpc_examples import joined

async def main():
    client = await joined(sys.argv[1])
    await client.call("note", value="begins")
    time.sleep(float(sys.argv[2]))  # the event loop stands still, as in a step of the optimizer
    print(await client.call("echo", value="went on"), flush=True)
    await client.call("wait")

asyncio.run(main())
"""


def computing(address: str, seconds: float, *before: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PENSTOCK_SILENCE": str(link.SILENCE)}
    command = [*before, sys.executable, "-c", COMPUTES, address, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.usefixtures("cold")  # its silence is read as the module is imported
async def test_a_peer_whose_event_loop_computes_for_long_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE", 2.0)

    async with serving() as (hub, address):
        with computing(address, 5.0) as child:
            assert child.stdout is not None
            said = await asyncio.to_thread(child.stdout.readline)
            child.kill()
        assert said == "went on\n"
        assert hub.lines == []


@pytest.mark.usefixtures("impatient")
async def test_an_end_that_stood_still_itself_does_not_blame_the_other() -> None:
    async with serving() as (hub, address):
        client = await joined(address)
        time.sleep(3 * link.SILENCE)  # both loops, in one thread
        assert await client.call("echo", value="goes on") == "goes on"
        await client.close()
        await hub.someone_left.wait()
        assert hub.lines == []


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network(NamedTuple):
    """A network namespace with one device to this one's, its name and address here, and those there."""

    namespace: str
    here: str
    there: str
    ours: str
    theirs: str

    def drop_packets(self) -> None:
        """Let frames go to a device that nobody has: no reset, nothing unreachable, as when a node loses its power."""
        nowhere = ("lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev")
        ip("neigh", "replace", self.theirs, *nowhere, self.here)
        ip("-n", self.namespace, "neigh", "replace", self.ours, *nowhere, self.there)


@pytest.fixture
def network() -> Iterator[Network]:
    """Skips where none can be made."""
    own = os.getpid() % (1 << 14)
    address = f"10.213.{own >> 6}.{(own & 63) << 2}".rpartition(".")
    ours, theirs = (f"{address[0]}.{int(address[2]) + place}" for place in (1, 2))
    made = Network(f"penstock-{own}", f"ph{own}", f"pt{own}", ours, theirs)
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("netns", "add", made.namespace)
        ip("link", "add", made.here, "type", "veth", "peer", "name", made.there, "netns", made.namespace)
        ip("addr", "add", f"{ours}/30", "dev", made.here)
        ip("link", "set", made.here, "up")
        ip("-n", made.namespace, "addr", "add", f"{theirs}/30", "dev", made.there)
        ip("-n", made.namespace, "link", "set", made.there, "up")
        yield made
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr!r}")
    finally:
        subprocess.run(["ip", "link", "del", made.here], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", made.namespace], check=False, capture_output=True)


@pytest.mark.usefixtures("impatient")
async def test_a_peer_on_a_node_whose_packets_are_dropped_leaves(network: Network) -> None:
    hub = Hub()
    address = await hub.server.start(network.ours)
    with computing(address, 0.0, "ip", "netns", "exec", network.namespace) as child:
        try:
            await hub.someone_waits.wait()
            network.drop_packets()
            await hub.someone_left.wait()
            assert [(peer.name, running) for peer, running in hub.left] == [("generator-0", 0)]
            assert await asyncio.to_thread(child.wait) != 0  # the other side has noticed as well
        finally:
            child.kill()
    await hub.server.stop()
