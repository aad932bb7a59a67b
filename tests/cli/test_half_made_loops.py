"""A signal in the middle of Python's own constructors leaves one line and no traceback."""

import subprocess
import sys

INTERRUPTED = """
import asyncio, sys
from penstock.cli import main

def begin(self):
    raise KeyboardInterrupt("stopped; nothing was begun")

asyncio.base_events.BaseEventLoop.__init__ = begin

async def work():
    pass

main.run = lambda words: asyncio.run(work())
sys.exit(main.main())
"""


def test_an_event_loop_that_a_signal_left_half_made_is_not_shown():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "penstock: stopped; nothing was begun\n")
