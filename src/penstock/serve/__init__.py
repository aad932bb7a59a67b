"""Foreign inference engines, one file each, and the HTTP server that puts any engine behind an OpenAI-compatible API."""
