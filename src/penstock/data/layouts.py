"""Published layouts of rows, brought into one: ``messages`` or ``prompt``, ``completion``, ``chosen`` and ``rejected``, each a
text or a list of messages. ``docs/your_data.md`` shows a row of each and what it becomes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.core.errors import DataError
from penstock.core.messages import SPEAKERS, Message, is_messages
from penstock.data.rows import DataRow

Row = dict[str, Any]
TRANSCRIPT = re.compile(r"\n\n(Human|Assistant): ?")
"""Where a turn begins in the transcripts of HH-RLHF."""

ASKING = ("question", "query", "instruction", "input", "problem", "user", "post", "document", "context", "system")
"""Columns that hold what is asked where a data set has no column ``prompt``."""

ELSEWHERE = {
    "question answer": 'GSM8K and the like: prompt="{{ question }}", completion="{{ answer }}"',
    "problem solution": 'MATH and the like: prompt="{{ problem }}", completion="{{ solution }}"',
    "problem answer": 'prompt="{{ problem }}", completion="{{ answer }}"',
    "query response": 'prompt="{{ query }}", completion="{{ response }}"',
    "query answers tools": "xLAM: make messages with tool_calls of query and answers, and keep tools",
    "input output": 'prompt="{{ input }}", completion="{{ output }}"',
    "instruction completions models": "UltraFeedback: keep the best and the worst rated of completions as chosen and rejected "
    "(argilla/ultrafeedback-binarized-preferences has them)",
    "prompt answers": "Nectar: of answers the one with rank 1 is chosen and a later one rejected",
    "response_1 response_2 preference_strength": "HelpSteer2: below 0 response_1 is chosen, above 0 response_2; leave ties out",
    "response1 response2 overall_preference": "HelpSteer3: below 0 response1 is chosen, above 0 response2; leave ties out",
    "response_0 response_1 better_response_id": "PKU-SafeRLHF: chosen is response_{better_response_id}, "
    "or by safer_response_id",
    "segments": "Axolotl's segments: put what has label true into completion and what comes before it into prompt",
    "chat": "Glaive: split chat at USER and ASSISTANT into messages",
    "text": 'a plain text: prompt="", completion="{{ text }}"',
}
"""Columns of data sets that need a decision, and what to do with them."""


def advice(row: DataRow) -> str:
    """What to do with a row of a layout that is known but not read, or nothing."""
    fits = [columns for columns in ELSEWHERE if row.keys() >= {*columns.split()}]
    return f"; {ELSEWHERE[max(fits, key=lambda columns: len(columns.split()))]}" if fits else ""


def arranged(row: DataRow, chat: bool, where: str) -> DataRow:
    """The row with the columns that templates read by default, of whichever layout it is. What is there already stays.

    Args:
        chat: whether texts go through a chat template, so that a transcript is its turns.

    Raises:
        DataError: it is of a layout whose rules it breaks; names it.
    """
    if "kto_tag" in row:  # LLaMA-Factory's, in any of its layouts
        row = {"label": row["kto_tag"], **row}
    if "messages" in row and not ({"prompt", "completion"} <= row.keys()):
        return row
    for columns, read in LAYOUTS.items():
        if row.keys() >= {*columns.split()}:
            return read(dict(row), chat, where)
    return row


def _sharegpt(row: Row, chat: bool, where: str) -> Row:
    """``conversations`` of ShareGPT, with LLaMA-Factory's ``system``; its ``chosen`` and ``rejected`` are single turns."""
    if not isinstance(row["conversations"], list | tuple):
        raise DataError(f"{where}: conversations must be a list of turns, not {row['conversations']!r:.80}")
    said = [_spoken(turn, f"{where}: conversations[{place}]") for place, turn in enumerate(row["conversations"])]
    said = [{"role": "system", "content": row["system"]}, *said] if row.get("system") else said
    answers = {name: [_spoken(row[name], where)] for name in ("chosen", "rejected") if isinstance(row.get(name), Mapping)}
    return {**row, "prompt": said, **answers} if answers else {**row, "messages": said}


def _spoken(turn: Any, where: str) -> Any:
    """A turn (``from``, ``value``) as a message; of the speaker ``function_call`` the value is a call in JSON, or a list."""
    if not isinstance(turn, Mapping) or "role" in turn:
        return turn
    who, said = turn.get("from"), turn.get("value")
    if not isinstance(said, str) or who not in (*SPEAKERS, "function_call"):
        raise DataError(f'{where} is {turn!r:.80}; ShareGPT has {{"from": "human" or "gpt", "value": "…"}} '
                        f"(also {', '.join((*SPEAKERS, 'function_call'))})")  # fmt: skip
    more = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if who != "function_call":
        return {"role": SPEAKERS[who], "content": said, **more}
    try:
        calls = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: a function_call holds JSON with name and arguments ({error})") from error
    return {"role": "assistant", "tool_calls": calls if isinstance(calls, list) else [calls], **more}


def _alpaca(row: Row, chat: bool, where: str) -> Row:
    """``instruction`` and ``input``, joined by a line feed as LLaMA-Factory does; ``system`` and ``history`` make messages."""
    texts = [row[name] for name in ("instruction", "input") if row.get(name) not in (None, "")]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: instruction and input of Alpaca are texts, not {texts!r:.80}")
    prompt: Any = "\n".join(texts)
    if row.get("system") or row.get("history"):
        before = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        for pair in row.get("history") or ():
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise DataError(f"{where}: history of Alpaca is a list of [question, answer], not {pair!r:.80}")
            before += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
        prompt = [*before, {"role": "user", "content": prompt}]
    return {"prompt": prompt, **({"completion": row["output"]} if "output" in row else {}), **row}


