"""Tokens and text: one small face over a Hugging Face tokenizer. Text is turned into tokens once and never back and forth."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import pre_tokenizers
from transformers import Qwen2Tokenizer

from penstock.core.blobs import Blob, Decoded
from penstock.core.errors import ModelError, blame
from penstock.core.messages import Message
from penstock.core.types import IntArray, Sampling
from penstock.models.chat import GUARD, ChatTemplate
from penstock.models.chat import PROBE as PROBE

PAD, END, START = "<|endoftext|>", "<|im_end|>", "<|im_start|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

NONE: Message = {}
_HALF = re.compile("[\ud800-\udfff]")
"""Half a character, which no tokenizer can read: JSON may write one, as the cut end of a text does."""


class MediaStore(Protocol):
    """Pictures, films and sounds by number."""

    def decoded(self, name: int) -> Decoded:
        """The medium of this number. Raises DataError where there is none."""
        ...


class Text:
    """Encodes and decodes with a Hugging Face tokenizer; ``end`` closes a completion, ``pad`` fills what is never read.

    Args:
        ends: further tokens at which an answer ends; ``self.ends`` are all of them.
        encoder: whether an encoder of its own reads prompts, so that a prompt is a whole sequence to the tokenizer.
    """

    store: MediaStore | None = None
    """Where the media of a model that reads some are kept; None: it reads text alone."""
    _guarded = False
    """Whether texts are those of a chat template, in which marks that a content spells are guarded."""

    def __init__(self, tokenizer: Any, ends: Iterable[int] = (), encoder: bool = False) -> None:
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self.ends: frozenset[int] = frozenset({self.end, *ends})
        self.pad: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.encoder = encoder
        self.before, after = _around(tokenizer)
        """Tokens that the tokenizer puts before a text, such as a beginning of sequence."""
        self.after = after if encoder else []
        self._line, inside = self.encode("\n"), self.encode("\na")
        self.spaced = inside != [*self._line, *self.encode("a")] and inside[: len(self._line)] == self._line
        """Whether the tokenizer begins every text as if a space came before it (SentencePiece's dummy prefix)."""
        self._asked: tuple[Any, str] = (None, "")
        """The conversation that was rendered last, and how it reads."""
        self._templates: dict[str, ChatTemplate] = {}

    def __len__(self) -> int:
        return len(self.tokenizer)

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the tokenizer reads as tokens of their own, such as the borders of turns, wherever they are."""
        added = (str(piece) for piece in self.tokenizer.added_tokens_decoder.values())
        return tuple(sorted({piece for piece in (*self.tokenizer.all_special_tokens, *added) if piece.strip()}))

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without special tokens added. Raises ModelError where it has half a character."""
        if self._guarded and GUARD in text:
            first, *rest = text.split(GUARD)
            return sum(map(self.following, rest), self.encode(first))
        _refuse_half(text)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @property
    def rendered(self) -> Text:
        """This tokenizer for what a chat template has written: it begins as the template says, so nothing comes before it."""
        view = copy.copy(self)
        view.before, view.after, view._guarded = [], [], True
        return view

    def showing(self, blobs: Sequence[Blob]) -> Text:
        """The tokenizer for a prompt with these media. Raises ModelError: the model reads text alone."""
        if blobs:
            raise ModelError("the prompt has media and the model reads text alone; set model.media=Vision() or Hearing()")
        return self

    def media_columns(self, tokens_T: IntArray, blobs: Sequence[Blob]) -> Mapping[str, Any]:
        """The columns that say which medium each token shows; none without media."""
        self.showing(blobs)
        return {}

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files."""
        self.tokenizer.save_pretrained(folder)

    def prompt(self, text: str) -> list[int]:
        """Tokens of a text that begins a sequence, with what the tokenizer puts before it, unless the text spells that itself.

        An empty one, where nothing is put before it, is the end token, as if a text before it had ended.
        """
        tokens = self.encode(text)
        before = [] if self.before == tokens[: len(self.before)] else self.before
        return [*before, *tokens, *self.after] or [self.end]

    def expanded(self, text: str) -> list[int]:
        """Tokens of a text within a sequence, its media expanded, of which a model of text has none."""
        return self.encode(text)

    def following(self, text: str) -> list[int]:
        """Tokens of a text that comes after another, without the space that a tokenizer may begin every text with."""
        after = self.encode("\n" + text) if self.spaced else []
        known = len(self._line)
        return after[known:] if self.spaced and after[:known] == self._line else self.encode(text)

    def pair(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """Tokens of a prompt and of what follows it.

        Both are encoded apart, because a generator too is given the prompt's tokens alone; encoded together, characters could
        merge across the border.
        """
        return self.prompt(prompt), self.encode(completion) if self.encoder else self.following(completion)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of tokens; special tokens are left out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def raw(self, tokens: Iterable[int]) -> str:
        """Text of tokens with the special ones but for those that end an answer, which are no part of it."""
        said = [token for token in tokens if token not in self.ends]
        return self.tokenizer.decode(said, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that :meth:`decode` leaves out."""
        added = {token for token, piece in self.tokenizer.added_tokens_decoder.items() if piece.special}
        return frozenset(added.union(self.tokenizer.all_special_ids))

    def stops(self, sampling: Sampling) -> frozenset[int]:
        """Tokens at which an answer ends, special ones that a stop string spells among them: no text ever holds those."""
        spelled = {token for token in self.special_ids if self.tokenizer.convert_ids_to_tokens(token) in sampling.stop}
        return self.ends.union(sampling.stop_tokens, spelled if sampling.stop else ())

    def render_chat(self, messages: Sequence[Message], arguments: Message = NONE) -> str:
        """Text of a conversation, marks included, up to where the assistant's answer begins.

        Args:
            arguments: what the template is given besides, such as ``enable_thinking`` or ``tools``.

        Raises:
            ModelError: there is no chat template, or it refuses the conversation.
        """
        given = self.tokenizer.chat_template, [dict(message) for message in messages], dict(arguments)
        known, asked = self._asked
        if given != known:
            asked = self._written(messages, arguments, True)
            self._asked = given, asked
        return asked

    def render_answer(self, messages: Sequence[Message], answer: Message, arguments: Message = NONE) -> str:
        """The assistant's ``answer`` as the template writes it after :meth:`render_chat`, up to and with its end token.

        Raises:
            ModelError: as :meth:`render_chat`; the template writes an answer in another way than it asks for one; or the
                answer spells a mark that is between turns.
        """
        asked, template = self.render_chat(messages, arguments), self.template(arguments)
        if mark := template.marks("assistant").search(str(dict(answer))):
            raise ModelError(f"the answer spells {mark[0]}, which the chat template writes between turns; leave it out")
        whole = self._written([*messages, answer], arguments, False)
        if not whole.startswith(asked):
            raise ModelError(
                f"the chat template asks for an answer by {asked[-40:]!r} and writes a given one in another way; set "
                "chat=false and spell the turn in the templates, or mend chat_template in the model folder"
            )
        written = whole[len(asked) :]
        end = re.search("|".join(re.escape(self.tokenizer.decode([end])) for end in sorted(self.ends)), written)
        written = written[: end.end()] if end else written
        template.require_whole([answer], arguments, written, learned=True)
        return written

    @cached_property
    def special(self) -> frozenset[str]:
        """Texts that are control tokens wherever they are."""
        added = self.tokenizer.added_tokens_decoder
        return frozenset(str(added[token]) if token in added else self.decode([token]) for token in self.special_ids) - {""}

    def template(self, arguments: Message = NONE) -> ChatTemplate:
        """The chat template that arguments (``tools``) choose. Raises ModelError where there is none."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError("the tokenizer has no chat template; set chat=false or add chat_template to the model folder")
        with blame(ModelError, "the chat template"):
            source = str(self.tokenizer.get_chat_template(None, arguments.get("tools") or None))
        if source not in self._templates:
            added = self.tokenizer.added_tokens_decoder
            ends = {str(added[end]) for end in self.ends if end in added}
            self._templates[source] = ChatTemplate(self.tokenizer, source, self.parts, self.special, ends)
        return self._templates[source]

    def parts(self, content: str) -> list[Message]:
        """A message's content in parts."""
        return [{"type": "text", "text": content}]

    def _written(self, messages: Sequence[Message], arguments: Message, asking: bool) -> str:
        template = self.template(arguments)
        turns, given = template.fitted(messages, arguments)
        try:
            written = str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asking, **given))
        except Exception as error:  # a template raises what it likes
            raise ModelError(f"the chat template refuses the conversation: {error}") from error
        template.require_whole(messages, arguments, written)
        return written


