"""Markdown of a prompt or response to HTML that can do nothing: no scripts, no images, no styles, no foreign content.

What people compare was written by a model, or by somebody who wants to reach the annotators. Their line breaks stay where they
were written, because people judge them too. Formulas in LaTeX become MathML, which browsers render by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import nh3
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

TAGS = frozenset(
    ("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "blockquote", "ul", "ol", "li", "pre", "code",
     "table", "thead", "tbody", "tr", "th", "td", "a")
)  # fmt: skip
MATHS = frozenset(
    ("math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "msup", "msub", "msubsup", "mfrac", "msqrt", "mroot", "mover",
     "munder", "munderover", "mtable", "mtr", "mtd", "mstyle", "menclose", "mpadded", "mphantom")
)  # fmt: skip
ATTRIBUTES = {
    "a": {"href", "title"}, "ol": {"start"}, "math": {"display"}, "mi": {"mathvariant"}, "mo": {"stretchy", "fence", "form"},
    "mfrac": {"linethickness"}, "mtd": {"columnalign"}, "mspace": {"width"}, "menclose": {"notation"}, "mover": {"accent"},
}  # fmt: skip
REL = "noopener noreferrer nofollow"
LONGEST = 50_000
"""Characters that are read as Markdown; a longer text is shown as it is written."""


FORMULA = re.compile(
    r"\$\$(.{1,1000}?)\$\$|\\\[(.{1,1000}?)\\\]|\\\((.{1,500}?)\\\)|\$(?![\s$])([^$\n]{1,500}?)(?<![\s\\])\$(?!\d)", re.DOTALL
)
"""``$$…$$``, ``\\[…\\]``, ``\\(…\\)`` and ``$…$``; the last neither with a space inside its signs nor before a digit, so
that prices are none. The first two are displayed in lines of their own."""
LINES = 2
"""Groups of ``FORMULA`` that are displayed apart."""


def _formula(found: re.Match[str], token: Token) -> None:
    token.content, token.info = found[found.lastindex or 0].strip(), "block" if (found.lastindex or 0) <= LINES else "inline"
    token.markup = found[0]


def _inline(state: StateInline, silent: bool) -> bool:
    """A formula within a line."""
    found = FORMULA.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        _formula(found, state.push("formula", "", 0))
    state.pos = found.end()
    return True


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A formula that fills lines of its own, which may look like a list or a heading."""
    found = FORMULA.match(state.src, state.bMarks[start] + state.tShift[start], state.eMarks[end - 1])
    if found is None or (found.lastindex or 0) > LINES:
        return False
    last = next(line for line in range(start, end) if state.eMarks[line] >= found.end())
    if state.src[found.end() : state.eMarks[last]].strip():
        return False
    if not silent:
        _formula(found, state.push("formula", "", 0))
        state.line = last + 1
    return True


def _rendered(self: Any, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """MathML; where the LaTeX is not understood, as it was written."""
    token = tokens[index]
    try:  # < and > as commands: within \\text the converter would pass them on as markup
        made = convert(token.content.replace("<", r"\lt ").replace(">", r"\gt "), display=token.info)
    except Exception:  # whatever it stumbles over, the text is shown
        made = f"<code>{nh3.clean_text(token.markup)}</code>"
    return f"<p>{made}</p>" if token.block else made


def _image(self: Any, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """An image becomes words: fetching it would tell its host who reads what, and when."""
    words = self.renderInlineAsText(tokens[index].children or [], options, env)
    return f"[image: {nh3.clean_text(words)}]"


def _absolute(tag: str, attribute: str, value: str) -> str | None:
    """A link names its host; one without would lead into the service itself."""
    return value if attribute != "href" or value.lower().startswith(("http://", "https://")) else None


# html=False: tags in the text are text, shown as they were written.
def _reader(breaks: bool) -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False, "breaks": breaks}).enable(["table", "strikethrough"])
    made.inline.ruler.before("escape", "formula", _inline)
    made.block.ruler.before("fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    made.add_render_rule("image", _image)
    made.add_render_rule("formula", _rendered)
    return made


_READERS = {breaks: _reader(breaks) for breaks in (False, True)}


@lru_cache(maxsize=512)
def html_of(text: str, breaks: bool = False) -> str:
    """The HTML of a Markdown text, of the tags and attributes above and nothing else. ``breaks``: its line breaks stay."""
    if len(text) > LONGEST:
        return f"<pre>{nh3.clean_text(text)}</pre>"
    return nh3.clean(
        _READERS[breaks].render(text),
        tags=set(TAGS | MATHS),
        attributes=ATTRIBUTES,
        attribute_filter=_absolute,
        url_schemes={"http", "https"},
        link_rel=REL,
        strip_comments=True,
    )
