"""What a chat template takes. A template is a program that leaves out what it does not know, so each kind of thing is handed to
it once, in words that no template changes; what does not come back is refused, or written in a way that needs none.

That way is Hermes' and Qwen2.5's (SOURCE: https://github.com/NousResearch/Hermes-Function-Calling): a call is JSON between
``<tool_call>`` tags in the assistant's text, schemas are JSON between ``<tools>`` tags in a system turn.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.core.errors import ModelError
from penstock.core.messages import THOUGHTS, Message, MessageError, arguments_of, read_message

Form = tuple[str, str | None]
"""How a call is handed over: its arguments as an ``object`` or as ``text``, and the content with it (None: no such key)."""

PROBE, NAME, ARGUMENT, VALUE = "QZ7JX", "qz7name", "qz7key", "qz7value"
"""What no template changes: a content, a function's name, and an argument with its value."""
GUARD = "\ufdd0"
"""Stands within a mark that a content spells, which is then no mark; Unicode leaves it to programs (a noncharacter)."""
USER: Message = {"role": "user", "content": "?"}
ANSWER: Message = {"role": "assistant", "content": "an answer"}
RESULT: Message = {"role": "tool", "content": PROBE, "name": NAME, "tool_call_id": "000000000"}
"""Some templates want an id of nine letters and digits."""
SCHEMA = {
    "type": "function",
    "function": {
        "name": NAME, "description": PROBE,
        "parameters": {"type": "object", "properties": {ARGUMENT: {"type": "string", "description": VALUE}}},
    },
}  # fmt: skip
SILENT = frozenset({"role", "content", "tool_call_id", "weight"})
"""Keys of a turn that no template needs to name: which call a result is of, and whether the data wants the turn learned."""
HERMES = "the chat template has no place for {}: they are written as Hermes has them, {}"


