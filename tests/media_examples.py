"""Small images and sounds, made byte by byte."""

import io
import struct
import wave
import zlib


def png(shade: int = 0, side: int = 4) -> bytes:
    """A square grey image."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    lines = (b"\0" + bytes([shade]) * side) * side
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def wav(seconds: float = 0.05, level: int = 0) -> bytes:
    """A sound of one level, 8,000 samples a second."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(struct.pack("<h", level) * int(8000 * seconds))
    return out.getvalue()
