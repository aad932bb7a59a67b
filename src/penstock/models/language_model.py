"""A Hugging Face model seen as a trunk with heads: hidden states once, then logits, values or scores where needed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.core.errors import ModelError, TrainingError
from penstock.models.architecture import Slot, check_architecture, slots_of
from penstock.models.attention import AttentionPlan, PackedPlan, attend_by_plan, quiet_transformers, register
from penstock.models.heads import OWN, made_head
from penstock.models.lora import adapter_weights, merged
from penstock.models.packing import TokenBatch
from penstock.models.q_heads import QHeads
from penstock.models.text import Text

if TYPE_CHECKING:
    from penstock.models.freezing import Border

Head = Literal["lm", "score"]
Critic = Literal["none", "shared", "separate", "branch"]

CHANGING = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies depend on the longest position of a pass."""


class ValueHead(nn.Module):
    """A linear map from a hidden state to the expected return; starts at zero, so that the first advantages are rewards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_AH: Tensor) -> Tensor:
        return at_least_float32(self.linear(hidden_AH.to(self.linear.weight.dtype)).squeeze(-1))


class LanguageModel(nn.Module):
    """A causal language model (``head="lm"``) or reward model (``head="score"``) with its tokenizer.

    ``critic`` says where a value head is: on this trunk ("shared"), on a copy of it ("separate"), or on a copy of what is
    trained of it, above the frozen blocks ("branch"). ``border`` is set where blocks are frozen, ``adapter``
    (peft's description) where low-rank adapters are added to frozen matrices.
    """

    reads_media: ClassVar[bool] = False
    """Whether it reads pictures, films or sounds."""

    def __init__(self, network: Any, text: Text, head: Head = "lm") -> None:
        super().__init__()
        register()
        with quiet_transformers():
            attend_by_plan(network)
        for module in network.modules():  # log-probs must not depend on a mask that the generator never saw
            rates = [name for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]
            for name in [*rates, *(["p"] if isinstance(module, nn.Dropout) else [])]:
                setattr(module, name, 0.0)
        self.network = network
        own = network.config  # a network of more parts has one for each
        self.config: Any = own if own.is_encoder_decoder else own.get_text_config()
        self.text = text
        self.head: Head = head
        self.value_head: ValueHead | None = None
        self.score_head: nn.Linear | None = None
        """Of a reward model whose network has none of its own."""
        self.critic_trunk: nn.Module | None = None
        self.critic: Critic = "none"
        self.border: Border | None = None
        self.adapter: Any = None
        self.heads = nn.ModuleDict()
        self.ends: dict[str, tuple[str, ...]] = {}
        """Names of the modules after the last attention, by trunk, once they were looked for (models/narrow.py)."""

    @property
    def context(self) -> int:
        """Longest sequence in tokens."""
        return longest_sequence(self.config)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    def add_critic(self, kind: Literal["shared", "separate", "branch"], branch: nn.Module | None = None) -> None:
        """Attach a critic. A separate one starts as a copy of the policy's trunk; a ``branch`` is given whole, from
        :func:`penstock.models.branches.critic_branch`."""
        if (kind == "branch") != (branch is not None):
            raise ModelError(f"critic={kind}: a trunk is given for a branch, and only there")
        self.value_head = ValueHead(self.config.hidden_size).to(self.device)
        self.critic_trunk = branch
        if kind == "separate":
            self.critic_trunk = copy.deepcopy(self.network.base_model).requires_grad_(True)
        self.critic = kind

    def add_heads(self, heads: Mapping[str, Mapping[str, Any]], *, used: bool = True) -> None:
        """Heads on this trunk by name, each with the settings that it is made from; one that is there keeps its weights.

        Raises:
            SpecError: nobody has registered a name.
        """
        for name, settings in heads.items():
            if name in OWN:
                continue
            known: Any = dict(self.heads.items()).get(name)
            if known is None or known.settings != settings:
                head = made_head(name, self.config.hidden_size, self.config.vocab_size, settings).to(self.device)
                if known is not None:
                    head.load_state_dict(known.state_dict())
                self.heads[name] = known = head
            known.used = used

    @property
    def q_heads(self) -> QHeads | None:
        """The action values by which generation can be shifted, if it has any."""
        return self.heads["q"] if "q" in self.heads else None  # type: ignore[return-value]  # noqa: SIM401

    def once(self) -> AbstractContextManager[None]:
        """Within it frozen blocks run once for this model and its branches, which must all be given the same tokens."""
        return self.border.once() if self.border is not None else nullcontext()

    def plan(self, batch: TokenBatch) -> Any:
        """How a packed batch is read: the plan that :meth:`hidden` takes.

        Raises:
            TrainingError: a row is longer than the context, or shows a medium to a model that reads text alone.
        """
        if batch.media_N is not None and not self.reads_media:
            raise TrainingError("rows show media to a model that reads text alone; set its media=Vision() or Hearing()")
        longest = int(batch.length_B.max())
        if longest > self.context:
            row = batch.row_ids[int(batch.length_B.argmax())]
            raise TrainingError(
                f"row {row} has {longest} tokens, and the model's context is {self.context}; shorten or drop it"
            )
        return PackedPlan(batch.gather_BT, batch.scatter_N, batch.length_B, self.device)

    def hidden(self, tokens_BN: Tensor, position_BN: Tensor, plan: AttentionPlan, trunk: nn.Module | None = None) -> Tensor:
        """Last hidden states ``[B, N, H]`` of tokens at positions, attending as the plan says."""
        run = trunk if trunk is not None else self.network.base_model
        out = run(input_ids=tokens_BN, position_ids=position_BN, use_cache=False, plan=plan)
        return out.last_hidden_state

    def logits(self, hidden_AH: Tensor) -> Tensor:
        """Next-token logits ``[A, V]``, at least in float32."""
        head = self.network.get_output_embeddings()
        return self.scaled(functional.linear(hidden_AH, head.weight, getattr(head, "bias", None)))

    def scaled(self, product: Tensor) -> Tensor:
        """Logits, at least in float32, of the output head's product with hidden states, number by number."""
        logits = at_least_float32(product)
        scale = getattr(self.config, "logit_scale", None)
        if scale is not None:
            logits = logits * scale
        divisor = getattr(self.config, "logits_scaling", None)
        if divisor is not None:
            logits = logits / divisor
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def values(self, hidden_AH: Tensor) -> Tensor:
        """Expected return ``[A]`` in float32."""
        if self.value_head is None:
            raise ModelError("this model has no critic; set learner.critic=shared or separate")
        return self.value_head(hidden_AH)

    def scores(self, hidden_BH: Tensor) -> Tensor:
        """Reward-model score ``[B]`` in float32 of sequences given the hidden state of their last token."""
        if self.head != "score":
            raise ModelError("this model has a language-model head, not a score head; train a reward model first")
        head = self.score_head if self.score_head is not None else self.network.score
        return at_least_float32(head(hidden_BH.to(head.weight.dtype)).squeeze(-1))

    def policy_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the network alone, without critic; tied tensors once."""
        yield from self.network.named_parameters()

    def plain_weights(self) -> Iterator[tuple[str, Tensor]]:
        """:meth:`policy_weights` under the names of the plain architecture, with adapters merged into their matrices."""
        yield from merged(self.network, dict(self.policy_weights()))

    def adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the low-rank adapters alone, by peft's names; none where there are none."""
        yield from adapter_weights(self.network)

    def changed(self) -> None:
        """Weights have changed, so that what was computed of them alone is computed anew."""

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """What a generator caches of each token, by the calls of attention in a pass."""
        return slots_of(self)

    def check(self) -> None:
        """Compare our passes with the network's own forward, once, when it is loaded.

        Raises ModelError if they differ: see :func:`penstock.models.architecture.check_architecture`.
        """
        self.slots = check_architecture(self)


def at_least_float32(numbers: Tensor) -> Tensor:
    """Numbers in float32, or as they are where that is float64."""
    return numbers if numbers.dtype == torch.float64 else numbers.float()


def longest_sequence(config: Any) -> int:
    """Tokens that a model can read.

    Rotary embeddings that change with the longest position of a pass (LongRoPE, arXiv:2402.13753; dynamic NTK) end where they
    begin to change: beyond, a token's log-prob would depend on who shares the pass.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    rotary = getattr(config, "rope_parameters", None) or {}
    for settings in (rotary, *(inner for inner in rotary.values() if isinstance(inner, Mapping))):
        if settings.get("rope_type") in CHANGING:
            limits.append(settings.get("original_max_position_embeddings"))
    return min((int(limit) for limit in limits if limit), default=1 << 30)
