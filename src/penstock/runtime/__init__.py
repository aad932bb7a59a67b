"""Carries a run out: its stages, its roles in one process, in processes or on a cluster, and what keeps them alive."""

from penstock.data.sources import register_source
from penstock.product.source import open_feedback

register_source("feedback", open_feedback)
