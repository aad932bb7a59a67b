"""The client and the driver's side of TransferQueue where its actors die, answer late or never; no cluster."""

import asyncio

import pytest

pytest.importorskip("transfer_queue", reason="TransferQueue is not installed: pip install penstock[transferqueue]")

from penstock.core.errors import SpecError, StreamError
from penstock.runtime import transfer_queue
from penstock.runtime.transfer_queue import Client, Units

TABLE = {"generation": 0, "controller": {}, "units": []}


class Tables:
    """Tells of tables as they are put up."""

    def __init__(self, *tables):
        self.tables, self.changed = list(tables), asyncio.Event()

    async def newer(self, generation):
        while True:
            for table in self.tables:
                if table["generation"] > generation:
                    return table
            self.changed.clear()
            await self.changed.wait()

    def add(self, table):
        self.tables.append(table)
        self.changed.set()


class Opened:
    """What a client opens for a table; one of generation 0 never answers."""

    def __init__(self, table, name):
        self.generation = table["generation"]

    async def async_kv_list(self):
        if self.generation == 0:
            await asyncio.Event().wait()
        return {"stage": {"1.0": {}}}

    def close(self):
        return None


def test_a_request_that_hangs_is_begun_again_with_the_next_table(monkeypatch):
    monkeypatch.setattr(transfer_queue, "_opened", Opened)

    async def take():
        tables = Tables(TABLE)
        client = Client(tables.newer, "stage", "learner")
        asking = asyncio.create_task(client.listed())
        while client.generation < 0:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not asking.done()
        tables.add(TABLE | {"generation": 1})
        try:
            return await asking
        finally:
            await client.close()

    assert asyncio.run(take()) == {"stage": ["1.0"]}


def test_a_table_that_cannot_be_opened_is_tried_again(monkeypatch):
    tries = []

    def opened(table, name):
        tries.append(name)
        if len(tries) < 3:
            raise TimeoutError("handshake")
        return Opened(table, name)

    monkeypatch.setattr(transfer_queue, "_opened", opened)
    monkeypatch.setattr(transfer_queue, "PULSE", 0.0)

    async def take():
        client = Client(Tables(TABLE | {"generation": 1}).newer, "stage", "learner")
        try:
            return await client.listed()
        finally:
            await client.close()

    assert asyncio.run(take()) == {"stage": ["1.0"]}
    assert tries == ["learner"] * 3


def test_units_that_never_answer_are_named_after_the_deadline(monkeypatch):
    monkeypatch.setattr(transfer_queue, "_opened", Opened)
    monkeypatch.setattr(transfer_queue, "ANSWER", 0.01)

    async def take():
        client = Client(Tables(TABLE).newer, "stage", "learner")
        try:
            await client.listed()
        finally:
            await client.close()

    with pytest.raises(StreamError, match=r"TransferQueue did not list rows for learner within 0 s"):
        asyncio.run(take())


class Info:
    id, ip, ports = "unit", "127.0.0.1", {"put_get_socket": 1}


class Actor:
    """Stands for one; it answers until it is killed."""

    made: list["Actor"] = []  # noqa: RUF012 - emptied by each test

    def __init__(self, kind, *arguments, here=False):
        self.kind, self.here, self.alive = kind.__name__, here, True
        self.get_zmq_server_info = self
        Actor.made.append(self)

    async def remote(self):
        if not self.alive:
            raise RuntimeError("the actor died\nModuleNotFoundError: no module")
        return Info

    def kill(self):
        self.alive = False


def watched(scene, monkeypatch):
    monkeypatch.setattr(transfer_queue, "PULSE", 0.001)
    Actor.made, notes = [], []

    async def take():
        units = Units(2, "127.0.0.1", Actor, Actor.kill, lambda what, **fields: notes.append(fields["reason"]))
        await units.open()
        try:
            await scene(units)
            table = await asyncio.wait_for(units.newer(0), 5)
        finally:
            await units.close()
        return table

    return asyncio.run(take()), notes


def test_a_unit_that_died_is_replaced_in_its_place(monkeypatch):
    async def scene(units):
        Actor.made[1].kill()

    table, (note,) = watched(scene, monkeypatch)
    assert table["generation"] == 1
    assert [actor.kind for actor in Actor.made] == ["Controller", "Unit", "Unit", "Unit"]
    assert "lost 1 of 2 storage units" in note
    assert not any(actor.alive for actor in Actor.made), "an actor outlived the driver's side"


def test_with_the_controller_all_units_begin_anew(monkeypatch):
    async def scene(units):
        Actor.made[0].kill()

    _, (note,) = watched(scene, monkeypatch)
    assert [actor.kind for actor in Actor.made] == ["Controller", "Unit", "Unit"] * 2
    assert [actor.here for actor in Actor.made] == [True, False, False] * 2
    assert "lost its controller" in note


def test_actors_that_do_not_start_are_one_line_with_what_to_install():
    def broken(kind, *arguments, here=False):
        actor = Actor(kind)
        actor.alive = False
        return actor

    async def take():
        await Units(1, "", broken, Actor.kill, lambda what, **fields: None).open()

    with pytest.raises(SpecError, match=r"does not start: ModuleNotFoundError: no module; all nodes .* pip install"):
        asyncio.run(take())
