"""The specs of a run and its stages: frozen values without torch."""
