"""A task as an annotator sees it.

What is sent is listed field by field. Everything else stays here: what is gold or asked again, how and why an item was
chosen, which model wrote a response, and which response is really the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from penstock.core.blobs import Blob
from penstock.feedback.records import JUDGEMENT, Lease, Response, Task
from penstock.feedback.service.markdown import html_of

PROMPT = "p"
"""The place of the prompt in addresses of media; those of responses are numbers."""
BESIDE = ("edit", "critique", "skip", "flag")
"""Kinds that may be sent for every task, besides the judgement that its form asks for."""


def shown(task: Task, lease: Lease, handle: str, now: float) -> dict[str, Any]:
    """A leased task in the order of its lease. ``deadline`` is in seconds from now."""
    responses = [task.item.responses[index] for index in lease.order]
    return {
        "id": handle,
        "form": task.form,
        "prompt": conversation(task.item.prompt) | {"media": _media(handle, PROMPT, task.item.blobs)},
        "responses": [
            text_and_html(one.text) | {"media": _media(handle, str(place), one.blobs)} for place, one in enumerate(responses)
        ],
        "axes": list(task.axes),
        "scale": list(task.scale),
        "guideline": task.guideline,
        "deadline": max(0.0, lease.deadline - now),
        "answer_kinds": [JUDGEMENT[task.form], *BESIDE],
    }


def _media(handle: str, place: str, blobs: Sequence[Blob]) -> list[dict[str, str]]:
    """Where the page finds images, sounds and videos: their addresses tell neither what they hold nor whose they are."""
    return [{"url": f"/api/media/{handle}.{place}.{index}", "kind": blob.kind} for index, blob in enumerate(blobs)]


def in_words(response: Response) -> str:
    """The beginning of a response in lists, with what else it holds."""
    media = ", ".join(f"{blob.kind}, {blob.size:,} bytes" for blob in response.blobs)
    return response.text[:400] + (f" [{media}]" if media else "")


def medium(task: Task, order: Sequence[int], place: str, index: int) -> Blob | None:
    """What an address of :func:`shown` stands for; None for none."""
    parts = {PROMPT: task.item.blobs} | {str(at): task.item.responses[response].blobs for at, response in enumerate(order)}
    blobs = parts.get(place, ())
    return blobs[index] if index < len(blobs) else None


def conversation(prompt: str) -> dict[str, Any]:
    """A prompt as its text and its turns; a ``role`` is that of a chat message, or empty."""
    return {"text": prompt, "turns": [{"role": role, "html": html_of(text, breaks=True)} for role, text in turns_of(prompt)]}


def text_and_html(text: str) -> dict[str, str]:
    return {"text": text, "html": html_of(text, breaks=True)}


LABEL = re.compile(r"(?:\A\s*|\n\s*\n)(Human|User|Assistant|AI|System):[ \t]*", re.IGNORECASE)
MARKED = re.compile(
    r"<\|(?:im_start|start_header_id)\|>(\w+)(?:<\|end_header_id\|>)?\s*(.*?)\s*(?:<\|(?:im_end|eot_id)\|>|\Z)", re.DOTALL
)
"""A turn as the chat templates of Qwen and of Llama write it."""
ROLES = {"human": "user", "ai": "assistant"}


def turns_of(prompt: str) -> list[tuple[str, str]]:
    """(role, text) of each turn of a conversation: chat messages as JSON, turns of a chat template, or paragraphs that begin
    with ``Human:`` and ``Assistant:``. A plain text is one turn without a role; an empty last turn is left out."""
    messages = _messages(prompt)
    if not messages and (found := MARKED.findall(prompt)):
        messages = [(role, text) for role, text in found]
    if not messages and LABEL.match(prompt):
        parts = LABEL.split(prompt)[1:]
        messages = [(role, text.strip()) for role, text in zip(parts[::2], parts[1::2], strict=True)]
    turns = [(ROLES.get(role.lower(), role.lower()), text) for role, text in messages]
    if turns and not turns[-1][1]:
        turns.pop()
    return turns or [("", prompt)]


def _messages(prompt: str) -> list[tuple[str, str]]:
    """Chat messages in JSON; none where it is something else, or not all of them are texts."""
    try:
        found = json.loads(prompt) if prompt.lstrip()[:1] == "[" else []
        return [(str(one["role"]), one["content"]) for one in found if one["content"].strip()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
