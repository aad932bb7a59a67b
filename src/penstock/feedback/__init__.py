"""Feedback of people: an append-only log of what they said, and the mathematics of trusting it.

Import the modules themselves: ``store`` (the log and its queue), ``records`` (what goes in), ``quality``, ``select``,
``exchange``, ``drift``, ``simulate``. None of them imports torch; the store needs the extra ``feedback``.
"""
