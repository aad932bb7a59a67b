"""Searching a run's settings: many runs as processes, chosen by Optuna or bred as a population (docs/sweeps.md)."""
