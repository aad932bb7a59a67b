"""Requests as bytes, for what no client would send."""

from serving import TOKEN


def post_of(length):
    """The head of a completion whose body has so many bytes."""
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
