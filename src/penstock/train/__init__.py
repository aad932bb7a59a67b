"""Learners: forward and backward over packed micro-batches, one optimizer step, state for a resume. They know no algorithm."""
