"""What one client can take of a server's places, and what it leaves for others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time

import pytest
from starlette.responses import JSONResponse

from penstock.web import app as web_app
from penstock.web.app import App
from penstock.web.crowd import Bodies, Connections, block_of
from penstock.web.guard import BodyLimits, read_json
from penstock.web.refusals import Refusal
from penstock.web.server import listen, server_of


class Line:
    """A connection that is open until it is closed."""

    def __init__(self, busy=False):
        self.is_busy, self.open = busy, True

    def busy(self):
        return self.is_busy

    def close(self):
        self.open = False


def lines(places, address, count, **options):
    made = [Line(**options) for _ in range(count)]
    for line in made:
        places.add(address, line)
    return made


def still_open(made):
    return [line.open for line in made]


@pytest.mark.parametrize(
    ("places", "comers", "left"),
    [
        (Connections(10, 2), ["a", "a", "a", "b"], [True, True, False, True]),
        (Connections(4), ["a", "b", "b", "b", "c"], [True, False, True, True, True]),
        (Connections(3), ["A", "A", "b", "c"], [True, True, False, True]),
        (Connections(2), ["A", "A", "B"], [True, True, False]),
    ],
    ids=["an address has so many", "the oldest of the most crowded address", "busy ones keep theirs", "everybody is busy"],
)
def test_where_places_are_taken_somebody_gives_way(places, comers, left):
    """Of connections of addresses one after the other; those in capitals are busy with a request."""
    made = [lines(places, who.lower(), 1, busy=who.isupper())[0] for who in comers]
    assert still_open(made) == left


def test_a_place_that_was_left_is_free_again():
    places = Connections(10, 1)
    [first] = lines(places, "a", 1)
    places.discard("a", first)
    assert still_open(lines(places, "a", 1)) == [True]


def test_connections_that_ended_leave_nothing_behind():
    places = Connections(10)
    for number in range(100):
        [line] = lines(places, f"address {number}", 1)
        places.discard(f"address {number}", line)
    assert places._open == {}


@pytest.mark.parametrize("length", ["2097152", "99999999999999999999", "-1", "x", "", "²"])
def test_bodies_of_an_address_have_room_up_to_a_limit(length):
    bodies = Bodies(8 << 20, 4 << 20)
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(bodies.reserved("a", {"content-length": length}, 2 << 20))
        with pytest.raises(Refusal) as refused, bodies.reserved("a", {"content-length": "1"}, 2 << 20):
            pass
        assert refused.value.status == 429
        with bodies.reserved("b", {"content-length": "1"}, 2 << 20):
            pass
    with bodies.reserved("a", {}, 4 << 20):  # what was taken is given back
        pass
    assert bodies._taken == {}


def test_bodies_of_all_have_room_up_to_a_limit():
    bodies = Bodies(4 << 20, 4 << 20)
    with bodies.reserved("a", {}, 2 << 20), bodies.reserved("b", {}, 2 << 20):
        with pytest.raises(Refusal) as refused, bodies.reserved("c", {"content-length": "1"}, 2 << 20):
            pass
        assert refused.value.status == 503


def test_large_bodies_are_parsed_one_at_a_time_with_rests():
    """The event loop answers others meanwhile: between two there is a rest of three times what parsing the first one took."""
    bodies, spans = Bodies(), []

    async def parse(size):
        async with bodies.turn(size):
            began = time.monotonic()
            time.sleep(0.02)  # parsing lets nothing else run
            spans.append((began, time.monotonic()))

    async def together():
        await asyncio.gather(parse(1 << 20), parse(1 << 20), parse(1 << 20))

    asyncio.run(together())
    rests = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    assert len(rests) == 2
    assert min(rests) >= 0.059


def test_addresses_are_counted_by_what_one_customer_has():
    assert block_of("203.0.113.7") == "203.0.113.7"
    assert block_of("2001:db8:1:2:3:4:5:6") == block_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert block_of("2001:db8:1:3::9") != block_of("2001:db8:1:2::9")
    assert block_of("unknown") == "unknown"
    assert block_of("::ffff:203.0.113.7") == "203.0.113.7"  # or one of them could lock out all who come by IPv4


class Small(App):
    """``/open`` reads a body, ``/closed`` refuses everybody."""

    def __init__(self, forwarded=False, **limits):
        super().__init__({"/open": {"POST": "open"}, "/closed": {"POST": "closed"}})
        self.forwarded, self.limits, self.seen = forwarded, BodyLimits(**limits), []

    async def permit(self, request, route):
        self.seen.append(request.client.host)
        if route == "closed":
            raise Refusal(401, "who are you?")

    async def answer(self, request, route):
        return JSONResponse({"fields": len(await read_json(request, self.limits, 1 << 20))})


def talking(app, scenario, places=None):
    """Run ``scenario(port)`` next to a real server of an application."""

    async def run():
        server = server_of(app, 5.0, places or Connections(64))
        server.capture_signals = contextlib.nullcontext
        with listen("127.0.0.1", 0) as listening:
            task = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                return await asyncio.wait_for(scenario(listening.getsockname()[1]), 30)
            finally:
                server.should_exit = True
                await task

    return asyncio.run(run())


def head(path, length, *more):
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def answer(port, sent, until_closed=True):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    said = await (reader.read() if until_closed else reader.read(1 << 16))
    writer.close()
    return said


def test_a_long_body_of_a_stranger_is_not_read_and_its_connection_ends(monkeypatch):
    monkeypatch.setattr(web_app, "LINGER", 0.01)
    said = talking(Small(), lambda port: answer(port, head("/closed", 1 << 20) + b"x"))
    assert said.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in said.lower()


def test_a_connection_stays_open_unread_for_a_while_after_a_body_that_was_not_read(monkeypatch):
    """So nobody can send one refused body after the other as fast as they are refused."""
    monkeypatch.setattr(web_app, "LINGER", 0.2)

    async def scenario(port):
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head("/closed", 1 << 20))
        first = await reader.readuntil(b"}}")  # the whole answer is there at once
        answered = time.monotonic() - began
        await reader.read()
        writer.close()
        return first, answered, time.monotonic() - began

    first, answered, closed = talking(Small(), scenario)
    assert first.startswith(b"HTTP/1.1 401 ")
    assert closed - answered >= 0.15


def test_a_short_body_of_a_stranger_leaves_the_connection_open():
    async def scenario(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(head("/closed", 2) + b"{}")
            said = await reader.readuntil(b"}}")
        writer.close()
        return said

    assert talking(Small(), scenario).startswith(b"HTTP/1.1 401 ")


def test_half_sent_bodies_of_one_address_leave_room_for_others():
    app = Small(forwarded=True, bodies=Bodies(1 << 30, 3 << 20))

    async def scenario(port):
        writers = []
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head("/open", 1 << 20, "X-Forwarded-For: 203.0.113.7") + b"{")
            writers.append(writer)
        while len(app.seen) < 3:
            await asyncio.sleep(0.01)
        sent = [head("/open", 2, f"X-Forwarded-For: 198.51.100.1, {who}") + b"{}" for who in ("203.0.113.7", "203.0.113.8")]
        said = [await answer(port, one, until_closed=False) for one in sent]
        for writer in writers:
            writer.close()
        return said

    said = talking(app, scenario)
    assert [one[:12] for one in said] == [b"HTTP/1.1 429", b"HTTP/1.1 200"]
    assert app.seen == ["203.0.113.7"] * 4 + ["203.0.113.8"]


def test_without_a_proxy_nobody_says_themselves_where_they_are():
    app = Small()
    talking(app, lambda port: answer(port, head("/open", 2, "X-Forwarded-For: 203.0.113.7") + b"{}", until_closed=False))
    assert app.seen == ["127.0.0.1"]


def test_one_address_cannot_take_the_connections_of_others():
    async def scenario(port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        ends = [await asyncio.wait_for(reader.read(), 20) for reader, _ in opened[2:]]
        elsewhere = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
        elsewhere.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(elsewhere, head("/open", 2) + b"{}")
        said = await loop.sock_recv(elsewhere, 100)
        elsewhere.close()
        for _, writer in opened:
            writer.close()
        return ends, said

    ends, said = talking(Small(), scenario, Connections(64, 2))
    assert ends == [b"", b""]
    assert said.startswith(b"HTTP/1.1 200 ")
