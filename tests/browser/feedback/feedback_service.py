"""The real service in a process of its own, on a store of the test's own, and people who sign in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.feedback.records import Annotator, Event, Submission, Task
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

    def desk(self, page: Any, *tasks: Task, **options: Any) -> Any:
        """Ask, start with these options and have ann sign in; gives her page."""
        return self.ask(*tasks).start(**options).sign_in(page)

    def at(self, page: Any, path: str, name: str = "root") -> Any:
        """Sign in as somebody and go to a page of theirs."""
        self.sign_in(page, name).goto(self.url + path)
        return page

    def newcomer(self) -> str:
        """The path of an invite for somebody new."""
        from penstock.feedback.service.accounts import Accounts

        return f"/invite/{Accounts(self.store.database, self.store.now).enrol('newcomer', 'annotator', {})}"

    def vote(self, task: Task, annotator: str, preference: int) -> None:
        """A vote that comes by another way than a browser."""
        self.store.hand_out(task.id, annotator)
        self.store.submit(Submission("vote", task.id, annotator, f"{annotator}:{task.id}", {"preference": preference}))

    def votes(self) -> list[int]:
        """The preferences of all votes as they were given: above 0 for the left one."""
        return [shown(vote) for vote in self.said("vote")]

    def kinds(self) -> list[str]:
        """The kinds of all events, in the order of the log."""
        return [event.kind for event in self.store.events()]

    def said(self, kind: str) -> list[Event]:
        """Events of a kind, in the order of the log."""
        return [event for event in self.store.events() if event.kind == kind]


def settled(page: Any) -> None:
    """Wait until the desk shows a task, or says that nothing is left."""
    page.wait_for_function(
        "() => !/Loading/.test(document.querySelector('#question')?.textContent ?? 'Loading')"
        " && document.querySelector('#bar')?.getAttribute('aria-busy') !== 'true'"
    )


def press(page: Any, *names: str) -> None:
    """Press keys one after the other."""
    for name in names:
        page.keyboard.press(name)


def nothing_left(page: Any) -> None:
    """Wait until the desk says that all tasks are done."""
    question(page, "No more tasks for now")


def give_reason(page: Any, reason: str, button: str) -> None:
    """Fill in the reason that a dialog asks for, and press its button."""
    page.get_by_role("dialog").get_by_label("Reason").fill(reason)
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


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
