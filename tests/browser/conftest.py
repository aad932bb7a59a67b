"""What tests in a browser share: the system's Chromium and Firefox, and pages that tell what went wrong in them.

A page of these tests may do nothing that its own server did not send: every error in its console, every breach of its content
policy and every request to another host fails the test, without the test asking.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "firefox-esr": ("firefox-esr", "firefox")}
"""Programs that will do, by the name of the system's package."""
WIDE, NARROW = {"viewport": {"width": 1280, "height": 860}}, {"viewport": {"width": 390, "height": 844}}
SCREENS = {
    "desktop": ("chromium", WIDE),
    "phone": ("chromium", {**NARROW, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}),
    "firefox": ("firefox-esr", WIDE),
    "firefox-phone": ("firefox-esr", NARROW),
}
"""Where pages are looked at: the browser, and options of its contexts."""
WAIT_MS = 90_000
"""How long a page may take for what a test waits for."""
STATUS = "Failed to load resource: the server responded with a status of"
"""What Chromium says of every refusal. A refusal is an answer: tests look at what the page made of it."""


@dataclass
class Watched:
    """What the pages of one test asked for and complained about."""

    requests: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    may_fail: set[str] = field(default_factory=set)
    """Parts of complaints that a test expects, such as those of a network it has cut itself."""

    def hosts(self) -> set[str]:
        """Hosts that were asked for anything."""
        return {urlsplit(url).netloc for url in self.requests if url.startswith(("http:", "https:", "ws:", "wss:"))}

    def unexpected(self) -> list[str]:
        return [text for text in self.troubles if not any(part in text for part in self.may_fail)]


FONTS = """<?xml version="1.0"?>
<fontconfig>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
  <alias><family>serif</family><prefer><family>DejaVu Serif</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <match target="pattern">
    <edit name="family" mode="append_last"><string>DejaVu Sans</string></edit>
  </match>
</fontconfig>
"""
"""What the browsers find instead of the machine's fonts, so that texts are as wide on every machine."""


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which DejaVu, which matplotlib ships, is all the fonts there are."""
    import matplotlib

    folder = tmp_path_factory.mktemp("fonts")
    (folder / "fonts").mkdir()
    for file in (Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("DejaVu*.ttf"):
        (folder / "fonts" / file.name).write_bytes(file.read_bytes())
    (folder / "fonts.conf").write_text(FONTS.format(folder=folder), encoding="utf-8")
    return {**os.environ, "FONTCONFIG_FILE": str(folder / "fonts.conf")}


@pytest.fixture(scope="module")
def browser(fonts: dict[str, str]) -> Iterator[Callable[[str], Any]]:
    """``browser("chromium")``: a browser without a window, started when it is first asked for.

    It ends with the module: its event loop would disturb the tests of others.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install penstock[dev]")
    running: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name in running:
            return running[name]
        program = next((found for one in PROGRAMS[name] if (found := shutil.which(one))), None)
        if program is None:
            pytest.skip(f"{name} is not installed: apt-get install {name}")
        if name == "chromium":
            running[name] = driver.chromium.launch(executable_path=program, env=fonts)
        else:  # as it was built, over WebDriver BiDi: Playwright's other way to Firefox is a build of its own
            preferences = {"ui.prefersReducedMotion": 1}
            running[name] = driver.firefox.launch(
                executable_path=program, channel="moz-firefox", firefox_user_prefs=preferences, env=fonts
            )
        return running[name]

    with playwright.sync_playwright() as driver:
        yield of
        for one in running.values():
            one.close()


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def visitor(browser: Callable[[str], Any], watched: Watched) -> Iterator[Callable[..., Any]]:
    """``visitor("phone", **options)``: a page of somebody new, with cookies and storage of their own, on one of ``SCREENS``.

    At the end nothing that the test did not expect may have gone wrong in any of its pages.
    """
    contexts = []

    def make(screen: str = "desktop", **options: Any) -> Any:
        program, size = SCREENS[screen]
        context = browser(program).new_context(**{**size, "reduced_motion": "reduce", **options})
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        context.on("request", lambda request: watched.requests.append(request.url))
        context.on("console", lambda message: _complain(watched, message))
        context.on("weberror", lambda error: watched.troubles.append(str(error.error)))
        return context.new_page()

    yield make
    for context in contexts:
        context.close()
    assert watched.unexpected() == []
    assert len(watched.hosts()) <= 1, f"requests to other hosts: {watched.hosts()}"


@pytest.fixture
def page(visitor: Callable[..., Any]) -> Any:
    """A page on a desktop."""
    return visitor()


@pytest.fixture(params=["desktop", "firefox-phone"])
def screen(request: pytest.FixtureRequest, visitor: Callable[..., Any]) -> Any:
    """A page in Chromium on a desktop and in Firefox on a phone. Pairwise: both browsers and both widths."""
    return visitor(request.param)


@pytest.fixture(params=[("desktop", "light"), ("phone", "dark"), ("firefox-phone", "light")], ids="-".join)
def look(request: pytest.FixtureRequest, visitor: Callable[..., Any]) -> Any:
    """A page in both browsers on both widths, Chromium's in the dark too; Firefox over BiDi knows the light only."""
    screen, colours = request.param
    return visitor(screen, color_scheme=colours)


def _complain(watched: Watched, message: Any) -> None:
    if message.type in ("error", "warning") and not message.text.startswith(STATUS):
        watched.troubles.append(message.text)


@pytest.fixture(scope="session")
def accessible() -> Callable[[Any], list[str]]:
    """``accessible(page)``: serious and critical findings of axe, one line each; an empty list is what a test wants."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe()

    def check(page: Any) -> list[str]:
        found = axe.run(page).response["violations"]
        bad = [one for one in found if one["impact"] in ("serious", "critical")]
        return [f"{one['id']}: {one['help']}: {json.dumps([node['html'][:160] for node in one['nodes']])}" for one in bad]

    return check


@pytest.fixture(scope="session")
def assert_usable(accessible: Callable[[Any], list[str]]) -> Callable[[Any], None]:
    """``assert_usable(page)``: axe finds nothing serious, and nobody has to scroll sideways."""

    def check(page: Any) -> None:
        assert accessible(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], "wider than the screen"

    return check
