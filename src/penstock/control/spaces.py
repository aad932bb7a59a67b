"""What environments show and take, as arrays: observations become rows of numbers, decisions become actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from penstock.core.errors import SpecError

OWN = "convert it in a function that makes the environment (environments.id=FILE.py:FUNCTION)"
Column = Callable[[Any], NDArray[Any]]
"""From observations of all environments to ``[N, F]``."""


class Observations:
    """Rows of numbers for observations of a space, ``[N, F]``.

    A vector, grid or number is shown as it is, a discrete value as one number an option, a dictionary or tuple as its parts
    in order; an image (bytes with three axes) stays bytes, channels first. Where it is one of several parts it comes before the
    others and is float32 as they are. With a mask of actions, its numbers come last: from the entry ``action_mask`` of a
    dictionary, or from the info of that name. Before it are those of all agents of a game, where that has so many ``agents``,
    whose rows follow on one another, and its state is to be shown with each.

    Raises:
        SpecError: a space that is not known, by name.
    """

    def __init__(self, name: str, space: Any, options: int, masked: bool, agents: int = 0) -> None:
        self.name, self.options, self.agents = name, options, agents
        self.image: tuple[int, ...] = ()
        self.inside = isinstance(space, spaces.Dict) and "action_mask" in space.spaces
        self.masked = masked or self.inside
        if self.masked and not options:
            raise SpecError(f"{name}: it masks actions that are not discrete; {OWN}")
        if self.inside:
            space = spaces.Dict({key: part for key, part in space.spaces.items() if key != "action_mask"})
        parts = sorted(leaves(space, name), key=lambda part: not is_image(part[1]))
        images = [(path, part) for path, part, _ in parts if is_image(part)]
        if len(images) > 1:
            raise SpecError(f"{name}: {images[1][0]} is a second image, and networks read one; {OWN}")
        if images and agents:
            raise SpecError(f"{name}: model.critic=central reads vectors, its agents see images; set model.critic=separate")
        if images:
            self.image = pixels(images[0][1])[0]
        columns = [(column(name, part, path), entry) for path, part, entry in parts]
        self.dtype: Any = np.uint8 if images and len(parts) == 1 else np.float32
        self.column = lambda seen: joined([found(entry(seen)).astype(self.dtype, copy=False) for found, entry in columns])

    def rows(self, observation: Any, mask_NW: Any = None) -> NDArray[Any]:
        """``[N, F]``, with the mask if there is one; all is allowed where ``mask_NW`` is None.

        Raises SpecError where a mask has not one number an option.
        """
        if not self.masked:
            return self._together(self.column(observation))
        if self.inside:
            mask_NW = observation["action_mask"]
        shown_NF = self.column(observation)
        mask_NW = np.ones((len(shown_NF), self.options)) if mask_NW is None else np.asarray(mask_NW)
        if mask_NW.shape != (len(shown_NF), self.options):
            raise SpecError(f"{self.name}: masks of {mask_NW.shape} for {self.options} options in all; {OWN}")
        return np.concatenate((self._together(shown_NF), mask_NW.astype(self.dtype)), 1)

    def _together(self, shown_NF: NDArray[Any]) -> NDArray[Any]:
        """Each row with those of all agents of its game after it, where they are to be shown."""
        if not self.agents:
            return shown_NF
        game_GC = shown_NF.reshape(len(shown_NF) // self.agents, -1)
        return np.concatenate((shown_NF, game_GC.repeat(self.agents, 0)), 1)


def is_image(space: Any) -> bool:
    """Whether a space holds pictures as bytes."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def pixels(space: Any) -> tuple[tuple[int, ...], Column]:
    """Channels, height and width of an image, and its bytes in that order. A short last axis is that of the channels."""
    if space.shape[-1] <= 4 < space.shape[0]:
        height, width, channels = space.shape
        return (channels, height, width), lambda seen: np.ascontiguousarray(np.moveaxis(seen, -1, 1)).reshape(len(seen), -1)
    return tuple(space.shape), lambda seen: np.asarray(seen).reshape(len(seen), -1)


