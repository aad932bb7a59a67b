"""The flow between rollout and learner: the stream with its slots and leases, and the runtimes that run the roles."""
