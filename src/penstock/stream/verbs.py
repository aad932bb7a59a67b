"""Interfaces that one process carries out and others call: the caller's side and the server's are derived from the class.

A verb is a coroutine method marked by :func:`verb`. The class is the implementation; :func:`remote` makes an object of it whose
verbs travel, and :func:`handlers` what a server does with them. So a verb is written once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from penstock.net.rpc import Many

Method = TypeVar("Method", bound=Callable[..., Any])
Interface = TypeVar("Interface")


class Caller(Protocol):
    """What a client of :mod:`penstock.net.rpc` does."""

    async def call(self, verb: str, /, *, deadline: float, **values: Any) -> Any: ...


ANSWER = 60.0
"""Seconds in which a verb answers that waits for nobody."""
WAITING = 10 * 365 * 86400.0
"""Seconds for a verb that waits for others: the server knows when that is in vain, and the connection ends with the server."""


def verb(*, waits: bool = False, many: bool = False) -> Callable[[Method], Method]:
    """Mark a method as a verb.

    ``waits``: for others, as long as its server thinks right; otherwise it answers at once. What it gives is a
    list of ``many`` groups, each of which travels by itself, so that no frame has to hold them all.
    """

    def mark(method: Method) -> Method:
        method.__dict__["waits"], method.__dict__["many"] = waits, many
        return method

    return mark


def verbs(interface: type) -> Iterator[tuple[str, Callable[..., Awaitable[Any]]]]:
    """The verbs of an interface, by name."""
    for name, method in inspect.getmembers(interface, inspect.isfunction):
        if "waits" in method.__dict__:
            yield name, method


def remote(interface: type[Interface], caller: Caller) -> Interface:
    """An object whose verbs are carried out elsewhere."""
    made = object.__new__(interface)
    for name, method in verbs(interface):
        seconds = WAITING if method.__dict__["waits"] else ANSWER
        setattr(made, name, functools.partial(carried, caller.call, name, inspect.signature(method), seconds))
    return made


async def carried(
    send: Callable[..., Awaitable[Any]], name: str, signature: inspect.Signature, seconds: float, *values: Any, **named: Any
) -> Any:
    """Send a verb with its values by name; gives what comes back."""
    bound = signature.bind(None, *values, **named).arguments
    bound.pop("self")
    found = await send(name, deadline=seconds, **bound)
    return list(found.items) if isinstance(found, Many) else found


def handlers(interface: type[Interface], of: Callable[[Any], Interface]) -> dict[str, Callable[..., Awaitable[Any]]]:
    """What a server does with the verbs of an interface: ``of(peer)`` is who carries them out for a peer, or refuses it."""

    def handler(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def handle(peer: Any, **values: Any) -> Any:
            found = await method(of(peer), **values)
            return Many(None, found) if method.__dict__["many"] else found

        return handle

    return {name: handler(method) for name, method in verbs(interface)}
