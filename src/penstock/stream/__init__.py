"""The bounded, leased, versioned queue between rollout and learner: gate, ledger, leases, selection of batches."""
