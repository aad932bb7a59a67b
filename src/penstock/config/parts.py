"""What every stage names: models, data, rewards, evaluations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

from penstock.config.denoising import Pictures
from penstock.config.media import Media
from penstock.config.spec import AnySpec, Whole, require, spec

TEMPLATE_OWN = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "return_dict", "tokenize"}
)
"""Arguments of a chat template that are no user's to set: what is asked for decides them."""


@spec
class ModelSpec:
    """A model: a folder or hub name, ``@stage`` for the one an earlier stage trained, or a preset built from scratch."""

    path: str = ""
    """Folder in Hugging Face format, hub name, or ``@stage``. Empty: build ``preset`` from scratch."""
    preset: Literal["1m", "3m", "10m"] = "1m"
    """Size of a model built from scratch."""
    architecture: Literal["decoder", "encoder-decoder"] = "decoder"
    """Shape of a model built from scratch: Qwen2's, or T5's of about the same size. A folder says its own."""
    denoiser: AnySpec | None = None
    """``Pictures``: build a denoiser of pictures from scratch, no language model."""
    layers: int = 0
    """Layers of a model built from scratch, of each half in an encoder-decoder; 0: the preset's."""
    initializer_range: float = 0.0
    """Standard deviation of the first weights of a model built from scratch; 0: one over the root of its width, which suits
    small vocabularies. With thousands of pieces, most of them rare, 0.02 generalises better."""
    vocabulary: int = 1024
    """Pieces of the tokenizer that is trained on the stage's data, for a model built from scratch."""
    context: int = 1024
    """Longest sequence of a model built from scratch."""
    media: AnySpec | None = None
    """``Vision`` or ``Hearing``: the model reads media too; of a folder, its tower is loaded. None: text alone."""

    def __post_init__(self) -> None:
        require(self.vocabulary >= 259, f"vocabulary={self.vocabulary} is too small; bytes and marks alone need 259")
        for name in ("layers", "initializer_range"):
            require(getattr(self, name) >= 0, f"{name}={getattr(self, name)} is negative; use 0 for the preset's")
        require(self.context >= 8, f"context={self.context} is too short; use at least 8")
        require(
            self.denoiser is None or isinstance(self.denoiser, Pictures),
            f"model.denoiser={type(self.denoiser).__name__} is no denoiser; use Pictures",
        )
        require(
            self.architecture == "decoder" or not self.initializer_range,
            "an encoder-decoder starts from T5's own first weights; leave initializer_range=0",
        )
        require(
            self.media is None or isinstance(self.media, Media),
            "model.media is neither Vision nor Hearing; use one of them or leave it out",
        )
        require(
            self.media is None or self.architecture == "decoder",
            "media are read by decoders; leave model.media out, or set architecture=decoder",
        )


@spec
class Refuse:
    """A row that is too long is an error that names it."""

    tokens: Whole = 0
    """Longest row; of what is to be answered, longest prompt. 0: what the model's context leaves."""

    drops: ClassVar[bool] = False
    cuts: ClassVar[bool] = False


@spec
class Drop(Refuse):
    """A row that is too long is left out; how many were is logged."""

    drops: ClassVar[bool] = True


@spec
class Truncate(Refuse):
    """Of a row that is too long its beginning is kept; one that leaves nothing to learn is left out."""

    cuts: ClassVar[bool] = True


