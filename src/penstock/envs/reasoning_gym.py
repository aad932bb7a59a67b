"""Tasks of a reasoning-gym set as episodes: ``reasoning_gym:SET``. The package's home is :mod:`penstock.data.gym`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.errors import DataError, SpecError
from penstock.data.gym import gym_entry, gym_score
from penstock.envs.env import Env, Said, Turn


class ReasoningGym(Env):
    """A question, up to ``tries`` answers, and the score of the last one, by the set's own scorer.

    Rows of a ``gym:SET`` source are asked as that source renders them; for others a task is made of the row's seed.

    Args:
        tries: answers; it ends with the first that scores 1.
        wrong: what is said to one that does not, where another may follow.
        options: of the set.
    """

    def __init__(
        self, columns: Mapping[str, Any], *, name: str, tries: int = 1, wrong: str = "That is wrong. Try again.\n",
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(columns)
        self.name, self.tries, self.wrong, self.options = name, tries, wrong, options

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        trial = cls({"seed": 0}, **options)
        try:
            trial.reset()
        except DataError as error:
            raise SpecError(str(error)) from error
        return options

    def reset(self) -> str | None:
        if self.columns.get("task") == self.name and "entry" in self.columns:
            self.entry = self.columns["entry"]
            return None
        self.entry = gym_entry(self.name, self.seed, self.options)
        return str(self.entry["question"])

    def step(self, said: Said) -> Turn:
        score = gym_score(self.name, said.text.strip(), self.entry)
        self.score = score
        if score < 1 and said.turn + 1 < self.tries and not said.last:
            return Turn(self.wrong)
        return Turn(reward=score, terminated=True, metrics={"right": float(score >= 1)})

    def cut(self) -> Turn:
        return Turn(reward=self.score, truncated=True, metrics={"right": float(self.score >= 1)})
