"""One decode step of the dense rows: forward, draw, advance. It is recorded for architectures that allow it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.core.types import Sampling
from penstock.engine.cache import STEP, CachePool, Cells, DecodePlan, PoolView, round_up
from penstock.engine.graphs import LEAST_WINDOW, Graphs, power_of_two
from penstock.models.attention import quiet_transformers
from penstock.models.draws import TokenFilters, draw, needs_filters
from penstock.models.language_model import LanguageModel


class DecodeState:
    """Per-row tensors that a decode step reads and advances; they never move, so a captured graph may point at them."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.prefix_length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.own_length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.shift = torch.zeros(rows, dtype=torch.int64, device=device)
        self.generated = torch.zeros(rows, dtype=torch.int64, device=device)
        self.temperature = torch.ones(rows, device=device)
        self.beta = torch.zeros(rows, device=device)
        self.uniform = torch.zeros(rows, 1, dtype=torch.float64, device=device)
        self.logp = torch.zeros(rows, device=device)
        self.samplings: list[Sampling] = [Sampling()] * rows

    def ensure(self, draws: int) -> bool:
        """Make room for streams of ``draws`` numbers; gives True if the tensor moved."""
        if draws <= self.uniform.shape[1]:
            return False
        grown = torch.zeros(self.rows, round_up(draws, STEP), dtype=torch.float64, device=self.device)
        grown[:, : self.uniform.shape[1]] = self.uniform
        self.uniform = grown
        return True

    def start(
        self, rows: list[int], samplings: list[Sampling], streams: list[NDArray[np.float64]], generated: list[int]
    ) -> None:
        """Set rows up for sequences that are about to draw."""
        self.temperature[rows] = torch.tensor([float(s.temperature) for s in samplings], device=self.device)
        self.beta[rows] = torch.tensor([float(s.beta) for s in samplings], device=self.device)
        self.generated[rows] = torch.tensor(generated, device=self.device)
        self.own_length[rows] = 0
        for row, sampling, stream in zip(rows, samplings, streams, strict=True):
            self.samplings[row] = sampling
            self.uniform[row, : len(stream)] = torch.from_numpy(stream).to(self.device)

    def copy(self, source: int, target: int) -> None:
        """Move a row's state: the last row takes the place of a finished one."""
        for tensor in (
            self.token, self.prefix_length, self.own_length, self.shift, self.generated,
            self.temperature, self.beta, self.uniform, self.logp,
        ):  # fmt: skip
            tensor[target] = tensor[source]
        self.samplings[target] = self.samplings[source]


RECORDABLE = frozenset((
    "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_neox",
    "granite", "helium", "hunyuan_v1_dense", "llama", "ministral", "mistral", "mt5", "olmo", "olmo2", "olmo3", "phi", "phi3",
    "qwen2", "qwen3", "seed_oss", "smollm3", "starcoder2", "t5", "umt5",
))  # fmt: skip
"""Model types whose forward pass takes the same path whatever the data, so that one recording holds for all steps. A type is
here if a test has compared its recorded step with the plain one."""
LOOKING = frozenset(("dynamic", "longrope"))
"""Rotary embeddings that look at the positions they are given and take another path beyond a border."""


