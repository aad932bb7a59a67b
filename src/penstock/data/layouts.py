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

SYSTEM = ("system", "system_prompt")
"""Columns with the text of a system turn."""
ANSWERS = ("completion", "chosen", "rejected")

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
    "text": 'a plain text: prompt="{{ text }}" to be answered; prompt="", completion="{{ text }}" to be imitated',
    "instruction context response": 'Dolly: prompt="{{ instruction }}\\n{{ context }}", completion="{{ response }}"',
    "prompt response": 'completion="{{ response }}"',
    "system_prompt question response": "OpenOrca: make messages of the three: system, user, assistant",
    "data": "UltraChat as published: of the texts in data every second is the assistant's; make messages of them",
    "history human_ref_A human_ref_B labels": "SHP: prompt is history; labels 1 means that human_ref_A is chosen",
    "info summaries choice": "TL;DR comparisons: prompt is the post in info; summaries[choice]['text'] is chosen",
    "message_tree_id text role": "OpenAssistant: follow parent_id from an answer to its root and make messages of the texts",
    "context question answers": 'SQuAD: prompt="{{ context }}\\n{{ question }}", completion="{{ answers.text[0] }}"',
    "question choices": "multiple choice: list the choices in the prompt, and make the right one's letter the answer",
    "question answer choices": "multiple choice: list the choices in the prompt, and make the letter of its place the answer",
    "Problem Answer": 'AIME: prompt="{{ Problem }}", and answer: "{{ Answer }}" in a column answer',
    "document summary": 'prompt="{{ document }}\\nTL;DR:", completion="{{ summary }}"',
    "article highlights": 'prompt="{{ article }}\\nTL;DR:", completion="{{ highlights }}"',
    "inputs targets": 'prompt="{{ inputs }}", completion="{{ targets }}"',
    "question response_j response_k": 'prompt="{{ question }}", chosen="{{ response_j }}", rejected="{{ response_k }}"',
    "prompt response helpfulness": "HelpSteer: a score a response; of the responses to a prompt the best is chosen",
    "question input_output": "APPS and TACO: prompt is the question; the reward code reads input_output",
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
    if is_messages(row.get("conversation")):
        row = {"messages": row["conversation"], **row}
    single = {name: [row[name]] for name in ANSWERS if isinstance(row.get(name), Mapping) and "role" in row[name]}
    row = _of_transcript({**row, **single}, chat)
    if "messages" not in row or {"prompt", "completion"} <= row.keys():
        fits = (read for columns, read in LAYOUTS.items() if row.keys() >= {*columns.split()})
        row = next(fits, lambda row, chat, where: row)(dict(row), chat, where)
    return _with_system(row, chat, where)


def _with_system(row: DataRow, chat: bool, where: str) -> DataRow:
    """The row with what its column ``system`` says as the first turn, unless there is one."""
    name = next((name for name in SYSTEM if isinstance(row.get(name), str) and row[name].strip()), None)
    column = "messages" if "messages" in row and not {"prompt", "completion"} <= row.keys() else "prompt"
    said = row.get(column)
    if name is None or not said or not (isinstance(said, str) or is_messages(said)):
        return row
    if isinstance(said, str):
        if not chat:
            together = f'prompt="{{{{ {name} }}}}\\n{{{{ prompt }}}}"'
            raise DataError(f"{where}: nobody reads the column {name} before a bare prompt; set chat=true, or {together}")
        said = [{"role": "user", "content": said}]
    before = said[0].get("role") if isinstance(said[0], Mapping) else None
    return row if before in ("system", "developer") else {**row, column: [{"role": "system", "content": row[name]}, *said]}


