"""Markdown of a prompt or response to HTML that can do nothing: no scripts, no images, no styles, no foreign content.

What people compare was written by a model, or by somebody who wants to reach the annotators.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

TAGS = frozenset(
    ("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "blockquote", "ul", "ol", "li", "pre", "code",
     "table", "thead", "tbody", "tr", "th", "td", "a")
)  # fmt: skip
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
REL = "noopener noreferrer nofollow"
LONGEST = 50_000
"""Characters that are read as Markdown; a longer text is shown as it is written."""


def _image(self: Any, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """An image becomes words: fetching it would tell its host who reads what, and when."""
    words = self.renderInlineAsText(tokens[index].children or [], options, env)
    return f"[image: {nh3.clean_text(words)}]"


def _absolute(tag: str, attribute: str, value: str) -> str | None:
    """A link names its host; one without would lead into the service itself."""
    return value if attribute != "href" or value.lower().startswith(("http://", "https://")) else None


# html=False: tags in the text are text, shown as they were written.
_READER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_READER.add_render_rule("image", _image)


@lru_cache(maxsize=512)
def html_of(text: str) -> str:
    """The HTML of a Markdown text, of the tags and attributes above and nothing else."""
    if len(text) > LONGEST:
        return f"<pre>{nh3.clean_text(text)}</pre>"
    return nh3.clean(
        _READER.render(text),
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        attribute_filter=_absolute,
        url_schemes={"http", "https"},
        link_rel=REL,
        strip_comments=True,
    )
