"""Denoisers as policies: a trajectory is a chain of Gaussian transitions from noise to a picture."""
