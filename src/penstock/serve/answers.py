"""Answers in the shapes of OpenAI's completions and chat completions, whole and in chunks.

Beyond those shapes every choice carries ``weight_versions``: the version that produced each of its tokens; and, where it was
asked for, ``token_ids``. Log-probs are those of the whole distribution at the request's temperature.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.core.types import FloatArray, IntArray, Sample
from penstock.models.unfold import Unfolding, bytes_of
from penstock.serve.parsing import ParsedRequest
from penstock.serve.service import Ended, Service, Token


@dataclass
class Answer:
    """One answer under way."""

    request: ParsedRequest
    service: Service
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    completion_tokens: int = 0

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.request.chat else 'cmpl'}-{secrets.token_hex(12)}"
        count = len(self.request.prompts) * self.request.samples
        stops = self.service.text.stops(self.request.sampling)
        self._texts = [Unfolding(self.service.text, self.request.sampling.stop, stops) for _ in range(count)]
        self._sent = [False] * count

    # ---- whole

    def whole(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The body of an answer that is given at once."""
        choices = []
        for index, sample in enumerate(samples):
            generated = sample.action_T
            tokens, logps, versions = sample.tokens_T[generated], sample.logp_T[generated], sample.version_T[generated]
            self.completion_tokens += len(tokens)
            if self.request.logprobs:
                self._texts[index].add(tokens.tolist())
            content = {"message": {"role": "assistant", "content": sample.text, "refusal": None}}
            choices.append(
                (content if self.request.chat else {"text": sample.text})
                | self._common(index, tokens, logps, versions)
                | {"finish_reason": sample.finish}
            )
            if self.request.token_ids and not self.request.chat:
                choices[-1]["prompt_token_ids"] = self._prompt_of(index).tolist()
        body = self._head("chat.completion" if self.request.chat else "text_completion")
        if self.request.token_ids and self.request.chat:
            body["prompt_token_ids"] = self.request.prompts[0].tolist()
        return body | {"choices": choices, "usage": self.usage()}

    # ---- in chunks

    def opening(self) -> list[dict[str, Any]]:
        """Chunks that come before the first token: a chat names the role."""
        if not self.request.chat:
            return []
        return [
            self._chunk({"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None})
            for i in range(self.request.samples)
        ]

    def chunks(self, events: Sequence[Token | Ended]) -> list[dict[str, Any]]:
        """One chunk for each choice that something happened to."""
        made = []
        for index in dict.fromkeys(event.index for event in events):
            mine = [event for event in events if event.index == index]
            generated = [event for event in mine if isinstance(event, Token)]
            ended = next((event.sample for event in mine if isinstance(event, Ended)), None)
            tokens = [event.token for event in generated]
            self.completion_tokens += len(tokens)
            text = self._texts[index]
            piece = text.add(tokens) + (text.end(ended.text) if ended is not None else "")
            choice = {"delta": {"content": piece}} if self.request.chat else {"text": piece}
            choice |= self._common(index, tokens, [event.logp for event in generated], [event.version for event in generated])
            if self.request.token_ids and not self._sent[index]:
                choice["prompt_token_ids"] = self._prompt_of(index).tolist()
                self._sent[index] = True
            made.append(self._chunk(choice | {"finish_reason": ended.finish if ended is not None else None}))
        return made

    def closing(self) -> list[dict[str, Any]]:
        """Chunks after the last choice has ended: the usage, where it was asked for."""
        return [self._chunk(None) | {"usage": self.usage()}] if self.request.usage else []

    # ---- parts

    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.request.prompts))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
        }

    def _prompt_of(self, index: int) -> IntArray:
        return self.request.prompts[index // self.request.samples]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.service.name}

    def _chunk(self, choice: dict[str, Any] | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.request.chat else "text_completion"
        usage = {"usage": None} if self.request.usage else {}  # in every chunk; the last one fills it in
        return self._head(kind) | {"choices": [] if choice is None else [choice]} | usage

    def _common(
        self, index: int, tokens: Sequence[int] | IntArray, logps: Sequence[float] | FloatArray,
        versions: Sequence[int] | IntArray,
    ) -> dict[str, Any]:  # fmt: skip
        found: dict[str, Any] = {"index": index, "logprobs": None, "weight_versions": [int(version) for version in versions]}
        if self.request.logprobs:
            found["logprobs"] = self._logprobs(index, [int(token) for token in tokens], [float(logp) for logp in logps])
        if self.request.token_ids:
            found["token_ids"] = [int(token) for token in tokens]
        return found

    def _logprobs(self, index: int, tokens: list[int], logps: list[float]) -> dict[str, Any]:
        spelled = [self.service.text.tokenizer.decode([token]) for token in tokens]
        if self.request.chat:
            return {
                "content": [
                    {"token": piece, "logprob": logp, "bytes": bytes_of(token, piece, self.service.text), "top_logprobs": []}
                    for token, piece, logp in zip(tokens, spelled, logps, strict=True)
                ],
                "refusal": None,
            }
        places = self._texts[index].places  # of all tokens so far, of which these are the last
        offsets = places[len(places) - len(spelled) :]
        return {"tokens": spelled, "token_logprobs": logps, "top_logprobs": None, "text_offset": offsets}