def _refuse_half(text: str) -> str:
    """The text. Raises ModelError where it has half a character."""
    if half := _HALF.search(text):
        raise ModelError(
            f"half a character (a lone surrogate, {half[0]!r}) after {text[: half.start()][-20:]!r}; mend the text"
        )
    return text


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Special tokens that a tokenizer puts before and after a text."""
    bare, whole = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    for at in range(len(whole) - len(bare) + 1):
        if whole[at : at + len(bare)] == bare:
            return list(whole[:at]), list(whole[at + len(bare) :])
    raise ModelError(f"the tokenizer reads a text in another way with its special tokens ({whole}) than without ({bare})")


def train_tokenizer(corpus: Iterable[str], vocabulary: int, marks: Sequence[str] = ()) -> Text:
    """A byte-level BPE of at most ``vocabulary`` pieces fitted to a corpus, with further ``marks`` that are a token each.

    It is a Qwen2 tokenizer (each digit is a token, so numbers keep their places) with Qwen2's marks, because loaders choose
    the tokenizer class by the model's type and would otherwise split text in another way than it was trained.
    """
    blank = Qwen2Tokenizer()
    made = blank.train_new_from_iterator(
        map(_refuse_half, corpus),
        vocabulary,
        new_special_tokens=[END, START, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.add_special_tokens({"eos_token": END, "pad_token": PAD})
    made.chat_template = CHAT_TEMPLATE
    return Text(made)
