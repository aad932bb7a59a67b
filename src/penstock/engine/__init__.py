"""The embedded generator: continuous batching over a pooled key-value cache, on the model classes of transformers."""