@spec
class DataSpec:
    """Rows of data and how a row becomes text."""

    source: str
    """``FILE.jsonl[.gz]``, ``FILE.txt`` (one row a line, column ``text``), ``gym:TASK``, ``hub:NAME[:SUBSET]``,
    ``feedback:STORE`` (a file or a PostgreSQL URL), or ``MODULE:FUNCTION`` / ``FILE.py:FUNCTION`` returning a list of rows."""
    name: str = ""
    """Name in prompt keys; empty: taken from the source."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the gym task or of the function."""
    split: str = "train"
    """Split of a hub data set."""
    size: int = 0
    """Rows to take from the front (0: all). A gym task needs it."""
    skip: int = 0
    """Rows to pass over at the front first; keeps held-out rows apart."""
    prompt: str = "{{ prompt }}"
    """Jinja template of the prompt over the row's columns."""
    completion: str = "{{ completion }}"
    """Jinja template of the completion, for supervised fine-tuning."""
    chosen: str = "{{ chosen }}"
    """Jinja template of the preferred completion, for preference pairs."""
    rejected: str = "{{ rejected }}"
    """Jinja template of the other completion, for preference pairs."""
    chat: bool | Mapping[str, Any] = False
    """Write prompts and answers by the tokenizer's chat template (column ``messages``, or the prompt as one user turn): true,
    or the template's arguments, such as ``{"enable_thinking": false}``. A row's own are its columns ``chat_template_kwargs``
    and ``tools``."""
    too_long: AnySpec = Refuse()
    """What becomes of rows that are too long: ``Refuse``, ``Drop`` or ``Truncate``, each with the most ``tokens`` of a row."""
    shuffle: bool = True
    """Draw the rows of an epoch in a random order (a pure function of seed and epoch)."""

    def __post_init__(self) -> None:
        require(bool(self.source), "data.source is empty; name a file, gym:TASK, hub:NAME or MODULE:FUNCTION")
        require(self.size >= 0 and self.skip >= 0, "data.size and data.skip cannot be negative")
        own = sorted(TEMPLATE_OWN & (self.template_arguments or {}).keys())
        require(not own, f"data.chat sets {', '.join(own)}, which the stage decides; leave it out")
        rule = type(self.too_long).__name__
        require(
            isinstance(self.too_long, Refuse), f"data.too_long={rule} is no rule for long rows; use Refuse, Drop or Truncate"
        )

    @property
    def template_arguments(self) -> Mapping[str, Any] | None:
        """What the chat template is given besides the messages; None: there is no chat."""
        return self.chat if isinstance(self.chat, Mapping) else {} if self.chat else None

    @property
    def of_signals(self) -> bool:
        """Whether its labels are product signals."""
        return self.source.startswith("feedback:") and self.options.get("form") == "product"


@spec
class RewardSpec:
    """One reward of a mixture."""

    function: str
    """``exact_match``, ``math``, ``model:@STAGE`` (a reward model; ``model:@A+@B`` an ensemble), ``process:@STAGE`` (a
    process reward model), ``judge:URL``, ``clip:FOLDER``, ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``."""
    weight: float = 1.0
    name: str = ""
    """Name in metrics; empty: taken from the function."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments passed on to the function."""
    deadline: float = 30.0
    """Seconds one call of the function may take (a sample's, or a group's if it takes groups)."""

    def __post_init__(self) -> None:
        require(self.deadline > 0, f"reward deadline={self.deadline}; give a positive number of seconds")


@spec
class EvaluationSpec:
    """Held-out evaluation, pinned to a version."""

    data: DataSpec
    rewards: tuple[RewardSpec, ...] = ()
    """Rewards of generated samples; empty: the stage's own. An offline stage generates only if they are given, and assesses
    the labelled rows otherwise."""
    every: int = 0
    """Steps between evaluations (0: only before the first and after the last step)."""
    temperature: float = 0.0
    samples: int = 1
    """Samples a prompt."""
    max_new_tokens: int = 0
    """Longest answer; 0: the stage's own, or what the context leaves."""
    betas: tuple[float, ...] = ()
    """Measure also with logits shifted by so many times the advantages of Q heads (ILQL); needs a model that has them."""
    best_of: tuple[int, ...] = ()
    """Estimate also what the best of so many samples is worth; with rewards of 0 and 1 this is pass@k."""
    rank_by: str = ""
    """Name of the reward that picks the best sample; empty: the reward itself picks."""
    labelled: DataSpec | None = None
    """Texts with a column ``label`` (1 or 0) on which an online stage's own rewards are audited before it starts."""

    def __post_init__(self) -> None:
        require(
            all(1 <= k <= self.samples for k in self.best_of),
            f"evaluation.best_of={list(self.best_of)} picks from {self.samples} samples a prompt; set samples to the largest "
            "or more",
        )
        require(
            not self.best_of or self.samples == 1 or self.temperature > 0,
            "evaluation.temperature=0 makes all samples of a prompt the same; best_of needs a positive temperature",
        )
        require(not self.rank_by or bool(self.best_of), f'rank_by="{self.rank_by}" picks nothing; set best_of, such as [4]')


def models_behind(reward: RewardSpec) -> list[str]:
    """The models that a reward reads: ``model:@a+@b`` names two, ``process:@a`` one; none for a function."""
    scheme, _, named = reward.function.partition(":")
    return re.split(r"\+(?=@)", named) if scheme == "model" else [named] if scheme == "process" else []
