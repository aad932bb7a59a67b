"""Environments of gymnasium whose observations and actions are texts: ``gymnasium:ID``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.errors import SpecError, blame
from penstock.envs.env import Env, Said, Turn


class GymnasiumText(Env):
    """One episode of an environment that ``gymnasium.make`` knows by ``name`` (``MODULE:ID`` imports a module that brings it).

    Its five-tuple is the contract here, too. What the policy wrote is its action as it is; a text outside the action space ends
    the episode with ``-penalty`` and is counted (``outside_actions``), because an environment need not say what it does then.

    Args:
        penalty: what is taken off for it.
        options: keyword arguments of ``gymnasium.make``.
    """

    def __init__(self, columns: Mapping[str, Any], *, name: str, penalty: float = 0.0, **options: Any) -> None:
        super().__init__(columns)
        self.name, self.penalty, self.options = name, penalty, options
        self.made: Any = None

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        given = {name: value for name, value in options.items() if name not in ("name", "penalty")}
        with blame(SpecError, f"gymnasium:{options['name']}"):
            made = _make(options["name"], given)
            spaces = made.observation_space, made.action_space
            made.close()
        if not all(type(space).__name__ == "Text" for space in spaces):
            raise SpecError(
                f"gymnasium:{options['name']} shows {spaces[0]} and takes {spaces[1]}; both must be spaces.Text. "
                "A Control stage trains on others; or write an Env that puts them into words"
            )
        return options

    def reset(self) -> str:
        self.made = _make(self.name, self.options)
        return str(self.made.reset(seed=self.seed)[0])

    def step(self, said: Said) -> Turn:
        if not self.made.action_space.contains(said.text):
            return Turn(reward=-self.penalty if self.penalty else None, terminated=True, metrics={"outside_actions": 1})
        observation, reward, terminated, truncated, _ = self.made.step(said.text)
        return Turn(str(observation), float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        if self.made is not None:
            self.made.close()


def _make(name: str, options: Mapping[str, Any]) -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise SpecError("gymnasium environments need the gymnasium package; run: pip install 'penstock[control]'") from error
    return gymnasium.make(name, **options)
