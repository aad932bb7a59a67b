"""Corrections by users: quarantined, approved by somebody else, and found for a new prompt."""
