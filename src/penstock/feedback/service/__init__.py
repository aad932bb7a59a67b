"""The feedback service: people sign in, are handed tasks, and what they say goes into the store (``docs/feedback.md``)."""
