"""What comes from outside the run, or is not what it should be, is refused with a word in the log; the run is unharmed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import RECIPES, Start, Started, Undisturbed, processes

from penstock.core.errors import ConnectionLost, PenstockError, StreamError, WireError
from penstock.net import wire
from penstock.net.handshake import SECONDS
from penstock.net.rpc import GREETING_AT_ONCE, connect
from penstock.stream.entry import Ticket

TELL_HUB = """
def telling(function, hub, host):
    async def start():
        address = await function(hub, host)
        with open("hub.json", "w") as out:
            json.dump({"address": address, "token": hub.token if hasattr(hub, "token") else hub.server._token}, out)
        return address
    return start()
wrap("penstock.runtime.hub:Hub.start", telling)
"""
"""Has the supervisor write where its hub is, and the run's token."""

WORDS = ("letters", "--steps", "8", "--delay", "0.02", "--hold", "14")


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, undisturbed: Undisturbed) -> Iterator[tuple[Started, dict[str, str]]]:
    """A run whose fourth step waits, and how to reach its hub; after all that befalls it, it must end as if nothing had."""
    words = ("train", f"{RECIPES}:letters", "--name", "run", "--runtime", "procs", *WORDS[1:])
    run = Started(tmp_path_factory.mktemp("waiting"), *words, first=TELL_HUB)
    try:
        run.until_step(3)
        yield run, json.loads((run.folder / "hub.json").read_text())
        run.assert_ends(undisturbed(*WORDS), 8)
    finally:
        run.kill_everyone()


@contextmanager
def dialled(hub: dict[str, str]) -> Iterator[socket.socket]:
    host, port = hub["address"].split(":")
    with socket.create_connection((host, int(port)), timeout=120) as made:
        yield made


def ended(connection: socket.socket) -> bool:
    """Read until the other end hangs up."""
    with suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


def reasons(run: Started) -> list[str]:
    return [note["reason"] for note in run.notes("refused")]


def until_told(run: Started, *parts: str) -> None:
    run.until(lambda: any(all(part in reason for part in parts) for reason in reasons(run)), 20, f"word of {parts}")


GARBAGE = {
    "random bytes": bytes(np.random.default_rng(0).integers(0, 256, 4096, np.uint8)),
    "the greeting of a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a huge header": wire.PRELUDE.pack(wire.MAGIC, 1 << 31, 0),
    "a huge body": wire.PRELUDE.pack(wire.MAGIC, 10, 1 << 62),
    "a header of garbage": wire.PRELUDE.pack(wire.MAGIC, 64, 0) + b"\xc1" * 64,
    "something else than a greeting": b"".join(bytes(part) for part in wire.pack(["call", 1, "lease", {"version": 0}])),
}


def test_garbage_ends_its_own_connection_only(waiting: tuple[Started, dict[str, str]]) -> None:
    run, hub = waiting
    before = len(reasons(run))
    for sent in GARBAGE.values():
        with dialled(hub) as connection:
            connection.sendall(sent)
            assert ended(connection)
    run.until(lambda: len(reasons(run)) >= before + len(GARBAGE), 20, "a word of each")
    assert all("hub refused a connection: 127.0.0.1:" in reason for reason in reasons(run)[before:])


def test_a_wrong_token_half_a_frame_and_a_flood_of_connections_disturb_nobody(
    waiting: tuple[Started, dict[str, str]],
) -> None:
    """While strangers hold every place in the handshake, a generator dies; its successor comes in once their time is up."""
    run, hub = waiting
    with pytest.raises(WireError, match="refused the token"):
        asyncio.run(connect(hub["address"], "0" * 64, name="generator-0", role="generator"))
    until_told(run, 'called itself generator "generator-0"', "does not know the token")
    with ExitStack() as stack:
        strangers = [stack.enter_context(dialled(hub)) for _ in range(GREETING_AT_ONCE)]
        strangers[0].sendall(wire.PRELUDE.pack(wire.MAGIC, 500, 0) + b"half")
        run.signal("generator-0", signal.SIGKILL)
        assert all(map(ended, strangers))
    until_told(run, "did not greet in time")
    assert SECONDS < 10


def test_who_knows_the_token_cannot_take_what_is_the_learners(waiting: tuple[Started, dict[str, str]]) -> None:
    run, hub = waiting
    manifest = {"kind": "shared memory", "version": 10**6, "learner_epoch": 1}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("lease", {"version": 3}),
        ("release", {"number": 1, "saved": True}),
        ("announce", {"manifest": manifest}),
        ("end", {}),
        ("begin", {"stage": "grpo", "ledger": {"floor": 0, "trained": [], "version": 0}}),
    ]

    async def main() -> None:
        rogue = await connect(hub["address"], hub["token"], name="rogue", role="learner")
        for verb, values in asked:
            with pytest.raises(StreamError, match="only"):
                await rogue.call(verb, deadline=20, **values)
        for verb, values in [
            ("put", {"ticket": Ticket(10**6), "group": None}),
            ("write", {"ticket": Ticket(0), "step": "reward", "found": []}),
            ("take", {"step": "no such step", "most": 1}),
            ("no such verb", {}),
            ("lease", {}),
        ]:
            try:
                assert not await rogue.call(verb, deadline=20, **values)
            except PenstockError:
                continue
        await rogue.close()

    asyncio.run(main())
    until_told(run, 'learner "rogue" asked for what only the learner that began the stage may')
    until_told(run, 'learner "rogue" asked to begin a stage')


def test_who_knows_the_token_and_talks_garbage_loses_its_own_connection(waiting: tuple[Started, dict[str, str]]) -> None:
    run, hub = waiting

    async def main(sent: bytes) -> None:
        rogue = await connect(hub["address"], hub["token"], name="rogue", role="generator")
        rogue._link.post([sent])
        with pytest.raises(ConnectionLost):
            await rogue.call("status", deadline=20)
        await rogue.close()

    for sent in list(GARBAGE.values())[:-1]:
        asyncio.run(main(sent))
    until_told(run, 'hub ended a connection: generator "rogue"')


def listening(groups: set[int]) -> set[str]:
    """Addresses at which processes of these groups take connections."""
    links = [link for pid, group in processes() if group in groups for link in Path(f"/proc/{pid}/fd").iterdir()]
    held = {link.readlink().name for link in links if link.is_symlink()}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in held:
                host, port = (bytes.fromhex(part) for part in local.split(":"))
                words = b"".join(host[at : at + 4][::-1] for at in range(0, len(host), 4))
                found.add(f"{socket.inet_ntop(family, words)}:{struct.unpack('>H', port)[0]}")
    return found


def test_a_run_listens_on_this_machine_only(waiting: tuple[Started, dict[str, str]]) -> None:
    run, hub = waiting
    assert listening({run.pid, *run.roles.values()}) == {hub["address"]}


def test_a_process_group_listens_on_this_machine_only(start: Start) -> None:
    run = start("letters", "--steps", "8", "--hold", "14", "--roles.channel", "process group")
    run.until_step(3)
    assert all(address.startswith("127.0.0.1:") for address in listening({run.pid, *run.roles.values()}))
    run.assert_ends()
