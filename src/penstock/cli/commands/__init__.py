"""One module a command; each has ``run(words) -> exit code``."""
