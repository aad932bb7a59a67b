"""What a control policy remembers between steps: an LSTM, or a transformer over a window of earlier steps.

Both read the layers' output step by step, or whole sequences at once, with the same result. What is remembered is one row of
numbers an environment, all zero where an episode begins.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HEADS = 4
"""Of each block of a transformer; they divide its width."""


class Recurrence(nn.LSTMCell):
    """An LSTM: its hidden numbers and those of its cell are remembered."""

    @property
    def size(self) -> int:
        """Numbers that are remembered (S)."""
        return 2 * self.hidden_size

    @property
    def width(self) -> int:
        """Numbers that it gives."""
        return self.hidden_size

    def step(self, input_BH: Tensor, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """What follows from one more step, and what is remembered after it."""
        hidden_BH, cell_BH = self(input_BH, tuple(state_BS.chunk(2, -1)))
        return hidden_BH, torch.cat((hidden_BH, cell_BH), -1)

    def unrolled(self, input_TNH: Tensor, start_TN: Tensor, state_NS: Tensor) -> Tensor:
        """``[T, N, H]`` of sequences; nothing is remembered where an episode starts."""
        found, state = [], state_NS
        for input_NH, goes_on_N1 in zip(input_TNH, ~start_TN[..., None], strict=True):
            hidden_NH, state = self.step(input_NH, state * goes_on_N1)
            found.append(hidden_NH)
        return torch.stack(found)


class Block(nn.Module):
    """Attention over a window and a layer of its own, each after a norm and added to what came in by a share that is learned
    from a tenth on (Touvron et al. 2021, arXiv 2103.17239): a policy begins as if it had no memory."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.both, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.share = nn.Parameter(torch.full((2, width), 0.1))
        self.bias = nn.Parameter(torch.zeros(HEADS, window))
        """By how many steps ago something was."""

    def forward(self, seen_NID: Tensor, count: int, hidden_NJI: Tensor, ago_JI: Tensor) -> Tensor:
        """The last ``count`` (J) of the inputs (I), each with what it attends to of them: ``[N, J, D]``.

        ``hidden_NJI``: what it must not attend to; ``ago_JI``: how many steps lie between them, within the window.
        """
        normal_NID, own_NJD = self.before(seen_NID), seen_NID[:, -count:]
        query = self.query(normal_NID[:, -count:]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.both(normal_NID).chunk(2, -1))
        bias_NHJI = self.bias[:, ago_JI].masked_fill(hidden_NJI[:, None], -torch.inf)
        attended_NHJX = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias_NHJI)
        middle_NJD = own_NJD + self.share[0] * self.out(attended_NHJX.transpose(1, 2).flatten(2))
        found_NJD: Tensor = middle_NJD + self.share[1] * self.layer(self.between(middle_NJD))
        return found_NJD


class Window(nn.Module):
    """A transformer whose steps attend to ``window`` steps of their episode, their own included. As in Transformer-XL (Dai et
    al. 2019, arXiv 1901.02860) earlier inputs of each block are kept as they were, and no gradient reaches them."""

    def __init__(self, width: int, window: int, blocks: int) -> None:
        super().__init__()
        self.width, self.earlier = width, window - 1
        self.blocks = nn.ModuleList(Block(width, window) for _ in range(blocks))

    @property
    def size(self) -> int:
        """Numbers that are remembered (S): the inputs of each block in earlier steps, and which of these there are."""
        return self.earlier * (len(self.blocks) * self.width + 1)

    def step(self, input_BH: Tensor, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """What follows from one more step, and what is remembered after it."""
        kept_BLWD, there_BW = self._parts(state_BS)
        there_BI = torch.cat((there_BW, torch.ones_like(there_BW[:, :1])), 1)
        ago_1I = torch.arange(self.earlier, -1, -1, device=input_BH.device)[None]
        now_B1D, after = input_BH[:, None], []
        for number, block in enumerate(self.blocks):
            seen_BID = torch.cat((kept_BLWD[:, number], now_B1D), 1)
            after.append(seen_BID[:, 1:])
            now_B1D = block(seen_BID, 1, (there_BI == 0)[:, None], ago_1I)
        return now_B1D[:, 0], torch.cat((torch.stack(after, 1).flatten(1), there_BI[:, 1:]), 1)

    def unrolled(self, input_TNH: Tensor, start_TN: Tensor, state_NS: Tensor) -> Tensor:
        """``[T, N, H]`` of sequences, all steps at once; nothing is remembered where an episode starts."""
        steps, earlier = len(input_TNH), self.earlier
        kept_NLWD, there_NW = self._parts(state_NS)
        episode_NT = start_TN.T.cumsum(1)
        episode_NI = torch.cat((torch.where(there_NW > 0, 0, -1), episode_NT), 1)
        place_I = torch.arange(earlier + steps, device=input_TNH.device)
        ago_JI = place_I[earlier:, None] - place_I
        apart_JI = (ago_JI < 0) | (ago_JI > earlier)
        hidden_NJI = apart_JI | (episode_NT[:, :, None] != episode_NI[:, None])
        now_NTD = input_TNH.transpose(0, 1)
        for number, block in enumerate(self.blocks):
            seen_NID = torch.cat((kept_NLWD[:, number], now_NTD), 1)
            now_NTD = block(seen_NID, steps, hidden_NJI, ago_JI.clamp(0, earlier))
        return now_NTD.transpose(0, 1)

    def _parts(self, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs by block and step, ``[B, L, W, D]``, and 1 for those that there are, ``[B, W]``."""
        kept_BX, there_BW = state_BS.tensor_split((self.size - self.earlier,), 1)
        return kept_BX.unflatten(1, (len(self.blocks), self.earlier, self.width)), there_BW
