"""The code of an answer: its last block of Python, found by a Markdown parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from markdown_it import MarkdownIt

# Without these rules a fence counts wherever it is: far to the right of a list's text, or right after a tag like </think>.
_READER = MarkdownIt("commonmark").disable(["code", "html_block", "reference", "lheading", "inline"])
_PYTHON = re.compile(r"\W*(?:i?python|py)[\d.]*(?![\w+#])", re.IGNORECASE)
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)|\A.*?</think>[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^([^\n`~]*[^\s`~>])[ \t]*(```+|~~~+)[ \t]*((?:[a-z]*py[a-z0-9.]*)?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
"""A fence at the end of a line of text or code, where Markdown knows none."""
_LAZY = re.compile(r"^(?=[ \t]*(?:```|~~~))", re.MULTILINE)
"""The beginning of a line with a fence; after an empty line no paragraph can swallow it."""
_MOST = 200_000
"""Characters of a block that is parsed as Python."""


def find_code(text: str, names: Collection[str] = ()) -> str:
    """The last block of Python that defines one of the ``names``, or the last at all; the whole text where it has no block.

    Blocks may be unclosed, in lists and quotes, and are marked as Python; or as nothing, if they are Python and no data. What
    comes before the end of the model's thoughts is none of the answer.
    """
    text = _THOUGHT.sub("", text.replace("\r\n", "\n"), count=1)
    found: list[str] = []
    for written in (text, _LAZY.sub("\n", text), _LAZY.sub("\n", _FENCE.sub(r"\1\n\2\3", text))):
        blocks = _blocks(written)
        found = [block for block in blocks if any(_defines(name, block) for name in names)] or blocks or found
        if found and parsed(found[-1]) is not None:
            break
    inline = re.fullmatch(r"\s*(`{1,3})(?:python\s|py\s)?([^`]+)\1\s*", text)
    return found[-1] if found else inline[2] if inline else text


def _defines(name: str, code: str) -> bool:
    return bool(re.search(rf"^\s*(?:async )?(?:def|class) +{re.escape(name)}\b|^{re.escape(name)} *[:=]", code, re.MULTILINE))


def _blocks(text: str) -> list[str]:
    """The blocks that may be the answer; of those without a mark the last, where no block is Python for certain."""
    fences = [token for token in _READER.parse(text) if token.type == "fence" and token.content.strip()]
    bare = [token.content for token in fences if not token.info.strip()]
    sure = [token.content for token in fences if _PYTHON.match(token.info) or (not token.info.strip() and _does(token.content))]
    return sure or bare[-1:]


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of Python code; None of what is none."""
    try:
        return ast.parse(code) if len(code) <= _MOST else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _does(code: str) -> bool:
    """Whether it is Python that does something, which no output or input of a program does."""
    tree = parsed(code)
    idle = (ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Attribute)
    return tree is not None and any(not (isinstance(each, ast.Expr) and isinstance(each.value, idle)) for each in tree.body)
