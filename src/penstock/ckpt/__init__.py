"""One store of checkpoints; holders give state and take it back."""
