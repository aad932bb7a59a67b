"""Running code that may hang or fail: rewards and tools."""
