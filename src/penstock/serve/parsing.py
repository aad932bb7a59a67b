"""What an OpenAI-shaped request asks for. Fields that this server cannot honour are refused, never ignored."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.config.parts import TEMPLATE_OWN
from penstock.core.errors import DataError
from penstock.core.messages import OPENAI_KEYS, OPENAI_ROLES, read_messages
from penstock.core.types import IntArray, PromptKey, Request, SampleKey, Sampling
from penstock.serve.media import Held, Part, marked
from penstock.serve.service import Service
from penstock.serve.transport import is_tokens, tokens_of
from penstock.web.chat import STOPS, limit, streaming
from penstock.web.fields import Fields
from penstock.web.refusals import Refusal

SOURCE = "http"
"""The source in the keys of requests that came over the OpenAI routes."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields of both routes that are taken only where they change nothing, and the values that do so."""
COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = NEUTRAL | {"best_of": (1,), "echo": (False,), "suffix": ("",)}
CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = NEUTRAL | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "top_logprobs": (0,),  # log-probs are those of the tokens generated
}


@dataclass(frozen=True)
class ParsedRequest:
    """A request that has been looked at: its prompts as token ids, each to be answered ``samples`` times."""

    chat: bool
    prompts: tuple[IntArray, ...]
    media: tuple[Held, ...]
    """Of a chat's only prompt."""
    samples: int
    sampling: Sampling
    stream: bool
    usage: bool
    """Whether a stream ends with its usage."""
    logprobs: bool
    token_ids: bool

    def requests(self) -> list[Request]:
        """One for each sample; the samples of a prompt are together. With a seed they are the same every time."""
        blobs = tuple(held.blob for held in self.media)
        return [
            Request(SampleKey(PromptKey(SOURCE, 0, place), sample), tokens, self.sampling, blobs=blobs)
            for place, tokens in enumerate(self.prompts)
            for sample in range(self.samples)
        ]


async def completion(body: dict[str, Any], service: Service) -> ParsedRequest:
    """A body of ``/v1/completions``. Raises Refusal."""
    fields = _begin(body, service, COMPLETION_NEUTRAL)
    if not fields.has("prompt"):
        raise Refusal(400, "prompt is missing; give a text, a list of texts, token ids or lists of them", param="prompt")
    prompts = await _prompts(fields.take("prompt"), service)
    logprobs = fields.take("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or logprobs != 0):
        raise Refusal(
            400, "logprobs: this server gives the log-prob of the tokens generated and of no others; use logprobs=0",
            param="logprobs", code="unsupported_parameter",
        )  # fmt: skip
    return _finish(fields, service, prompts, fields.whole("max_tokens", 16, 1), logprobs is not None)


async def chat(body: dict[str, Any], service: Service) -> ParsedRequest:
    """A body of ``/v1/chat/completions``. Raises Refusal."""
    fields = _begin(body, service, CHAT_NEUTRAL)
    parts: list[Part] = []
    keys, shown = (*OPENAI_KEYS, "reasoning_content"), partial(marked, found=parts)
    messages = read_messages(fields.take("messages"), "messages", OPENAI_ROLES, keys, shown)
    if parts and service.media is None:
        raise Refusal(400, f"{parts[0].where}: this server's model reads text alone (it was started without --media)",
                      param=parts[0].where, code="unsupported_parameter")  # fmt: skip
    media = await service.media.take(parts) if service.media is not None else ()
    given = fields.object("chat_template_kwargs")
    if own := sorted(TEMPLATE_OWN & given.keys()):
        raise Refusal(400, f"chat_template_kwargs: {', '.join(own)} cannot be set", param="chat_template_kwargs")
    rendered = service.text.render_chat(messages, given)
    tokens = await asyncio.to_thread(_read, service, rendered, media)
    _fits(tokens, service)
    most = limit(fields, service.context - len(tokens))
    return _finish(fields, service, (tokens,), most, fields.flag("logprobs"), media)


def _begin(body: dict[str, Any], service: Service, neutral: Mapping[str, tuple[Any, ...]]) -> Fields:
    fields = Fields(body)
    name = fields.text("model", service.name)
    if name != service.name:
        raise Refusal(404, f'there is no model "{name[:100]}" here; this server has "{service.name}"', param="model",
                      code="model_not_found")  # fmt: skip
    for field, values in neutral.items():
        fields.neutral(field, *values)
    for label in ("user", "safety_identifier", "prompt_cache_key"):  # the caller's, which change nothing
        fields.text(label, "")
    fields.object("metadata")
    return fields


def _read(service: Service, rendered: str, media: tuple[Held, ...]) -> IntArray:
    """Tokens of a chat, its media decoded and expanded."""
    try:
        return np.asarray(service.text.rendered.showing([held.blob for held in media]).prompt(rendered), np.int32)
    except DataError as error:
        raise Refusal(400, str(error), param="messages") from error


def _finish(
    fields: Fields, service: Service, prompts: tuple[IntArray, ...], most: int, logprobs: bool,
    media: tuple[Held, ...] | None = None,
) -> ParsedRequest:  # fmt: skip
    """``media`` is given of a chat."""
    samples = fields.whole("n", 1, 1, service.limits.samples)
    if samples * len(prompts) > service.limits.samples:
        raise Refusal(400, f"{len(prompts)} prompts times n={samples} are more than {service.limits.samples} samples; "
                           "send them in several requests", param="n")  # fmt: skip
    seed = fields.whole("seed", secrets.randbits(62), -(1 << 63))
    stop_tokens = fields.take("stop_token_ids", [])
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0) or 1e-9,  # 0 leaves the most probable token alone
        top_k=min(fields.whole("top_k", 0, 0), service.vocabulary),
        min_p=fields.number("min_p", 0.0, 0.0, 0.999999),
        max_new_tokens=min(most, service.context),
        stop=fields.texts("stop", STOPS),
        stop_tokens=tuple(map(int, tokens_of(stop_tokens, "stop_token_ids", service.vocabulary))) if stop_tokens else (),
        seed=seed,
    )
    stream, usage = streaming(fields)
    token_ids = fields.flag("return_token_ids")
    fields.done()
    return ParsedRequest(media is not None, prompts, media or (), samples, sampling, stream, usage, logprobs, token_ids)


async def _prompts(value: Any, service: Service) -> tuple[IntArray, ...]:
    many = value if isinstance(value, list) and value and not is_tokens(value) else [value]
    if len(many) > service.limits.samples:
        raise Refusal(400, f"{len(many)} prompts; a request takes {service.limits.samples}", param="prompt")
    found = []
    for prompt in many:
        if isinstance(prompt, str):
            tokens = np.asarray(await asyncio.to_thread(service.text.prompt, prompt), np.int32)
        else:
            tokens = tokens_of(prompt, "prompt", service.vocabulary)
        _fits(tokens, service)
        found.append(tokens)
    return tuple(found)


def _fits(tokens: IntArray, service: Service) -> None:
    if len(tokens) >= service.context:
        raise Refusal(400, f"the prompt has {len(tokens)} tokens and the model's context is {service.context}; shorten it",
                      param="prompt", code="context_length_exceeded")  # fmt: skip