def _openai_preference(row: Row, chat: bool, where: str) -> Row:
    """``input`` with messages and tools, ``preferred_output`` and ``non_preferred_output`` of OpenAI's preference format."""
    given = row["input"]
    if not isinstance(given, Mapping) or not is_messages(given.get("messages")):
        raise DataError(f'{where}: input of OpenAI\'s preference format is {{"messages": […]}}, not {given!r:.80}')
    known = ("messages", "tools", "parallel_tool_calls")
    if unread := [key for key, value in given.items() if key not in known and value is not None]:
        raise DataError(f'{where}: nobody reads "{unread[0]}" of input; it may hold {", ".join(known)}')
    tools = {"tools": given["tools"]} if given.get("tools") else {}
    pair = {"prompt": given["messages"], "chosen": row["preferred_output"], "rejected": row["non_preferred_output"]}
    return {**tools, **row, **pair}


def _verl(row: Row, chat: bool, where: str) -> Row:
    """``reward_model`` of verl: its ``ground_truth`` is the answer where rules judge it."""
    judged = row["reward_model"]
    if isinstance(judged, Mapping) and str(judged.get("style")).startswith("rule") and judged.get("ground_truth") is not None:
        return {"answer": judged["ground_truth"], **row}
    return row


def _steps(row: Row, chat: bool, where: str) -> Row:
    """TRL's stepwise supervision: ``completions`` are the steps of one solution, ``labels`` say which are right."""
    if all(isinstance(step, str) for step in row["completions"]) and isinstance(row["labels"], list | tuple):
        return {"steps": row["completions"], **row}
    return row


def _pair(row: Row, chat: bool, where: str) -> Row:
    """``chosen`` and ``rejected`` that say the prompt themselves: TRL's implicit prompt, and transcripts of HH-RLHF."""
    chosen, rejected = row["chosen"], row["rejected"]
    if is_messages(chosen) and is_messages(rejected):
        return {**row, **_pair_of_messages(row.get("prompt"), chosen, rejected, where)}
    if isinstance(chosen, str) and isinstance(rejected, str) and "prompt" not in row and "messages" not in row:
        if TRANSCRIPT.match(chosen) and TRANSCRIPT.match(rejected):
            return {**row, **_pair_of_transcripts(chosen, rejected, chat, where)}
        return {**row, **_pair_of_texts(row, chosen, rejected, where)}
    return row


def _pair_of_texts(row: Row, chosen: str, rejected: str, where: str) -> Row:
    """Two texts that begin with the same prompt. Where another column asks, or they share nothing, the prompt is elsewhere."""
    shared = common_start(chosen, rejected)
    if asking := [name for name in ASKING if name in row]:
        raise DataError(f'{where}: chosen and rejected, but no column prompt; is it prompt="{{{{ {asking[0]} }}}}"?')
    if not chosen[:shared].strip():
        raise DataError(f"{where}: no column prompt, and chosen and rejected do not begin with the same words; give the prompt")
    return {"prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:]}


def _pair_of_messages(prompt: Any, chosen: Sequence[Message], rejected: Sequence[Message], where: str) -> Row:
    """The answers apart from what comes before them, which may be said in the prompt, in both answers, or twice."""
    before = list(chosen[:-1])
    if before != list(rejected[:-1]):
        raise DataError(f"{where}: chosen and rejected have different messages before the last one; give both the same")
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or ())
    if said and before and before[-len(said) :] != said:  # of a preference that repeats it, perhaps after a system turn
        raise DataError(f"{where}: chosen begins with other messages than the prompt's; leave them out of one of the two")
    if not said and not before:
        raise DataError(f"{where}: no prompt, and chosen and rejected are single messages; give the prompt")
    return {"prompt": before or said, "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _pair_of_transcripts(chosen: str, rejected: str, chat: bool, where: str) -> Row:
    """Two transcripts of HH-RLHF, split before the last answer."""
    found = _pair_of_messages(None, _turns(chosen), _turns(rejected), where)
    if chat or any(found[name][0]["role"] != "assistant" for name in ("chosen", "rejected")):
        return found
    at = chosen.rfind("\n\nAssistant:") + len("\n\nAssistant:")
    return {"prompt": chosen[:at], "chosen": chosen[at:], "rejected": rejected[at:]}


def _turns(transcript: str) -> list[Message]:
    pieces = TRANSCRIPT.split(transcript)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said} for who, said in zip(pieces[1::2], pieces[2::2], strict=True)]


def common_start(first: str, second: str) -> int:
    """Characters that both texts begin with, up to the last space, so that no word is cut in two (TRL's implicit prompt)."""
    shared = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    return first.rfind(" ", 0, shared) + 1 if shared else 0


LAYOUTS: dict[str, Callable[[Row, bool, str], Row]] = {
    "conversations": _sharegpt,
    "input preferred_output non_preferred_output": _openai_preference,
    "instruction": _alpaca,
    "reward_model prompt": _verl,
    "completions labels": _steps,
    "chosen rejected": _pair,
}
"""Columns by which a layout is known, and what reads it; the first that fits."""
