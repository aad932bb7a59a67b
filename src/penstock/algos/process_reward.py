"""Process reward models: every step of a solution is judged, not only its end (Uesato et al. 2022, arXiv 2211.14275;
Lightman et al. 2023, arXiv 2305.20050; Wang et al. 2023, arXiv 2312.08935)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.algos.binary_reward import LabelledReward
from penstock.config.run import require
from penstock.config.spec import spec
from penstock.core.algorithm import Encoder
from penstock.core.errors import DataError
from penstock.core.types import BoolArray, IntArray, Row, Unit

SEPARATOR = "\n"


@spec
class ProcessReward(LabelledReward):
    """A score at the end of every step, whose sigmoid is the probability that the step is right.

    The score is read where the step has been read whole and the separator would be predicted.
    """

    data = "prompts"
    judged: ClassVar[Literal["label", "step"]] = "step"
    loss_reads: ClassVar[frozenset[str]] = frozenset({"step"})
    assessed_by: ClassVar[frozenset[str]] = frozenset({"step"})

    separator: str = SEPARATOR
    """Text after every step, the last one included. A reward that uses the model must be given the same."""

    def __post_init__(self) -> None:
        require(bool(self.separator), "separator is empty; name the text between steps, such as a line feed")

    def rows(self, example: Mapping[str, Any], tokenizer: Encoder) -> Unit:
        """One row from the rendered text ``prompt`` and the columns ``steps`` (texts) and ``labels``: for each step 1 if it
        is right, 0 if it is wrong, a probability between them, or null if it is not known (it is then read and not judged).

        Raises:
            DataError: steps or labels are missing, empty or of unlike number, or no step has a label.
        """
        steps, labels = example.get("steps"), example.get("labels")
        if not isinstance(steps, Sequence) or isinstance(steps, str) or not all(isinstance(s, str) and s for s in steps):
            raise DataError(f"an example needs the column steps, a list of texts that are not empty, got {steps!r:.80}")
        if not isinstance(labels, Sequence) or len(labels) != len(steps):
            raise DataError(f"an example needs the column labels, one for each of its {len(steps)} steps, got {labels!r:.80}")
        for label in labels:
            if label is not None and (not isinstance(label, bool | int | float | np.number) or not 0 <= label <= 1):
                raise DataError(f"the label of a step is true, false, a number from 0 to 1, or null, got {label!r}")
        known = [float(label) for label in labels if label is not None]
        if not known:
            raise DataError("no step of the example has a label; leave it out")
        tokens_T, end_S = step_tokens(tokenizer.prompt(str(example["prompt"])), steps, tokenizer, self.separator)
        action_T = marks(len(tokens_T), [end for end, label in zip(end_S, labels, strict=True) if label is not None])
        return (Row({"tokens_T": tokens_T}, action_T, {"label": np.array(known, np.float32)}),)


def step_tokens(
    prompt: Sequence[int], steps: Sequence[str], tokenizer: Encoder, separator: str = SEPARATOR
) -> tuple[IntArray, list[int]]:
    """Tokens of a prompt and its steps, each followed by the separator, and where the separators begin.

    Steps and separators are encoded apart, so that no token spans a border.
    """
    tokens, end_S, between = list(prompt), [], tokenizer.encode(separator)
    for step in steps:
        tokens += tokenizer.encode(step)
        end_S.append(len(tokens))
        tokens += between
    return np.array(tokens, np.int32), end_S


def marks(length: int, places: Sequence[int]) -> BoolArray:
    """True at ``places``."""
    marked_T = np.zeros(length, bool)
    marked_T[list(places)] = True
    return marked_T
