"""``penstock ui`` in a process of its own, as people start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


class LivePage:
    """A server on a folder of runs. ``link`` is what it printed, with the token; ``address`` leaves the token out."""

    def __init__(self, root: Path, *options: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "ui", str(root), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.said)
        assert found is not None, self.said + self.process.stdout.read()
        self.link = found[0]
        self.address = self.link.split("#")[0]

    def at(self, place: str) -> str:
        """The address of a place on the page, such as ``run/small/samples``."""
        return f"{self.address}#/{place}"

    def end(self) -> int:
        """Stop as Ctrl-C does; gives the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