class ChatTemplate:
    """One template with the tokenizer that runs it. What it takes is found when it is first asked for, and remembered.

    Args:
        parts: a content as a list of parts, for a template that takes no texts.
        special: texts that the tokenizer reads as tokens of their own; ``ends`` are those that end an answer.
    """

    def __init__(
        self,
        tokenizer: Any,
        source: str,
        parts: Callable[[str], list[Message]],
        special: Collection[str],
        ends: Collection[str],
    ) -> None:
        self.tokenizer, self.source, self.parts, self.special, self.ends = tokenizer, source, parts, special, ends
        self._found: dict[Any, Any] = {}

    def tried(self, *messages: Message, asking: bool = False, **arguments: Any) -> str:
        """What the template writes; nothing where it refuses."""
        try:
            options = {"tokenize": False, "add_generation_prompt": asking, **arguments}
            return str(self.tokenizer.apply_chat_template([dict(message) for message in messages], **options))
        except Exception:  # a template raises what it likes; it says so again of the conversation itself
            return ""

    def _once(self, name: Any, found: Callable[[], Any]) -> Any:
        if name not in self._found:
            self._found[name] = found()
        return self._found[name]

    # ---- what it takes

    def form(self, role: str, first: bool = True) -> str:
        """How it takes the content of a role: ``text``, ``parts``, not at all (``lost``, ``assistant``: as if the assistant had
        said it), or it ``raises``."""
        return str(self._once((role, first), lambda: self._form(role, first)))

    def _form(self, role: str, first: bool) -> str:
        system, found = role in ("system", "developer"), ""
        before = () if role == "user" or (system and first) else (USER, ANSWER) if system else (USER,)
        for form, content in (("text", PROBE), ("parts", self.parts(PROBE))):
            turns = [(*before, {"role": one, "content": content}, *([USER] * system)) for one in (role, "assistant", "user")]
            written, as_assistant, as_user = (self.tried(*each) for each in turns)
            if PROBE in written:
                return "assistant" if role not in ("user", "assistant") and written == as_assistant != as_user else form
            found = found or written
        return "lost" if found else "raises"

    def results(self, called: bool) -> bool:
        """Whether it takes turns of the role ``tool``, after calls that it wrote or after calls in the assistant's text."""
        turns = (USER, _calling(self.calls()[0]), RESULT) if called else (USER, *(ANSWER, RESULT) * 2)
        return bool(self._once(("results", called), lambda: self.tried(*turns, asking=True).count(PROBE) == 2 - called))

    def calls(self, spoken: bool = False, several: bool = False) -> list[Form]:
        """The forms in which it writes calls whole, with words next to them, and ``several`` in a turn; none: no place."""
        forms: list[Form] = [(kind, content) for kind in ("object", "text") for content in ((PROBE,) if spoken else (None, ""))]
        return [form for form in forms if self._once((form, several), partial(self._writes, form, 1 + several))]

    def _writes(self, form: Form, count: int) -> bool:
        turn = dict(_calling(form, count))
        if turn.get("content") and self.form("assistant") == "parts":
            turn["content"] = self.parts(turn["content"])
        written = self.tried(USER, turn) or self.tried(USER, turn, RESULT)
        wanted = [*(f"{NAME}{at}" for at in range(count)), ARGUMENT, VALUE, form[1] or ""]
        twice, python = f'\\"{ARGUMENT}' in written, f"{{'{ARGUMENT}" in written  # JSON within JSON; a dictionary's repr
        none = written.count("None") > self.tried(USER, ANSWER).count("None")
        return all(word in written for word in wanted) and not (twice or python or none)

    def schemas(self) -> bool:
        """Whether it writes the schemas of tools: names, descriptions and parameters."""
        written = self._once("schemas", lambda: self.tried(USER, asking=True, tools=[SCHEMA]))
        return all(word in written for word in (NAME, PROBE, ARGUMENT, VALUE))

    def reads(self, role: str, key: str, value: Any) -> bool:
        """Whether it writes a key of a role's turns; of one that is no text, whether its source names it."""
        turn = {"role": role, "content": "?", key: PROBE}
        places = (USER, turn), (turn,), (turn, USER)
        shown = self._once((role, key, "key"), lambda: any(PROBE in self.tried(*turns) for turns in places))
        return bool(shown) or (not isinstance(value, str) and self._names(key))

    def require_whole(self, messages: Sequence[Message], arguments: Message, written: str, learned: bool = False) -> None:
        """Refuse what a template wrote where something is not in it that was said: what was probed apart may be lost together.
        Thoughts of earlier turns are, in many families; those of a ``learned`` answer must be there.

        Raises:
            ModelError: names what is lost.
        """
        said = [*(piece for message in messages for piece in _said(message, learned)), *_leaves(arguments.get("documents"))]
        said += [] if learned else [_tool(tool, "a tool")["function"]["name"] for tool in arguments.get("tools") or ()]
        bare = ""
        for piece in said:
            if piece in written or piece.strip() in written:
                if learned and piece not in written:
                    self._say("the chat template trims white space at the ends of answers")
                continue
            bare = bare or _bare(written)
            if not any(_bare(form) in bare for form in (piece, json.dumps(piece), piece.capitalize())):  # True is Python's true
                raise ModelError(
                    f"the chat template leaves out or changes {piece.strip()[:60]!r}; say it in another way, or leave it out"
                )

    def _names(self, word: str) -> bool:
        return re.search(rf"\b{re.escape(word)}\b", self.source) is not None

    # ---- what it is given

    def fitted(self, messages: Sequence[Message], arguments: Message) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and arguments as the template takes them, in which no text spells a mark of the template.

        Raises:
            ModelError: something would be left out, or be written as something else; names it.
        """
        given = {name: value for name, value in arguments.items() if name != "tools"}
        if not isinstance(arguments.get("tools") or [], list | tuple):
            raise ModelError(f"tools are a list of schemas, not {arguments['tools']!r:.40}")
        for name in given:
            if not self._names(name) and name == "documents":
                raise ModelError("the chat template has no place for documents; put them into a turn")
            if not self._names(name):
                self._say(f'the chat template reads no argument "{name}", so it does nothing')
        turns: list[dict[str, Any]] = []
        for place, message in enumerate(messages):
            try:
                self._add(turns, read_message(message, f"messages[{place}]"), f"messages[{place}]")
            except MessageError as error:
                raise ModelError(str(error)) from error
        if tools := [_tool(tool, f"tools[{place}]") for place, tool in enumerate(arguments.get("tools") or ())]:
            if self.schemas():
                given["tools"] = tools
            else:
                self._list(turns, tools)
        for turn in turns:
            turn.pop("result", None)
            if "content" in turn and self.form(turn["role"]) == "parts":
                turn["content"] = self.parts(turn["content"])
        return [self.guarded(turn, turn["role"]) for turn in turns], self.guarded(given, "")

    def _add(self, turns: list[dict[str, Any]], turn: dict[str, Any], where: str) -> None:
        """Add a turn to those before it."""
        role, calls, content, first = turn["role"], turn.pop("tool_calls", ()), turn.get("content"), not turns
        for key in turn.keys() - SILENT - ({"name"} if role == "tool" else set()):
            if not self.reads(role, key, turn[key]):
                raise ModelError(f'{where}: the chat template leaves "{key}" of a turn of the role {role} out; drop it')
        turn["content"] = content or ""
        if calls:
            self._add_calls(turn, calls, content, where)
        elif role == "tool":
            last: Message = next((one for one in reversed(turns) if one["role"] == "assistant"), {})
            if not self.results("tool_calls" in last):
                said = [turns.pop()["content"]] if turns and "result" in turns[-1] else []
                turn = {"role": "user", "content": "\n".join([*said, turn["content"]]), "result": True}
        else:
            if role == "developer" and self.form(role, first) not in ("text", "parts"):
                turn["role"] = role = "system"  # an older name for the same in OpenAI's API
            if (form := self.form(role, first)) in ("lost", "assistant"):
                does = "leaves it out" if form == "lost" else "writes it as the assistant's own"
                raise ModelError(f"{where}: a turn of the role {role} has no place in the chat template, which {does}")
        turns.append(turn)

    def _add_calls(self, turn: dict[str, Any], calls: list[dict[str, Any]], content: Any, where: str) -> None:
        """Add calls to a turn, whose ``content`` was given, as the template writes them, or to its text."""
        said, forms = turn["content"], self.calls(bool(turn["content"]), len(calls) > 1)
        if not self.calls():
            self._say(HERMES.format("tool calls", "in the assistant's text"))
            named = [{"name": call["function"]["name"], "arguments": arguments_of(call)} for call in calls]
            lines = [f"<tool_call>\n{json.dumps(one, ensure_ascii=False)}\n</tool_call>" for one in named]
            turn["content"] = "\n".join([said, *lines] if said else lines)
            return
        if not forms:
            what = "a second tool call in a turn" if self.calls(bool(said)) else "what is said with a tool call"
            raise ModelError(f"{where}: the chat template leaves {what} out; make it a turn of its own")
        first = calls[0]["function"].get("arguments")
        as_given = "text" if isinstance(first, str) else "object", PROBE if said else content
        kind, along = min(forms, key=lambda form: (form[0] != as_given[0], form[1] != as_given[1]))
        for call in calls:
            read, given = arguments_of(call), call["function"].get("arguments")
            text = given if isinstance(given, str) and read else json.dumps(read, ensure_ascii=False)
            call["function"]["arguments"] = read if kind == "object" else text
        turn["tool_calls"] = calls
        if along is None:
            del turn["content"]

    def _list(self, turns: list[dict[str, Any]], tools: Sequence[Message]) -> None:
        """Put schemas into the system turn, or before the first turn's text where the template has none."""
        self._say(HERMES.format("schemas of tools", "in a system turn"))
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        how = '\n\nCall one by JSON between tags:\n<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>'
        text = f"# Tools\n\nThese functions can be called:\n<tools>\n{lines}\n</tools>{'' if self.calls() else how}"
        if turns[0]["role"] == "system":
            turns[0]["content"] += f"\n\n{text}"
        elif self.form("system") in ("text", "parts"):
            turns.insert(0, {"role": "system", "content": text})
        else:
            asked = next((turn for turn in turns if turn["role"] == "user"), None)
            if asked is None:
                raise ModelError("the chat template has no place for schemas of tools before a first user's turn; add one")
            asked["content"] = f"{text}\n\n{asked['content']}"

    def _say(self, said: str) -> None:
        self._once(said, lambda: warnings.warn(said, stacklevel=2))

    # ---- marks

    def marks(self, role: str) -> re.Pattern[str]:
        """Marks that a content must not spell: what is between turns, and, but for the assistant, whose text may hold a
        call in its family's marks, all that the template names."""
        pattern: re.Pattern[str] = self._once(("marks", role == "assistant"), lambda: self._marks(role == "assistant"))
        return pattern

    def _marks(self, said: bool) -> re.Pattern[str]:
        written = self.tried(USER, ANSWER, USER, asking=True) or self.tried(USER, asking=True)
        written += "" if said else self.source
        longest_first = sorted({*self.ends, *(mark for mark in self.special if mark in written)}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    def guarded(self, value: Any, role: str) -> Any:
        """A value in which marks that a text spells are letters like others."""
        if isinstance(value, str):
            if GUARD in value:
                raise ModelError(f"a text holds U+{ord(GUARD):X}, which Unicode has for programs alone; leave it out")
            return self.marks(role).sub(lambda mark: mark[0][:1] + GUARD + mark[0][1:], value)
        if isinstance(value, Mapping):
            return {name: self.guarded(one, role) for name, one in value.items()}
        return [self.guarded(one, role) for one in value] if isinstance(value, list | tuple) else value


_THOUGHT = re.compile(r"\A.*</think>|\A\s*<think>.*", re.DOTALL)


def _said(message: Message, learned: bool) -> Iterator[str]:
    """What a message says: its content, its calls' names and arguments and, of a ``learned`` answer, its thoughts."""
    content = message.get("content")
    for text in [content] if isinstance(content, str) else [part.get("text") for part in content or () if "text" in part]:
        yield str(text) if learned or message["role"] != "assistant" else _THOUGHT.sub("", str(text))
    yield from (str(message[key]) for key in THOUGHTS if learned and message.get(key))
    for call in message.get("tool_calls") or ():
        yield str(call["function"]["name"])
        yield from _leaves(arguments_of(call))


def _leaves(value: Any) -> Iterator[str]:
    """The texts in a value, and whatever is neither a text nor made of texts as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(one)
    elif value is not None:
        yield json.dumps(value)


def _bare(text: str) -> str:
    """A text without white space, quoting and guards, which templates put in and take away."""
    return re.sub(rf"""[\s\\"{GUARD}]+""", "", text)


def _calling(form: Form, count: int = 1) -> Message:
    """An assistant's turn with calls, to try a template with."""
    arguments: Any = {ARGUMENT: VALUE} if form[0] == "object" else json.dumps({ARGUMENT: VALUE})
    functions = [{"name": f"{NAME}{at}", "arguments": arguments} for at in range(count)]
    calls = [{"id": RESULT["tool_call_id"], "type": "function", "function": function} for function in functions]
    return {"role": "assistant", **({} if form[1] is None else {"content": form[1]}), "tool_calls": calls}


def _tool(tool: Any, where: str) -> Any:
    """A schema of OpenAI's form, or its function alone in it."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ModelError(f'{where}: a tool is {{"type": "function", "function": {{"name": …}}}}, got {tool!r:.80}')
    return {"type": "function", "function": function} if function is tool else tool
