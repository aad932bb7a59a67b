"""The real service in a process of its own, on a store of the test's own, and people who sign in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.feedback.records import Annotator, Event, Task
from penstock.feedback.store import Store

PASSWORD = "a password of the tests"
ROLES = {"ann": "annotator", "ben": "annotator", "ada": "adjudicator", "root": "admin"}


class Service:
    """``penstock feedback serve`` on a store that the test may look into; it may be ended and started again."""

    def __init__(self, place: Path, hashed: str) -> None:
        self.store = Store.open(place)
        for name, role in ROLES.items():
            self.store.enrol(Annotator(name, role, password=hashed))  # type: ignore[arg-type]
        self.place, self.port, self.process = place, 0, None

    def ask(self, *tasks: Task) -> Service:
        self.store.ask(tasks)
        return self

    def start(self, **options: Any) -> Service:
        """Serve with no gold and no repeats unless asked for; a service that starts again keeps its port."""
        options = {"gold_share": 0.0, "repeat_share": 0.0, **options}
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        code = "import sys; from penstock.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "feedback", "serve", str(self.place), "--port", str(self.port), *words],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line.startswith("serving"), line + self.process.stderr.read()
        self.url = next(word for word in line.split() if word.startswith("http"))
        self.port = int(self.url.rpartition(":")[2])
        return self

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            finally:
                self.process.kill()
        for stream in (self.process.stdout, self.process.stderr) if self.process else ():
            stream.close()

    def sign_in(self, page: Any, name: str = "ann", read: bool = True) -> Any:
        """Fill in the form as somebody would; gives the page, with a task or the message that there is none.

        ``read``: the guideline, which covers a first visit, is closed.
        """
        page.goto(f"{self.url}/sign-in")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        settled(page)
        if read and page.get_by_role("dialog", name="Guideline").is_visible():
            page.get_by_role("button", name="I have read it").click()
            page.get_by_role("dialog", name="Guideline").wait_for(state="hidden")  # until then keys do nothing
        return page

    def said(self, kind: str) -> list[Event]:
        """Events of a kind, in the order of the log."""
        return [event for event in self.store.events() if event.kind == kind]


def settled(page: Any) -> None:
    """Wait until the desk shows a task, or says that nothing is left."""
    page.wait_for_function(
        "() => !/Loading/.test(document.querySelector('#question')?.textContent ?? 'Loading')"
        " && document.querySelector('#bar')?.getAttribute('aria-busy') !== 'true'"
    )


def question(page: Any, text: str) -> None:
    """Wait until the heading of the desk says so."""
    page.get_by_role("heading", name=text, level=1).wait_for()


def prompt(page: Any, name: str) -> None:
    """Wait until the prompt of that name is on the screen and may be answered."""
    page.locator("#prompt", has_text=f"Question {name}?").wait_for()
    settled(page)


def shown(event: Event) -> int:
    """A vote's preference as it was given: above 0 for the left one."""
    return event.body["preference"] if event.order[0] == 0 else -event.body["preference"]
