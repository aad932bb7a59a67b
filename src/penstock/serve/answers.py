"""Answers in the shapes of OpenAI's completions and chat completions, whole and in chunks.

Beyond those shapes every choice carries ``weight_versions``: the version that produced each of its tokens; and, where it was
asked for, ``token_ids``. Log-probs are those of the whole distribution at the request's temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.types import FloatArray, IntArray, Sample
from penstock.models.unfold import Unfolding, bytes_of
from penstock.serve.parsing import ParsedRequest
from penstock.serve.service import Ended, Service, Token
from penstock.web.chat import Completion


class Answer:
    """One answer under way."""

    def __init__(self, request: ParsedRequest, service: Service) -> None:
        self.request, self.service = request, service
        self.body = Completion(service.name, request.chat, request.usage)
        self.read, self.written = sum(map(len, request.prompts)), 0
        """Tokens of the prompts, and of the answers so far."""
        count, stops = len(request.prompts) * request.samples, service.text.stops(request.sampling)
        self._texts = [Unfolding(service.text, request.sampling.stop, stops) for _ in range(count)]
        self._sent = [False] * count

    # ---- whole

    def whole(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The body of an answer that is given at once."""
        choices = []
        for index, sample in enumerate(samples):
            generated = sample.action_T
            tokens, logps, versions = sample.tokens_T[generated], sample.logp_T[generated], sample.version_T[generated]
            self.written += len(tokens)
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
        shown = {"prompt_token_ids": self._prompt_of(0).tolist()} if self.request.token_ids and self.request.chat else {}
        return self.body.whole(choices, self.read, self.written) | shown

    # ---- in chunks

    def opening(self) -> list[dict[str, Any]]:
        """Chunks that come before the first token: a chat names the role."""
        if not self.request.chat:
            return []
        return [self.body.delta(index, {"role": "assistant", "content": ""}) for index in range(self.request.samples)]

    def chunks(self, events: Sequence[Token | Ended]) -> list[dict[str, Any]]:
        """One chunk for each choice that something happened to."""
        made = []
        for index in dict.fromkeys(event.index for event in events):
            mine = [event for event in events if event.index == index]
            generated = [event for event in mine if isinstance(event, Token)]
            ended = next((event.sample for event in mine if isinstance(event, Ended)), None)
            tokens = [event.token for event in generated]
            self.written += len(tokens)
            text = self._texts[index]
            piece = text.add(tokens) + (text.end(ended.text) if ended is not None else "")
            choice = {"delta": {"content": piece}} if self.request.chat else {"text": piece}
            choice |= self._common(index, tokens, [event.logp for event in generated], [event.version for event in generated])
            if self.request.token_ids and not self._sent[index]:
                choice["prompt_token_ids"] = self._prompt_of(index).tolist()
                self._sent[index] = True
            made.append(self.body.chunk(choice | {"finish_reason": ended.finish if ended is not None else None}))
        return made

    def closing(self) -> list[dict[str, Any]]:
        """Chunks after the last choice has ended."""
        return self.body.closing(self.read, self.written)

    # ---- parts

    def _prompt_of(self, index: int) -> IntArray:
        return self.request.prompts[index // self.request.samples]

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
