"""Answers in the shapes of OpenAI's completions and chat completions, whole and in chunks.

Beyond those shapes every choice carries ``weight_versions``: the version that produced each of its tokens; and, where it was
asked for, ``token_ids``. Log-probs are those of the whole distribution at the request's temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.types import IntArray, Sample
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
            columns = (column[sample.action_T].tolist() for column in (sample.tokens_T, sample.logp_T, sample.version_T))
            generated = [Token(index, *each) for each in zip(*columns, strict=True)]
            if self.request.logprobs:
                self._texts[index].add(token.token for token in generated)
            message = {"role": "assistant", "content": sample.text, "refusal": None}
            said = {"message": message} if self.request.chat else {"text": sample.text}
            choices.append(self._choice(index, said, generated, sample))
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
            text = self._texts[index]
            piece = text.add(token.token for token in generated) + (text.end(ended.text) if ended is not None else "")
            said = {"delta": {"content": piece}} if self.request.chat else {"text": piece}
            choice = self._choice(index, said, generated, ended)
            if self.request.token_ids and not self._sent[index]:
                choice["prompt_token_ids"] = self._prompt_of(index).tolist()
                self._sent[index] = True
            made.append(self.body.chunk(choice))
        return made

    def closing(self) -> list[dict[str, Any]]:
        """Chunks after the last choice has ended."""
        return self.body.closing(self.read, self.written)

    # ---- parts

    def _prompt_of(self, index: int) -> IntArray:
        return self.request.prompts[index // self.request.samples]

    def _choice(self, index: int, said: dict[str, Any], generated: Sequence[Token], ended: Sample | None) -> dict[str, Any]:
        """What one of the samples has said with some tokens, the last ones where it has ``ended``."""
        self.written += len(generated)
        choice = {**said, "index": index, "logprobs": None, "weight_versions": [token.version for token in generated]}
        if self.request.logprobs:
            choice["logprobs"] = self._logprobs(index, generated)
        if self.request.token_ids:
            choice["token_ids"] = [token.token for token in generated]
        return choice | {"finish_reason": ended.finish if ended is not None else None}

    def _logprobs(self, index: int, generated: Sequence[Token]) -> dict[str, Any]:
        text = self.service.text
        spelled = [text.tokenizer.decode([token.token]) for token in generated]
        if self.request.chat:
            content = [
                {"token": piece, "logprob": one.logp, "bytes": bytes_of(one.token, piece, text), "top_logprobs": []}
                for one, piece in zip(generated, spelled, strict=True)
            ]
            return {"content": content, "refusal": None}
        places = self._texts[index].places  # of all tokens so far, of which these are the last
        offsets, logps = places[len(places) - len(spelled) :], [token.logp for token in generated]
        return {"tokens": spelled, "token_logprobs": logps, "top_logprobs": None, "text_offset": offsets}
