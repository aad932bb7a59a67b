"""Feedback of people: an append-only log of what they said, and the mathematics of trusting it.

Import the modules themselves: ``store`` (the log and its queue), ``records`` (what goes in), ``select``, ``simulate``, and of
the folders ``quality`` (agreement, trust, drift, report cards), ``exchange`` (training rows and files) and ``service`` (people
in a browser). None of them imports torch. The store needs the extra ``feedback``.
"""
