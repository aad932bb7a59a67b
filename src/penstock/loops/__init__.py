"""The four loops: rollout, learn, evaluate, offline. They know contracts only and run in any runtime."""