def _of_transcript(row: DataRow, chat: bool) -> DataRow:
    """The row of a transcript of HH-RLHF as its prompt: as turns under ``chat``, and not said again in the answers."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not TRANSCRIPT.match(prompt):
        return row
    answers = {name: row[name].removeprefix(prompt) for name in ANSWERS if isinstance(row.get(name), str)}
    if not chat:
        return {**row, **answers}
    turns = _turns(prompt)
    if turns[-1]["role"] == "assistant" and not turns[-1]["content"].strip():
        del turns[-1]
    return {**row, "prompt": turns, **{name: said.strip() for name, said in answers.items()}}


def _sharegpt(row: Row, chat: bool, where: str) -> Row:
    """``conversations`` of ShareGPT; LLaMA-Factory's ``chosen`` and ``rejected`` with them are single turns."""
    if not isinstance(row["conversations"], list | tuple):
        raise DataError(f"{where}: conversations must be a list of turns, not {row['conversations']!r:.80}")
    said = [_spoken(turn, f"{where}: conversations[{place}]") for place, turn in enumerate(row["conversations"])]
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
    """``instruction`` and ``input``, joined by a line feed as LLaMA-Factory does; where a data set has a column ``system`` or
    ``history``, all its rows are messages."""
    if is_messages(row.get("chosen")) and len(row["chosen"]) > 1:  # whole conversations, of which it is a part
        return _pair({name: value for name, value in row.items() if name not in ("instruction", "input")}, chat, where)
    texts = [row[name] for name in ("instruction", "input") if row.get(name) not in (None, "")]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: instruction and input of Alpaca are texts, not {texts!r:.80}")
    prompt: Any = "\n".join(texts)
    if row.get("prompt", prompt) != prompt:
        raise DataError(f'{where}: both prompt and instruction; leave one column out, or set prompt="{{{{ instruction }}}}"')
    if "system" in row or "history" in row:
        before = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        for pair in row.get("history") or ():
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise DataError(f"{where}: history of Alpaca is a list of [question, answer], not {pair!r:.80}")
            before += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
        prompt = [*before, {"role": "user", "content": prompt}]
    return {**row, "prompt": prompt, **({"completion": row["output"]} if "output" in row else {})}


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
    chosen, rejected, prompt = row["chosen"], row["rejected"], row.get("prompt")
    if is_messages(chosen) and is_messages(rejected):
        return {**row, **_pair_of_messages(prompt, chosen, rejected, where)}
    if not isinstance(chosen, str) or not isinstance(rejected, str) or "messages" in row:
        return row
    if isinstance(prompt, str) and len(prompt.strip()) > 3 and chosen.startswith(prompt) and rejected.startswith(prompt):
        raise DataError(f"{where}: chosen and rejected both begin with the prompt; say it once: leave it out of both, or leave "
                        "the column prompt out")  # fmt: skip
    if "prompt" in row:
        return row
    if TRANSCRIPT.match(chosen) and TRANSCRIPT.match(rejected):
        return {**row, **_pair_of_transcripts(chosen, rejected, chat, where)}
    return {**row, **_pair_of_texts(row, chosen, rejected, where)}


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
    before, other = (list(map(_there, answer[:-1])) for answer in (chosen, rejected))
    if before != other:
        raise DataError(f"{where}: chosen and rejected have different messages before the last one; give both the same")
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(map(_there, prompt or ()))
    if said and before and before[-len(said) :] != said:  # of a preference that repeats it, perhaps after a system turn
        raise DataError(f"{where}: chosen begins with other messages than the prompt's; leave them out of one of the two")
    if not said and not before:
        raise DataError(f"{where}: no prompt, and chosen and rejected are single messages; give the prompt")
    return {"prompt": before or said, "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _there(message: Any) -> Any:
    """A message without what is null."""
    return {key: value for key, value in message.items() if value is not None} if isinstance(message, Mapping) else message


def _pair_of_transcripts(chosen: str, rejected: str, chat: bool, where: str) -> Row:
    """Two transcripts of HH-RLHF, split before the first answer in which they differ. Under ``chat`` that must be the last."""
    if chat:
        return _pair_of_messages(None, _turns(chosen), _turns(rejected), where)
    pairs = zip(_turns(chosen), _turns(rejected), strict=False)
    shared = next((at for at, (first, second) in enumerate(pairs) if first != second), None)
    turn = None if shared is None else list(TRANSCRIPT.finditer(chosen))[shared]
    if turn is None or turn[1] != "Assistant" or _turns(rejected)[shared or 0]["role"] != "assistant":
        raise DataError(f"{where}: chosen and rejected do not differ first in an answer; leave the row out")
    at = turn.start() + len("\n\nAssistant:")
    return {"prompt": chosen[:at], "chosen": chosen[at:], "rejected": rejected[at:]}


def _turns(transcript: str) -> list[Message]:
    pieces = TRANSCRIPT.split(transcript)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said} for who, said in zip(pieces[1::2], pieces[2::2], strict=True)]


def common_start(first: str, second: str) -> int:
    """Characters that both texts begin with. As in TRL's implicit prompt a space at the end is the answers'; so is a word of
    which the end alone differs."""
    shared = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    while any(_in_a_word(text, shared) for text in (first, second)):
        shared -= 1
    return shared - 1 if first[:shared].endswith(" ") else shared


def _in_a_word(text: str, at: int) -> bool:
    """Whether there are letters on both sides of a place, of a script that puts spaces between words."""
    return 0 < at < len(text) and all(letter.isalnum() and letter < "\u2e80" for letter in text[at - 1 : at + 1])


LAYOUTS: dict[str, Callable[[Row, bool, str], Row]] = {
    "conversations": _sharegpt,
    "input preferred_output non_preferred_output": _openai_preference,
    "instruction": _alpaca,
    "reward_model prompt": _verl,
    "completions labels": _steps,
    "chosen rejected": _pair,
}
"""Columns by which a layout is known, and what reads it; the first that fits."""