def recordable(config: Any) -> bool:
    """Whether one recording of a model's forward pass holds for all of its steps."""
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = {value for name, value in _leaves(rotary) if name in ("rope_type", "type")}
    return config.model_type in RECORDABLE and not kinds & LOOKING


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a mapping and of those in it: some models have one rotary embedding for each kind of layer."""
    for name, value in tree.items():
        yield from _leaves(value) if isinstance(value, Mapping) else ((name, value),)


class Forward(nn.Module):
    """One step as a pure function of tensors: rows' last tokens in, the tokens they draw and their log-probs out.

    The caches come last in the arguments, as keys and values of the prefix pool and of the own pool, layer by layer.
    ``shared`` is whether rows share prefixes, ``shifted`` whether Q heads shift the logits of any.
    """

    def __init__(self, model: LanguageModel, prefixes: CachePool, own: CachePool, shared: bool, shifted: bool) -> None:
        super().__init__()
        self.shared = shared
        self.network = model.network  # registered, so that a recording reads the live parameters
        self.q_heads = model.q_heads if shifted else None
        self._parts = (model, prefixes, own)

    def forward(
        self, token_B: Tensor, lengths: tuple[Tensor, Tensor, Tensor], draws: tuple[Tensor, Tensor, Tensor],
        cells: tuple[Tensor, Tensor], windows: tuple[Tensor, Tensor], caches: list[Tensor], cuts: TokenFilters | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """``lengths`` of prefix and own cache, and by how much a position is more than both; ``draws`` uniform number,
        temperature and beta; each per row."""
        model, prefixes, own = self._parts
        views = PoolView(prefixes, caches[: len(caches) // 2]), PoolView(own, caches[len(caches) // 2 :])
        plan = DecodePlan(*views, cells, lengths[:2], windows, self.shared)
        position_B = (lengths[0] + lengths[1] + lengths[2]).clamp(max=model.context - 1)  # idle rows go on beyond their end
        hidden = model.hidden(token_B[:, None], position_B[:, None], plan)
        uniform, temperature, beta = draws
        logits = model.logits(hidden[:, 0])
        if self.q_heads is not None:
            logits = logits + beta[:, None] * self.q_heads.advantage(hidden[:, 0])
        return draw(logits, uniform, temperature, cuts)


def recording(forward: Forward, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """A step as a TorchScript function, recorded on the arguments of one; it reads the live weights.

    ``torch.jit.trace`` would leave a class for every layer, with its code, in a table of the process that nothing is ever taken
    out of: a process that makes model after model grew by 10 MB and more with each. A graph whose weights are arguments
    like all others needs no classes, and a function of its own goes when its step does.
    """
    weights = [*forward.parameters(), *forward.buffers()]

    def flat(token: Tensor, *parts: Sequence[Tensor]) -> list[Tensor]:
        return [token, *(tensor for part in parts for tensor in part)]

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        rest = iter(tensors)
        token, *parts = next(rest), *(list(itertools.islice(rest, len(part))) for part in arguments[1:])
        found: tuple[Tensor, Tensor] = forward(token, *parts)
        return found

    with quiet_transformers():  # tracing warns of every shape that Python code looked at, and reads every property
        inputs = (*flat(*arguments), *weights)
        graph, _ = torch._C._create_graph_by_tracing(run, inputs, lambda tensor: "", True, False)
    function = torch._C._create_function_from_graph("step", graph)
    return lambda *given: function(*flat(*given), *weights)


class DecodeStep:
    """Advances the running rows by one token.

    The step is recorded once and replayed, because its many small operations cost more to issue than to compute: on CUDA as
    graphs by size (``graphs``), on the CPU as a TorchScript trace for all sizes, for architectures that are
    :func:`recordable`. Others, and steps that cut the distribution, run as they are.
    """

    def __init__(
        self, model: LanguageModel, prefixes: CachePool, own: CachePool, state: DecodeState, graphs: Graphs | None
    ) -> None:
        self.model, self.prefixes, self.own, self.state = model, prefixes, own, state
        recorded = recordable(model.config)
        self.graphs = graphs if recorded else None
        self._traces = recorded and graphs is None
        self._forwards: dict[tuple[bool, bool], Forward] = {}
        self._traced: dict[tuple[bool, bool], Any] = {}
        self._cells: tuple[tuple[int, ...], Tensor, Tensor] | None = None
        self._shared, self._shifted = True, False
        self._positions = torch.arange(0, device=own.device)

    def forget(self) -> None:
        """Drop captured graphs: something they point at has moved, or has another number of rows."""
        self._cells = None
        if self.graphs is not None:
            self.graphs.clear()

    def regroup(self) -> None:
        """Rows or prefixes have changed places: which row shares which prefix is worked out anew."""
        self._cells = None

    def __call__(self, prefix_of_row: Sequence[int], seen: int, longest: int) -> tuple[list[int], list[float]]:
        """Run a step over rows with prefixes of at most ``seen`` tokens and at most ``longest`` own tokens after it.

        Gives the tokens generated and their log-probs.
        """
        count = len(prefix_of_row)
        windows = self._window(seen, self.prefixes.positions), self._window(longest, self.own.positions)
        samplings = self.state.samplings[:count]
        cuts = TokenFilters(samplings, self.own.device) if any(needs_filters(s) for s in samplings) else None
        self._shifted = any(s.beta for s in samplings)
        if self._cells is None:
            self._cells = self._group(prefix_of_row)
        shape, row_UG, cell_B = self._cells
        reach = max(self.prefixes.positions, self.own.positions)
        if len(self._positions) < reach:
            self._positions = torch.arange(reach, device=self.own.device)
            self.forget()
        if self.graphs is not None and cuts is None:
            state = self.state
            self.graphs.replay(
                (*shape, *windows, int(self._shifted)), (row_UG, cell_B),
                lambda cells: self._advance(shape[0], cells, windows, None),
                (state.token, state.own_length, state.generated, state.logp),
            )  # fmt: skip
        else:
            self._advance(count, (row_UG, cell_B[:count]), windows, cuts)
        return self.state.token[:count].tolist(), self.state.logp[:count].tolist()

    def _window(self, count: int, positions: int) -> int:
        """The positions of a cache that are read where ``count`` are filled."""
        if self.graphs is None:
            return min(round_up(count, 16), positions)
        return power_of_two(max(count, LEAST_WINDOW), positions)

    def _group(self, prefix_of_row: Sequence[int]) -> tuple[tuple[int, ...], Tensor, Tensor]:
        rows, prefixes = len(prefix_of_row), max(prefix_of_row) + 1
        width = int(max(np.bincount(prefix_of_row)))
        if self.graphs is not None:
            rows, prefixes = power_of_two(rows, self.own.rows), power_of_two(prefixes, self.prefixes.rows)
            width = power_of_two(width, self.own.rows)
        cells = Cells(prefix_of_row, prefixes, width, rows)
        self._shared = cells.shared or self.graphs is not None
        device = self.own.device
        shape = (rows, prefixes, width)
        return shape, torch.from_numpy(cells.row_UG).to(device), torch.from_numpy(cells.cell_B).to(device)

    def _advance(self, count: int, cells: tuple[Tensor, Tensor], windows: tuple[int, int], cuts: TokenFilters | None) -> None:
        state = self.state
        own_length = state.own_length[:count]
        if self.graphs is not None:  # idle rows of a padded step run on: their writes go to the pool's spare position
            own_length = own_length.clamp(max=self.own.positions)
        generated = state.generated[:count]
        uniform = state.uniform[:count].gather(1, generated.clamp(max=state.uniform.shape[1] - 1)[:, None]).squeeze(1)
        arguments = (
            state.token[:count],
            (state.prefix_length[:count], own_length, state.shift[:count]),
            (uniform, state.temperature[:count], state.beta[:count]),
            cells,
            (self._positions[: windows[0]], self._positions[: windows[1]]),
            [*self.prefixes.keys, *self.prefixes.values, *self.own.keys, *self.own.values],
        )
        if self._traces and cuts is None:
            token, logp = self._trace(arguments)(*arguments)
        else:
            token, logp = self._forward()(*arguments, cuts)
        state.token[:count] = token
        state.logp[:count] = logp
        state.own_length[:count] += 1
        generated += 1

    def _forward(self) -> Forward:
        kind = self._shared, self._shifted
        if kind not in self._forwards:
            self._forwards[kind] = Forward(self.model, self.prefixes, self.own, *kind)
        return self._forwards[kind]

    def _trace(self, arguments: tuple[Any, ...]) -> Any:
        """The recorded step; it is recorded at the first call, on the arguments of that step."""
        kind = self._shared, self._shifted
        if kind not in self._traced:
            self._traced[kind] = recording(self._forward(), arguments)
        return self._traced[kind]

    def choose(self, rows: Tensor, logits_BV: Tensor, cuts: TokenFilters | None) -> None:
        """Draw the next token of rows from their logits and note it in the state."""
        state = self.state
        at = state.generated[rows].clamp(max=state.uniform.shape[1] - 1)
        uniform = state.uniform[rows].gather(1, at[:, None]).squeeze(1)
        token, logp = draw(logits_BV, uniform, state.temperature[rows], cuts)
        state.token[rows] = token
        state.logp[rows] = logp
        state.generated[rows] += 1
