"""How vLLM draws for us: a logits processor that takes the draw over, so that all engines draw and count alike.

For every row of ours it draws a token as the embedded engine does, from a random stream that depends on seed, sample and
position alone, and takes its log-prob at the request's temperature, before top-k, top-p and min-p cut. Then it leaves the
log-prob at the token sampled and minus infinity elsewhere: vLLM's greedy choice is that token, and the "processed logit" that
vLLM returns of it is its log-prob in float32. A row of ``forced`` tokens is not sampled but scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from penstock.core.types import Sampling
from penstock.models.draws import NEVER, TokenFilters, draw, needs_filters, uniform_stream

ASKED = "penstock"
"""Key of a request's ``extra_args`` under which our own are; rows without it are vLLM's to draw."""


def asked(sampling: Sampling, key: str, start: int, forced: Sequence[int] = (), never: Sequence[int] = ()) -> dict[str, Any]:
    """The ``extra_args`` of a request whose first token is the ``start``-th of its sample; ``forced`` tokens are scored, those
    in ``never`` are in no distribution."""
    values = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed", "max_new_tokens")}
    return {ASKED: {"sampling": values, "key": key, "start": start, "forced": list(forced), "never": list(never)}}


@dataclass(frozen=True)
class Row:
    """One request in vLLM's batch."""

    sampling: Sampling
    stream: NDArray[Any]
    start: int
    forced: Sequence[int]
    never: Sequence[int]
    generated: Sequence[int]
    """vLLM's own list of the request's tokens, which grows."""

    @staticmethod
    def of(params: SamplingParams, prompt: Any, generated: Sequence[int]) -> Row | None:
        ours = (params.extra_args or {}).get(ASKED)
        if ours is None:
            return None
        sampling = Sampling(**ours["sampling"])
        stream = uniform_stream(sampling.seed, ours["key"], sampling.max_new_tokens)
        return Row(sampling, stream, ours["start"], ours["forced"], ours["never"], generated)

    @property
    def uniform(self) -> float:
        """The random number of the token that is next."""
        return float(self.stream[min(self.start + len(self.generated), len(self.stream) - 1)])

    @property
    def forced_token(self) -> int:
        """The token to score next, or -1."""
        return self.forced[min(len(self.generated), len(self.forced) - 1)] if self.forced else -1


class Draws(LogitsProcessor):
    """Draws for all rows that ask for it."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.device = device
        self.rows: dict[int, Row] = {}
        self._settle()

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow vLLM's batch: rows come, go and move."""
        if process_dict_updates(self.rows, batch_update, Row.of):
            self._settle()

    def _settle(self) -> None:
        """What stays the same until the batch changes."""
        self.order = sorted(self.rows)
        samplings = [self.rows[row].sampling for row in self.order]
        self.index_B = torch.tensor(self.order, dtype=torch.long, device=self.device)
        self.temperature_B = torch.tensor([s.temperature for s in samplings], dtype=torch.float32, device=self.device)
        self.cuts = TokenFilters(samplings, self.device) if any(map(needs_filters, samplings)) else None
        never = [(at, token) for at, row in enumerate(self.order) for token in self.rows[row].never]
        self.never = torch.tensor(never, dtype=torch.long, device=self.device).T if never else None
        self.scores = any(self.rows[row].forced for row in self.order)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits ``[batch, V]`` with one finite value in each row of ours: the log-prob of the token sampled."""
        if not self.order:
            return logits
        rows = [self.rows[row] for row in self.order]
        mine_BV = logits[self.index_B]
        if self.never is not None:
            mine_BV[self.never[0], self.never[1]] = NEVER
        uniform_B = torch.tensor([row.uniform for row in rows], dtype=torch.float64, device=self.device)
        token_B, logp_B = draw(mine_BV, uniform_B, self.temperature_B, self.cuts)
        if self.scores:
            forced_B = torch.tensor([row.forced_token for row in rows], device=self.device)
            scaled_BV = mine_BV / torch.where(self.temperature_B == 0, 1.0, self.temperature_B)[:, None]
            forced_logp_B = scaled_BV.log_softmax(-1).gather(-1, forced_B.clamp(min=0)[:, None]).squeeze(-1)
            token_B = torch.where(forced_B >= 0, forced_B, token_B)
            logp_B = torch.where(forced_B >= 0, forced_logp_B, logp_B)
        logits[self.index_B] = -torch.inf
        logits[self.index_B, token_B] = logp_B.to(logits.dtype)
        return logits
