"""Penstock: reinforcement learning from human and verifiable feedback on language models."""
