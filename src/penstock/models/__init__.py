"""Models: load and save, build from scratch, heads, and the attention hook that the engine and the learner share."""
