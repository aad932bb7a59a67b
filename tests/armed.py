"""What tests do inside a process that they start: end, signal or change it at a certain call.

Code that runs in such a process before its command begins with ``from armed import *``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any

__all__ = ["arm", "asyncio", "json", "os", "record_trained", "signal", "wrap"]


def wrap(place: str, around: Callable[..., Any]) -> None:
    """Have calls of the function at MODULE:NAME go through ``around(function, *arguments)``."""
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    function = getattr(owner, last)
    setattr(owner, last, lambda *arguments, **more: around(function, *arguments, **more))


def arm(place: str, count: int, action: Any = signal.SIGKILL) -> None:
    """When the function at MODULE:NAME, or the hub's verb NAME at verb:NAME, is about to be called for the count-th time: send
    this process a signal, or call."""
    calls, (module, _, name) = [0], place.partition(":")

    def armed(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        calls[0] += module != "verb" or arguments[1] == name
        if calls[0] == count:
            calls[0] += 1
            action() if callable(action) else os.kill(os.getpid(), action)
        return function(*arguments, **more)

    wrap("penstock.stream.verbs:carried" if module == "verb" else place, armed)


def record_trained() -> None:
    """Have the learner write down which ordinals it trained to which version, each time that it does."""

    def recording(function: Callable[..., Any], client: Any, lease: Any) -> Any:
        with open("trained.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps([lease.version, list(lease.ordinals)]) + "\n")
        return function(client, lease)

    wrap("penstock.stream.stream:LearnerClient.trained", recording)
