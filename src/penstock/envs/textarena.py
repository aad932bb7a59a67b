"""Games of TextArena: ``textarena:NAME``, alone or against an opponent."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.errors import SpecError, blame
from penstock.data.resolve import resolve
from penstock.envs.env import Env, Said, Turn

_DRAWING = threading.Lock()


class TextArena(Env):
    """One game. The policy is given what is new to it since its last move, and not its own moves; the package's own wrappers,
    which repeat the whole game in every observation, are left out (its ``-raw`` games).

    The games draw from Python's one global stream of random numbers. So that a game follows from its row's seed, whatever runs
    next to it, each has a state of its own, which is put in for the time of a move, one game at a time.

    Args:
        opponent: who plays the other seats: a function of what is new to that player as a text, or a class, of which each
            episode makes one with the row's seed. In specs ``MODULE:NAME`` or ``FILE.py:NAME``. None: a game of one player.
        players: how many play, with an opponent.
        player: the policy's seat.
        options: keyword arguments of the game.
    """

    def __init__(
        self, columns: Mapping[str, Any], *, name: str, opponent: Callable[..., Any] | None = None, players: int = 2,
        player: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(columns)
        self.name, self.opponent, self.player, self.options = name, opponent, player, options
        self.players = players if opponent is not None else 1
        self.game: Any = None

    @classmethod
    def prepared(cls, options: Mapping[str, Any], base: Path | None) -> Mapping[str, Any]:
        given = dict(options)
        if given.get("opponent") is not None:
            given["opponent"] = resolve(given["opponent"], base)
        with blame(SpecError, f"textarena:{options['name']}"):
            trial = cls({"seed": 0}, **given)
            if not 0 <= trial.player < trial.players:
                raise SpecError(f"textarena:{trial.name} has seats 0 to {trial.players - 1}; there is no player={trial.player}")
            trial.begin()
        return given

    def begin(self) -> None:
        """Set the game up. Whatever the game raises passes: another number of players, words that it would download."""
        textarena = _package()
        self._random = random.Random(self.seed).getstate()
        with self._drawing():
            self.game = textarena.make(f"{self.name}-raw", **self.options)
            self.game.reset(num_players=self.players, seed=self.seed)
        plays: Any = self.opponent
        self.others = [plays(self.seed) if isinstance(plays, type) else plays for _ in range(self.players)]

    def reset(self) -> str:
        self.begin()
        self._others_move(False)
        return self._heard(self.player)

    def step(self, said: Said) -> Turn:
        if not self._others_move(self._move(said.text)):
            return Turn(self._heard(self.player))
        rewards, facts = self.game.close()
        wrong = float(facts[self.player].get("invalid_move", False))
        return Turn(reward=float(rewards[self.player]), terminated=True, metrics={"invalid_moves": wrong})

    def _others_move(self, over: bool) -> bool:
        """Let the others move until the game is over or it is the policy's move; gives whether it is over."""
        while not over and (at := int(self.game.state.current_player_id)) != self.player:
            over = self._move(str(self.others[at](self._heard(at))))
        return over

    def _move(self, text: str) -> bool:
        with self._drawing():
            return bool(self.game.step(text)[0])

    def _heard(self, player: int) -> str:
        """What is new to the player whose move it is."""
        roles = self.game.state.role_mapping
        _, found = self.game.get_observation()
        parts = [(who, f"[{roles.get(who, who)}] {text}" if who >= 0 else text) for who, text, _ in found]
        return "\n".join(text.strip() for who, text in parts if who != player) + "\n"

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        with _DRAWING:
            before = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(before)


def _package() -> Any:
    try:
        import textarena
    except ImportError as error:
        raise SpecError("TextArena's games need the textarena package; run: pip install 'penstock[textarena]'") from error
    return textarena