def leaves(space: Any, path: str) -> list[tuple[str, Any, Callable[[Any], Any]]]:
    """Spaces within dictionaries and tuples, each with its path and how it is found in an observation."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [(path, space, lambda seen: seen)]
    entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    inner = [(key, leaf) for key, part in entries for leaf in leaves(part, f"{path}.{key}")]
    return [(where, part, partial(_entry, key=key, inside=inside)) for key, (where, part, inside) in inner]


def _entry(seen: Any, key: Any, inside: Callable[[Any], Any]) -> Any:
    return inside(seen[key])


def joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns side by side."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns, 1)


def column(name: str, space: Any, path: str) -> Column:
    """How observations of a space without parts become rows of numbers.

    Raises SpecError for one that is not known.
    """
    if is_image(space):
        return pixels(space)[1]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return lambda seen: np.asarray(seen, np.float32).reshape(len(seen), -1)
    if isinstance(space, spaces.Discrete):
        eye, first = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return lambda seen: eye[np.asarray(seen) - first]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        eyes, starts = [np.eye(int(count), dtype=np.float32) for count in space.nvec], space.start
        return lambda seen: np.concatenate([eye[seen[:, at] - starts[at]] for at, eye in enumerate(eyes)], 1)
    raise SpecError(f"{name}: observations of {space} ({path}) are not known to control; {OWN}")


def stacked(observations: Sequence[Any]) -> Any:
    """Observations of single environments as those of several: arrays within the same dictionaries and tuples."""
    first = observations[0]
    if isinstance(first, dict):
        return {key: stacked([seen[key] for seen in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([seen[at] for seen in observations]) for at in range(len(first)))
    return np.stack(observations)


class Decisions:
    """``choices``: options of each discrete part of a decision; ``continuous``: its numbers, which follow on these and are
    given between -1 and 1 where they are ``squashed``. A dictionary or tuple of actions is decided on as a whole: first the
    discrete parts of all its entries, then the numbers of all.

    Raises:
        SpecError: actions that are not known; squashed ones that are not continuous and bounded.
    """

    def __init__(self, name: str, space: Any, squashed: bool = False) -> None:
        self.space, self.continuous, self.squashed = space, 0, squashed
        self.choices: tuple[int, ...] = ()
        self.parts: dict[Any, Decisions] = {}
        """Of a dictionary or tuple, by key or place."""
        if isinstance(space, spaces.Discrete):
            self.choices = (int(space.n),)
        elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            self.choices = tuple(int(count) for count in space.nvec)
        elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            self.continuous = int(np.prod(space.shape))
        elif isinstance(space, spaces.Dict | spaces.Tuple):
            inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            self.parts = {key: Decisions(name, part) for key, part in inner}
            self.choices = tuple(options for part in self.parts.values() for options in part.choices)
            self.continuous = sum(part.continuous for part in self.parts.values())
        else:
            raise SpecError(
                f"{name}: actions of {space} are not known to control; it has Discrete, MultiDiscrete, Box of floats, and Dict "
                "and Tuple of these"
            )
        bounded = isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all()
        if squashed and not bounded:
            raise SpecError(f"{name}: actions of {space}; SAC decides in continuous and bounded ones")

    @property
    def size(self) -> int:
        """Numbers of a decision (D)."""
        return len(self.choices) + self.continuous

    @property
    def dtype(self) -> Any:
        """Of an array of decisions: whole numbers, but where some are continuous."""
        return np.float32 if self.continuous else np.int64

    def actions(self, decision_ND: NDArray[Any]) -> Any:
        """What the environments take; continuous decisions are cut to their bounds."""
        if self.parts:
            return self._entries(decision_ND)
        space = self.space
        if isinstance(space, spaces.Discrete):
            return decision_ND[:, 0] + space.start if space.start else decision_ND[:, 0]
        if isinstance(space, spaces.MultiDiscrete):
            return decision_ND + space.start
        if self.squashed:
            decision_ND = space.low.ravel() + (decision_ND + 1) / 2 * (space.high - space.low).ravel()
        cut_NX: NDArray[Any] = np.clip(decision_ND.reshape(-1, *space.shape), space.low, space.high)
        return cut_NX.astype(space.dtype)

    def _entries(self, decision_ND: NDArray[Any]) -> Any:
        """The actions of a dictionary or tuple."""
        first, second, found = 0, len(self.choices), {}
        for key, part in self.parts.items():
            discrete = decision_ND[:, first : (first := first + len(part.choices))]
            numbers = decision_ND[:, second : (second := second + part.continuous)]
            found[key] = part.actions(np.concatenate((discrete, numbers), 1).astype(part.dtype))
        return tuple(found.values()) if isinstance(self.space, spaces.Tuple) else found

    def rows(self, action: Any) -> list[Any]:
        """One action for each environment, of those of several."""
        if not self.parts:
            return list(action)
        inner = {key: part.rows(action[key]) for key, part in self.parts.items()}
        each = [dict(zip(inner, values, strict=True)) for values in zip(*inner.values(), strict=True)]
        return [tuple(one.values()) for one in each] if isinstance(self.space, spaces.Tuple) else each
