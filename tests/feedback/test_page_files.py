"""The files of the feedback page keep what its content policy promises, and each other's names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock.feedback

PAGE = Path(penstock.feedback.__file__).parent / "page"
TEMPLATES = sorted(PAGE.glob("*.html.jinja"))
SCRIPTS = sorted(PAGE.glob("*.js"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_holds_no_script_and_no_style_of_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text) == []


@pytest.mark.parametrize("path", [*TEMPLATES, *SCRIPTS, *PAGE.glob("*.css")], ids=lambda path: path.name)
def test_nothing_comes_from_another_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
    assert re.findall(r"https?://|url\(|@import", text) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_file_that_a_template_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r'"/static/([^"]+)"', text) + re.findall(r'{% (?:extends|include) "([^"]+)"', text)
    assert [name for name in named if not (PAGE / name).is_file()] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_what_its_neighbours_export_and_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    for names, file in re.findall(r'^import (.+?) from "\./([^"]+)";', text, re.MULTILINE | re.DOTALL):
        exported = re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", (PAGE / file).read_text(), re.MULTILINE)
        wanted = re.findall(r"\w+", names) if names.startswith("{") else []
        assert set(wanted) <= set(exported), file
