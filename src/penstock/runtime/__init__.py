"""Carries a run out: its stages, its roles in one process, in processes or on a cluster, and what keeps them alive."""
