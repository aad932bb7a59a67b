"""The socket that a server of ours listens on."""

from __future__ import annotations

import asyncio
import socket

from penstock.web.server import listen


def test_connections_send_what_they_have_at_once():
    """Else head and body of an answer, two small pieces, wait for each other's acknowledgement: 40 ms on Linux."""

    async def nodelay() -> int:
        found = asyncio.get_running_loop().create_future()

        def connected(_, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listening:
            server = await asyncio.start_server(connected, sock=listening)
            async with server:
                _, writer = await asyncio.open_connection(*listening.getsockname())
                answer = await asyncio.wait_for(found, 30)
                writer.close()
        return answer

    assert asyncio.run(nodelay()) != 0
