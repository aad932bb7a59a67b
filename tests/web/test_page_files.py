"""The files of the pages keep what their content policy promises, and each other's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import penstock
from penstock.web.files import KINDS, SHARED, page_files

ROOT = Path(penstock.__file__).parent
PAGES: dict[str, Mapping[str, Path]] = {
    "feedback": page_files(ROOT / "feedback" / "page"),
    "live": page_files(ROOT / "ui" / "live" / "page", ROOT / "ui" / "drawings.css"),
}
TEMPLATES = [*sorted((ROOT / "feedback" / "page").glob("*.html.jinja")), PAGES["live"]["index.html"]]
SENT = sorted({path for files in PAGES.values() for path in files.values()})
SCRIPTS = [(page, name) for page, files in PAGES.items() for name in files if name.endswith(".js")]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_holds_no_script_and_no_style_of_its_own(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text) == []


@pytest.mark.parametrize("path", [*TEMPLATES, *SENT], ids=lambda path: path.name)
def test_nothing_comes_from_another_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
    assert re.findall(r"https?://|url\(|@import", text) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_file_that_a_template_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    files = PAGES["live" if path.name == "index.html" else "feedback"]
    assert [name for name in re.findall(r'"/static/([^"]+)"', text) if name not in files] == []
    parts = re.findall(r'{% (?:extends|include) "([^"]+)"', text)
    assert [name for name in parts if not (path.parent / name).is_file()] == []


@pytest.mark.parametrize(("page", "name"), SCRIPTS, ids=lambda value: value)
def test_a_script_imports_what_its_neighbours_export_and_is_short(page: str, name: str) -> None:
    files = PAGES[page]
    text = files[name].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    for names, file in re.findall(r'^import (.+?) from "\./([^"]+)";', text, re.MULTILINE | re.DOTALL):
        exported = re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", files[file].read_text(), re.MULTILINE)
        wanted = re.findall(r"\w+", names) if names.startswith("{") else []
        assert set(wanted) <= set(exported), file


@pytest.mark.parametrize("page", PAGES)
def test_what_pages_share_is_sent_by_each(page: str) -> None:
    assert {path.name for path in SHARED.iterdir() if path.suffix in KINDS} <= set(PAGES[page])


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "diff.js").write_text("")
    with pytest.raises(ValueError, match="the same name"):
        page_files(tmp_path)
