"""Commands, and the wiring from a run's spec to the objects that carry it out."""
