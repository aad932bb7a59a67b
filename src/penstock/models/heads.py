"""Modules that algorithms bring onto a model's trunk, and what follows them slowly; a file that has one registers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from penstock.core.errors import SpecError

OWN = frozenset({"value", "score"})
"""Heads that a model has of its own: the critic and that of a reward model."""


class Head(nn.Module):
    """A module that reads the hidden states of a trunk. It is trained with the model, saved and restored with it.

    A subclass is made as ``make(width, vocabulary, **settings)`` and read by outputs (``models/outputs.py``).
    Parameters without gradient and buffers are its slow variables: :meth:`follow` moves them, and checkpoints hold them.
    """

    settings: Mapping[str, Any]
    """What it was made from, apart from the width and the vocabulary."""
    used: bool = False
    """Whether the algorithm that trains asked for it; a head that is only there is left as it was loaded."""

    def follow(self, updates: int) -> None:
        """Called after each optimizer step with their number so far."""

    def slow(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the slow variables."""
        yield from ((name, tensor.detach()) for name, tensor in self.named_parameters() if not tensor.requires_grad)
        yield from self.named_buffers()


_heads: dict[str, Callable[..., Head]] = {}


def register_head(name: str, make: Callable[..., Head]) -> None:
    """Let algorithms have a head of this name. Raises SpecError where another one has the name, or the model itself."""
    if name in OWN or _heads.setdefault(name, make) is not make:
        raise SpecError(f'two heads are named "{name}"; rename one')


def is_registered(name: str) -> bool:
    return name in _heads


def made_head(name: str, width: int, vocabulary: int, settings: Mapping[str, Any]) -> Head:
    """A new head. Raises SpecError where nobody has registered the name."""
    if name not in _heads:
        raise SpecError(f'nobody has registered a head "{name}"; known are {", ".join(sorted(OWN | _heads.keys()))}')
    head = _heads[name](width, vocabulary, **settings)
    head.settings = dict(settings)
    return head
