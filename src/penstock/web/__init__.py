"""What every HTTP server of Penstock shares: how a body is read, how a request is refused, how a server listens and ends."""
