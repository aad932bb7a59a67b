"""Runs to start from. A recipe is a function that returns a run; it reads top to bottom and nothing imports it."""
