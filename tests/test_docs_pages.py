"""The documentation leads where it says: links, headings, and the two lists of its front page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, without signs, dashes for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Relative links of a page that lead to no file, or to no heading of it."""
    found = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    assert broken(page) == []


def test_a_link_to_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` heading\n[good](#a-b-heading) [bad](#elsewhere) [gone](gone.md) [out](https://example.org)\n")
    assert broken(page) == ["#elsewhere", "gone.md"]


def test_the_front_page_of_the_docs_leads_to_every_page_and_every_decision_once_and_in_order():
    links = LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert pages <= set(links)
    decisions = [link for link in links if re.match(r"decisions/\d", link)]
    assert decisions == [f"decisions/{page.name}" for page in sorted((DOCS / "decisions").glob("*.md"))]
