"""What a worker of a foreign engine receives of an update, while it still runs with the old weights.

An image comes by the generator's process through shared memory, at once (:mod:`penstock.weights.handover`), or by the channel's
process group, in which the worker is a member under a name of its own: then a thread takes part in the round while the worker
goes on, and :meth:`Inbox.told` says how far it is. Nothing is raised where an image is refused, because an engine of several
workers cannot make sense of one that fails alone: the generator's process asks all of them and decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from penstock.core.errors import WeightError
from penstock.models.updates import finite
from penstock.weights import process_group
from penstock.weights.handover import ARRIVED, REFUSED, SUPERSEDED, UNDER_WAY, take
from penstock.weights.image import Superseded
from penstock.weights.process_group import ProcessGroupSubscriber

Tensors = list[tuple[str, Tensor]]
Prepare = Callable[[Tensors], Any]


@dataclass(frozen=True)
class Received:
    """An update that has arrived whole: its tensors, the checksums of its buckets, and what was prepared of it."""

    tensors: Tensors
    sums: Sequence[str]
    prepared: Any


@dataclass
class _Arrival:
    """One update on its way. A thread that outlives its update writes into its own and harms nobody."""

    state: str = REFUSED
    reason: str = "nothing was sent"
    received: Received | None = None


class Inbox:
    """A worker's side of an update: receive, say how far it is, give it or drop it."""

    def __init__(self) -> None:
        self._member: ProcessGroupSubscriber | None = None
        self._thread: threading.Thread | None = None
        self._arrival = _Arrival()

    def join(self, folder: Path, name: str) -> None:
        """From now on take part in rounds of the process group whose publisher owns ``folder``, as ``name``."""
        self._member = ProcessGroupSubscriber(folder, name)

    def receive(self, manifest: Mapping[str, Any], prepare: Prepare = lambda tensors: None) -> None:
        """Begin to receive what a manifest announces; ``prepare`` is called with the tensors once they are verified.

        Returns at once for a process group, whose deadlines are the channel's; otherwise when the image is here or refused.
        """
        arrival = self._arrival = _Arrival(UNDER_WAY, "")
        if manifest.get("kind") != process_group.KIND:
            _fill(arrival, lambda: _prepared(*take(manifest), prepare))
        elif self._member is None:
            arrival.state, arrival.reason = REFUSED, "this worker has not joined the channel's process group"
        elif self._thread is not None and self._thread.is_alive():
            arrival.state, arrival.reason = REFUSED, "an earlier update is still on its way"
        else:
            member = self._member
            work = (arrival, lambda: _prepared(*_received(member, manifest), prepare))
            self._thread = threading.Thread(target=_fill, args=work, name="weights", daemon=True)
            self._thread.start()

    def told(self) -> tuple[str, str]:
        """How far the update is, and why it is no further: a state of :mod:`penstock.weights.handover` and a reason."""
        return self._arrival.state, self._arrival.reason

    def take(self) -> Received:
        """What has arrived; the inbox is empty afterwards.

        Raises:
            WeightError: nothing has.
        """
        arrival, self._arrival = self._arrival, _Arrival()
        if arrival.received is None:
            raise WeightError(f"there are no weights to take: {arrival.reason or arrival.state}")
        return arrival.received

    def drop(self) -> None:
        """Forget the update."""
        self._arrival = _Arrival()


def _fill(arrival: _Arrival, receive: Callable[[], Received]) -> None:
    """Receive an update and note how that ended. Whatever goes wrong is a refusal: no byte of the model has changed."""
    try:
        arrival.received = receive()
        arrival.state = ARRIVED
    except Superseded as error:
        arrival.reason, arrival.state = str(error), SUPERSEDED
    except WeightError as error:
        arrival.reason, arrival.state = str(error), REFUSED
    except Exception as error:
        arrival.reason, arrival.state = f"{type(error).__name__}: {error}", REFUSED


def _received(member: ProcessGroupSubscriber, manifest: Mapping[str, Any]) -> tuple[Tensors, Sequence[str]]:
    """The verified tensors of a round, and the checksums of its buckets. Raises what ``open`` raises, and WeightError where a
    value is not finite, which the generator's process has had no chance to see."""
    update = member.open(manifest)
    tensors = list(update.tensors)
    for name, tensor in tensors:
        if not finite(tensor):
            raise WeightError(f'weight update {update.version} refused: "{name}" holds a value that is not finite')
    return tensors, [str(bucket["checksum"]) for bucket in manifest["buckets"]]


def _prepared(tensors: Tensors, sums: Sequence[str], prepare: Prepare) -> Received:
    return Received(tensors, sums, prepare(tensors))
