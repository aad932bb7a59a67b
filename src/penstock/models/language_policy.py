"""Language models as policies: rows packed under a token budget, outputs at the tokens that need them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from penstock.config.learner import LearnerSpec
from penstock.core.contracts import Policy
from penstock.core.types import Unit
from penstock.models import outputs
from penstock.models.arithmetic import cast_again
from penstock.models.experts import check_routes, replayed, routers_of
from penstock.models.heads import Head
from penstock.models.language_model import LanguageModel
from penstock.models.lora import adapter_off
from penstock.models.narrow import narrowed
from penstock.models.outputs import Teacher, View, Vocabulary, WholeVocabulary
from penstock.models.packing import TokenBatch, lay_out
from penstock.models.restrict import prepare
from penstock.models.uploads import uploaded

BRANCHES = ("self_attn", "attn", "attention", "mlp", "o", "DenseReluDense")
"""Names of the modules whose output is added to the residual stream in the architectures of transformers (the last two: T5)."""


@contextmanager
def dropped(
    model: LanguageModel, tokens: float, branches: float, noise: torch.Generator, adapters: float = 0.0
) -> Iterator[None]:
    """Inside, whole token embeddings are zeroed with probability ``tokens`` and entries of each attention and feed-forward
    output with probability ``branches`` (the rest scaled up, Srivastava et al. 2014), and likewise of what goes into low-rank
    adapters with probability ``adapters``. Masks come from a random stream of our own, so that a resume repeats them.

    End tokens are never zeroed: a reward model reads its score there, and would learn far slower from a blank.
    """

    def mask(shape: torch.Size, rate: float, like: Tensor) -> Tensor:
        return (torch.rand(shape, generator=noise) >= rate).to(like)

    def drop_tokens(module: nn.Module, arguments: Any, embedded: Tensor) -> Tensor:
        kept = mask(embedded.shape[:-1], tokens, embedded).masked_fill_(arguments[0] == model.text.end, 1)
        return embedded * kept[..., None]

    def drop_branch(module: nn.Module, arguments: Any, output: Any) -> Any:
        added = output[0] if isinstance(output, tuple) else output
        added = added * mask(added.shape, branches, added) / (1 - branches)
        return (added, *output[1:]) if isinstance(output, tuple) else added

    def drop_input(module: nn.Module, arguments: Any) -> Any:
        return (arguments[0] * mask(arguments[0].shape, adapters, arguments[0]) / (1 - adapters), *arguments[1:])

    hooks = []
    if tokens:
        hooks.append(model.network.get_input_embeddings().register_forward_hook(drop_tokens))
    if branches:
        named = model.network.named_modules()
        hooks += [m.register_forward_hook(drop_branch) for n, m in named if n.rpartition(".")[2] in BRANCHES]
    if adapters:
        inputs = (m for n, m in model.network.named_modules() if ".lora_A." in n)
        hooks += [m.register_forward_pre_hook(drop_input) for m in inputs]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class LanguagePolicy(Policy):
    """A language or reward model, decoder or encoder-decoder, as losses and learners see it.

    Args:
        temperature: log-probs and entropies are those of softmax(logits / temperature), as the generator draws.
        share_prefix: whether rows of a unit compute a common prompt once.
    """

    def __init__(self, model: LanguageModel, temperature: float = 1.0, share_prefix: bool = True) -> None:
        self.model, self.temperature, self.share_prefix = model, temperature, share_prefix
        self.vocabulary: Vocabulary = WholeVocabulary(model)
        self.teacher: Teacher | None = None
        """What "divergence" is from; set before it is needed."""
        self.narrow = True
        """Whether the last block may be computed in part."""
        self.replays = False
        """Whether experts are those that rows name instead of what the routers would choose now."""

    @property
    def module(self) -> LanguageModel:
        return self.model

    @property
    def per_row(self) -> frozenset[str]:
        return outputs.per_row()

    def lay_out(self, units: Sequence[Unit], budget: int, coupled: bool = True) -> list[TokenBatch]:
        """Units as packed micro-batches of at most ``budget`` tokens each; see :func:`~penstock.models.packing.lay_out`. Warns
        of one that cannot be split and is longer."""
        batches = lay_out(units, budget, self.share_prefix, coupled, self.replays)
        if any(len(batch.tokens_N) > budget for batch in batches):
            what = "a unit whose rows are coupled" if coupled else "a row"
            warnings.warn(
                f"{what} has more tokens than learner.token_budget={budget}: its micro-batch takes more memory than others; "
                "raise the budget to what fits, or drop long rows (data.too_long)",
                stacklevel=2,
            )
        return batches

    def tensors(self, batch: TokenBatch, needs: frozenset[str]) -> Any:
        """What one pass reads: a namespace with the batch's indices as tensors under the same names, the plan, and the packed
        tokens ``needed_n`` whose hidden states are read (None: all); ``routes_NLK`` to replay (None: routers choose)."""
        device = self.model.device
        names = ("tokens_N", "position_N", "source_A", "target_A", "last_B")
        moved = {name: uploaded(getattr(batch, name), device, torch.int64) for name in names}
        read_n = outputs.read_tokens(batch, needs) if self.narrow else None
        needed_n = None if read_n is None else uploaded(read_n, device, torch.int64)
        routes_NLK = uploaded(batch.routes_N, device, torch.int64) if self.replays and batch.routes_N is not None else None
        return SimpleNamespace(plan=self.model.plan(batch), needed_n=needed_n, routes_NLK=routes_NLK, **moved)

    def outputs(self, batch: TokenBatch, needs: frozenset[str]) -> dict[str, Tensor]:
        return self.run(self.tensors(batch, needs), needs)

    def run(self, tensors: Any, needs: frozenset[str]) -> dict[str, Tensor]:
        """The outputs of one pass, only at the tokens that need them; frozen blocks run once for all."""
        teacher = self.teacher if "divergence" in needs else None
        view = View(self.model, tensors, self.temperature, self.vocabulary, teacher)
        routers = [] if tensors.routes_NLK is None else routers_of(self.model.network)
        with self._pass(tensors), replayed(routers, tensors.routes_NLK, tensors.needed_n):
            return outputs.computed(view, needs)

    @contextmanager
    def _pass(self, tensors: Any) -> Iterator[None]:
        """Within it one pass runs: frozen blocks once, and the end of the last block where it is read."""
        with narrowed(self.model, tensors.needed_n, len(tensors.tokens_N)), self.model.once():
            yield

    @torch.no_grad()
    def action_hidden(self, tensors: Any) -> Tensor:
        """Hidden states ``[A, H]`` that predict the actions of a batch, without gradient."""
        view = View(self.model, tensors, self.temperature, self.vocabulary, None)
        with self._pass(tensors):
            return view.before_actions(view.hidden_NH)

    def teaching(self, between: Callable[[Tensor, Tensor], Tensor]) -> Teacher:
        """This policy as the teacher of another."""
        return Teacher(self.action_hidden, self.model.logits, between)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor), one by one; adapters are merged, so any generator of the plain model can load them."""
        yield from ((name, tensor.detach()) for name, tensor in self.model.plain_weights())

    def prepare(self, spec: LearnerSpec, seed: int) -> None:
        prepare(self.model, spec, seed)
        dropout = spec.dropout or spec.token_dropout or (spec.lora is not None and spec.lora.dropout)
        self.narrow = not (dropout or spec.gradient_checkpointing)  # which computes a block again when the pass is over
        if spec.replay_routes:
            check_routes(self.model)
        self.replays = spec.replay_routes

    def dropout(self, spec: LearnerSpec, noise: torch.Generator) -> AbstractContextManager[None]:
        adapters = spec.lora.dropout if spec.lora is not None else 0.0
        return dropped(self.model, spec.token_dropout, spec.dropout, noise, adapters)

    def stepped(self, updates: int) -> None:
        """What follows the trained parameters moves."""
        cast_again(self.model)
        self.model.changed()
        for head in self._heads().values():
            if head.used:
                head.follow(updates)

    def slow(self) -> list[tuple[str, Tensor]]:
        """Slow variables of the heads."""
        return [(f"{name}.{part}", tensor) for name, head in self._heads().items() for part, tensor in head.slow()]

    def _heads(self) -> dict[str, Head]:
        return dict(self.model.heads.items())  # type: ignore[arg-type]


class SharedTrunkPolicy(LanguagePolicy):
    """A reference whose lower blocks are a policy's frozen ones.

    With values asked for too, it gives those of the policy's critic from the same pass, in which the frozen blocks run once.
    """

    gives_values = True

    def __init__(self, owner: LanguageModel, reference: LanguageModel, temperature: float = 1.0) -> None:
        super().__init__(reference, temperature)
        self.owner = LanguagePolicy(owner, temperature)

    def run(self, tensors: Any, needs: frozenset[str]) -> dict[str, Tensor]:
        if "value" not in needs:
            return super().run(tensors, needs)
        with self.owner.model.once():  # the owner first, because its own frozen blocks always run
            values = self.owner.run(tensors, frozenset({"value"}))
            return super().run(tensors, needs - {"value"}) | values


class AdapterOffPolicy(LanguagePolicy):
    """A model as it was before its low-rank adapters: the reference of a policy that trains them."""

    def action_hidden(self, tensors: Any) -> Tensor:
        with adapter_off(self.model.network):
            return super().action_hidden(tensors)

    def run(self, tensors: Any, needs: frozenset[str]) -> dict[str, Tensor]:
        with adapter_off(self.model.network):
            return super().run(tensors, needs)
