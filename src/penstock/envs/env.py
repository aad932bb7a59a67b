"""The contract of an environment: what it is given of the policy's turn, what it answers, and a base class with defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock.core.errors import EnvError
from penstock.core.messages import Message
from penstock.core.types import FinishReason, IntArray, Prompt, Sample, Sampling
from penstock.envs.shown import Part
from penstock.envs.spec import History
from penstock.sandbox.threads import is_asynchronous

if TYPE_CHECKING:
    from penstock.sandbox.threads import Threads


@dataclass(frozen=True)
class Context:
    """An observation that is the whole next request, in tokens: what it begins with need not be what was read before."""

    tokens_T: IntArray


Observation = str | Sequence[Message] | Sequence[Part] | IntArray | Context | None


@dataclass(frozen=True)
class Said:
    """One turn of the policy."""

    text: str
    """What it wrote, without special tokens."""
    raw: str
    """With them, but for the token that ended the turn: the marks around tool calls are special in some families."""
    tokens_T: IntArray
    finish: FinishReason
    """``length``: the turn was cut before it ended by itself."""
    turn: int
    """Counts from 0."""
    sample: Sample
    """The trajectory so far (since its last rendering)."""
    last: bool = False
    """Whether the limits allow no turn after it."""
    thinking: bool = False
    """Whether what it read ends within a thought, as templates of models that always think do."""


@dataclass(frozen=True)
class Turn:
    """What an environment answers.

    ``observation`` is a text (in chat a turn of the role :attr:`Env.role`), messages, or tokens; a text, of a message too, may
    be in parts, of which some are media (:mod:`penstock.envs.shown`). ``reward`` is of the policy's
    turn before. ``terminated``: the episode is over by its own rules; ``truncated``: it was cut and would have gone on, so a
    critic bootstraps. ``metrics`` are added up over the turns of an episode and averaged over a batch as ``episode/…``.
    """

    observation: Observation = None
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Env:
    """One episode's environment; derive from it and write ``step``. Methods may be plain (each call runs in a thread) or
    ``async`` (waiting holds none). ``close`` is always called, once, with a deadline of its own.

    Args:
        columns: the prompt's data row, a copy; options of the spec follow as keyword arguments.
    """

    role: str = "user"
    """Role of an observation that is a text, in chat."""
    calls: str = "hermes"
    """Format of the policy's tool calls; see :mod:`penstock.envs.calls`."""
    chat: bool = False
    """Whether the episode is a chat; set before ``reset``."""
    judges_last: ClassVar[bool] = True
    """Whether it is stepped once more after the last turn that the limits allow, for that turn's reward."""
    rewards: ClassVar[bool] = True
    """Whether it rewards: then an episode that ended without any reward has earned 0, and its sample is one to learn from."""
    repeatable: bool = True
    """Whether the episode may begin anew in a fresh environment if this one crashes. Set it to False where something has been
    changed that outlives the episode: a mail that was sent is not to be sent twice."""
    threads: Threads
    """Where plain functions run; set before ``reset``, as are the three that follow."""
    text: Any
    """The tokenizer."""
    prompt: Prompt
    history: History
    """What the spec says of templates that rewrite earlier turns."""
    show_tools: bool = True
    """What the spec says of tools' schemas."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns
        self.unheard: set[int] = set()
        """Turns of the policy that nobody took: they are not trained."""

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        """A spec's options as they are passed to each episode; what is looked up is looked up here, once. Raises SpecError."""
        return options

    @property
    def seed(self) -> int:
        """The row's column ``seed``: what is random in an environment follows from it, the same for all samples of a prompt."""
        if not isinstance(seed := self.columns.get("seed"), int | np.integer):
            raise EnvError(f'{type(self).__name__} begins with the row\'s column "seed", a whole number; give each row one')
        return int(seed)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Schemas of tools, for the chat template."""
        return ()

    def reset(self) -> Any:
        """The first observation, or None: the prompt as the stage's data renders it."""
        return None

    def step(self, said: Said) -> Any:
        """The :class:`Turn` after the policy's; one without an observation that is not the end is refused."""
        raise EnvError(f"{type(self).__name__} has no step; write: async def step(self, said)")

    def cut(self) -> Any:
        """A :class:`Turn` with what the last one earns where a limit has ended the episode after its step; None: no more."""
        return None

    def sampling(self, given: Sampling) -> Sampling:
        """How the next turn is generated, by default as the stage says."""
        return given

    def close(self) -> Any:
        """Give back what the episode holds."""
        return None


class TextFunction(Env):
    """A function ``(sample, columns, turn) -> text or None`` as an environment; it gives no rewards."""

    judges_last = rewards = False

    def __init__(self, function: Callable[..., Any], columns: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.function = function
        if is_asynchronous(function):
            self.step = self._step_later  # type: ignore[method-assign]

    def step(self, said: Said) -> Any:
        return _turn_of(self.function(said.sample, self.columns, said.turn))

    async def _step_later(self, said: Said) -> Any:
        return _turn_of(await self.function(said.sample, self.columns, said.turn))


def _turn_of(text: Any) -> Any:
    if text is None:
        return Turn(terminated=True)
    return Turn(text) if isinstance(text, str) else text


ENVIRONMENTS: dict[str, type[Env] | str] = {"tools": "penstock.envs.tools:ToolEnv", "agent": "penstock.envs.agents:AgentEnv"}
"""Environments by name; one that is named ``MODULE:CLASS`` is imported when it is needed."""


LIBRARIES = {
    "gymnasium": "penstock.envs.gymnasium_text:GymnasiumText",
    "textarena": "penstock.envs.textarena:TextArena",
    "openenv": "penstock.envs.openenv:OpenEnv",
    "reasoning_gym": "penstock.envs.reasoning_gym:ReasoningGym",
    "verifiers": "penstock.envs.verifiers:Verifiers",
}
"""Environments of other packages, named ``PACKAGE:NAME``."""


def register_env(name: str, env: type[Env]) -> None:
    """Let specs name an environment; the module that brings it registers it."""
    ENVIRONMENTS[name] = env
