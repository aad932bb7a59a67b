"""What a hostile text can be on the page: words."""

import re

import pytest

from penstock.feedback.service.markdown import LONGEST, html_of

REL = 'rel="noopener noreferrer nofollow"'


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**bold** and `code`", "<p><strong>bold</strong> and <code>code</code></p>\n"),
        ("```python\nprint('<b>')\n```", "<pre><code>print('&lt;b&gt;')\n</code></pre>\n"),
        ("[a](https://a.example/?b=c)", f'<p><a href="https://a.example/?b=c" {REL}>a</a></p>\n'),
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"),
        ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>\n"),
        ("![a *cat*](https://evil.example/cat.png)", "<p>[image: a cat]</p>\n"),
        ("![](//evil.example/x)", "<p>[image: ]</p>\n"),
        ("![<b>](https://evil.example/x)", "<p>[image: &lt;b&gt;]</p>\n"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>\n"),
        ("[a](//evil.example)", f"<p><a {REL}>a</a></p>\n"),
        ("[a](/sign-out)", f"<p><a {REL}>a</a></p>\n"),
        ("[a](data:text/html,x)", "<p>[a](data:text/html,x)</p>\n"),
        ('<p style="x" class="y">', '<p>&lt;p style="x" class="y"&gt;</p>\n'),
        ("a\n\n---\n\nb", "<p>a</p>\n<hr>\n<p>b</p>\n"),
        ("3. c\n4. d", '<ol start="3">\n<li>c</li>\n<li>d</li>\n</ol>\n'),
    ],
)  # fmt: skip
def test_markdown_becomes_html_of_few_tags(text, html):
    assert html_of(text) == html


@pytest.mark.parametrize(
    "text",
    [
        "[x](JaVaScRiPt:alert(1))", "[x](java\tscript:alert(1))", "[x](&#106;avascript:alert(1))", "<javascript:alert(1)>",
        "[x]: javascript:alert(1)\n\n[x]", "[x](vbscript:x)", "<svg/onload=alert(1)>", "<iframe src=//e>", "<style>*{}</style>",
        "`<script>`", "| <script>a</script> |\n|-|\n| <img src=x> |", '[x](https://a "onmouseover=alert(1)")', "<!-- x -->",
        "![x](https://a/b 'c')", "[![x](https://a/b)](https://c)", "<form action=//e>", "<math><mi//xlink:href=//e>",
        '[x](https://a" onclick="alert(1))', "\u0000<script>", "<scr<script>ipt>",
    ],
)  # fmt: skip
def test_nothing_that_runs_or_loads_comes_through(text):
    html = html_of(text)
    tags = re.findall(r"<([^>]*)>", html)
    assert not any(re.match(r"/?(script|img|iframe|svg|style|form|math|object|!--)", tag) for tag in tags)
    attributes = re.findall(r"(\w+)=", " ".join(tags))
    assert set(attributes) <= {"href", "rel", "title", "start", "onmouseover"}  # the last one inside a title's quotes
    assert all(link.startswith(("http://", "https://")) for link in re.findall(r'href="([^"]*)"', html))


def test_a_very_long_text_is_shown_as_it_is_written():
    text = "<b>" * LONGEST
    assert html_of(text) == "<pre>" + "&lt;b&gt;" * LONGEST + "</pre>"


def test_line_breaks_of_a_model_stay_where_they_are():
    assert html_of("a\nb", breaks=True) == "<p>a<br>\nb</p>\n"
    assert html_of("a\nb") == "<p>a\nb</p>\n"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (r"\(x\)", '<p><math display="inline"><mrow><mi>x</mi></mrow></math></p>\n'),
        ("$x$ is", '<p><math display="inline"><mrow><mi>x</mi></mrow></math> is</p>\n'),
        ("so\n$$\nx\n$$\nand", '<p>so</p>\n<p><math display="block"><mrow><mi>x</mi></mrow></math></p><p>and</p>\n'),
        (r"\[ x", "<p>[ x</p>\n"),
        ("costs $5 and $10, not $5-$10", "<p>costs $5 and $10, not $5-$10</p>\n"),
        ("`$x$`", "<p><code>$x$</code></p>\n"),
        (r"\(\frac{\)", r"<p><code>\(\frac{\)</code></p>" "\n"),
    ],
)
def test_formulas_become_mathml_and_what_is_none_stays_text(text, html):
    assert html_of(text) == html


@pytest.mark.parametrize(
    "text", [r"\(\text{<script>alert(1)</script>}\)", r"\(\href{javascript:alert(1)}{x}\)", r"$\text{<img src=x>}$"]
)
def test_a_formula_that_means_harm_is_inert(text):
    tags = re.findall(r"<([^>]*)>", html_of(text))
    assert not any(re.match(r"/?(script|img|a\b)", tag) or "href" in tag or "style" in tag for tag in tags)
