"""Carries runs out: ``launch`` is the door; roles, supervision and stages are behind it."""

from penstock.data.sources import register_source
from penstock.product.source import open_feedback
from penstock.runtime.launching import Result, launch

__all__ = ["Result", "launch"]

register_source("feedback", open_feedback)
