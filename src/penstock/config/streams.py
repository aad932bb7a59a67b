"""Where the groups of a run lie between generators and learner: the registered specs that ``roles.stream`` takes."""

from __future__ import annotations

from penstock.config.spec import require, spec


@spec
class InHub:
    """In the hub, which every group passes through (``docs/runtime.md``)."""


@spec
class TransferQueue:
    """In the storage units of TransferQueue, actors of a Ray cluster; the hub keeps the gate (``docs/ray.md``)."""

    units: int = 2
    """Storage units that groups are spread over, each an actor on a node of its own as far as there are nodes."""
    open_ports: bool = False
    """Whether its sockets may listen beyond this machine. They ask for no token and unpickle what comes, so whoever reaches
    them can run code: only in a network that is yours alone."""

    def __post_init__(self) -> None:
        require(self.units >= 1, f"stream.units={self.units}; at least 1")


STREAMS = (InHub, TransferQueue)
"""What ``roles.stream`` may be."""
