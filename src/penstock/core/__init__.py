"""Nouns, contracts, specs, errors and events. Nothing here imports torch or transformers (tested)."""
