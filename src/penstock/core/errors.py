"""Errors that name the boundary that was crossed.

Everything a user can cause derives from :class:`PenstockError`; the command line prints its message as one line and exits
with code 2. A message says what is wrong, where, and how to mend it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Reworded = TypeVar("Reworded", bound=Exception)


class PenstockError(Exception):
    """Base of all errors with a cause outside Penstock's own code."""


class SpecError(PenstockError):
    """A spec has an unknown key, a value of the wrong type, or an impossible combination."""


class DataError(PenstockError):
    """A data source is missing, empty or malformed; names the file and the line."""


class ModelError(PenstockError):
    """A model or tokenizer cannot be loaded, saved or used."""


class DeviceError(PenstockError):
    """A device was asked for that this machine does not have."""


class GenerationError(PenstockError):
    """A generator refused a request (for example a prompt longer than the context)."""


class ContextFull(GenerationError):
    """The tokens of a request leave no room for an answer in the model's context."""


class WeightError(PenstockError):
    """A weight update was refused; the old weights are still in place."""


class Superseded(WeightError):
    """The weights that a manifest announces have given place to newer ones; ask for the newest manifest."""


class RewardError(PenstockError):
    """A reward raised, hung, or returned something that is not a score."""


class EnvError(PenstockError):
    """An environment raised, hung, or answered something that is not a turn."""


class StreamError(PenstockError):
    """The stream's rules were broken: a stale group, an unknown lease, a deadline that passed."""


class WireError(PenstockError):
    """A value may not travel between processes, or what arrived is not a message; names the peer that sent it."""


class ConnectionLost(PenstockError):
    """The connection to another process ended, or there is none; names the process."""


class DeadlinePassed(PenstockError):
    """Another process did not answer in time; names what was asked and whom."""


class RoleError(PenstockError):
    """A process of the run cannot be kept alive; names it and its last words."""


class RanksLost(RoleError):
    """Ranks of a learner are gone: it cannot go on, but one that starts again can."""


class RemoteError(PenstockError):
    """Another process failed with an error that is not one of these; carries its type and message."""


class CheckpointError(PenstockError):
    """A checkpoint cannot be written, verified or resumed from."""


class ReplayError(PenstockError):
    """A recorded schedule is incomplete, or this program does not come to what it says."""


class TrainingError(PenstockError):
    """Training would be wrong from here on: a non-finite loss or gradient, a step that trained nothing."""


class SkippedStepError(TrainingError):
    """An optimizer step was not taken; weights and moments are what they were, and training can go on without it."""


class NonFiniteError(SkippedStepError):
    """A loss or a gradient is NaN or infinite."""


class LargeGradientError(SkippedStepError):
    """The norm of a gradient is above the limit that was set for the step; ``norm``: NaN where it is not known."""

    def __init__(self, message: str, norm: float = math.nan) -> None:
        super().__init__(message)
        self.norm = norm


class NonFiniteStepError(TrainingError):
    """A gradient was NaN or infinite and the step was taken: the weights cannot be used any more."""


def reworded(error: Reworded, text: str) -> Reworded:
    """The same error, with all that it knows, and another message."""
    made = type(error).__new__(type(error), text)
    made.__dict__.update(error.__dict__)
    return made


def first_line(error: BaseException) -> str:
    """The first line of an error's message, after the name of its kind: what foreign packages say may be long, or nothing."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0].removesuffix(": ")


@contextmanager
def blame(error: type[PenstockError], where: str) -> Iterator[None]:
    """Re-raise anything unexpected inside the block as ``error``, naming ``where`` it happened."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as cause:
        raise error(f"{where}: {type(cause).__name__}: {cause}") from cause
