"""Channels: how weights of a version travel from a learner to its generators."""
