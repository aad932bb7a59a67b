"""What a model reads besides text: one whose spec says so reads pictures, films or sounds where a mark is in a prompt."""

from __future__ import annotations

from typing import ClassVar

from penstock.config.spec import require, spec

MARKS = {"image": "<image>", "video": "<video>", "audio": "<audio>"}
"""Where a medium is in the text of a prompt, by the column of the row that has it."""


@spec
class Vision:
    """A model that sees: one of the Qwen2.5-VL kind from scratch, or a folder's with its tower instead of its text part alone.
    Rows bring pictures in their column ``image`` and films in ``video``."""

    frozen: bool = True
    """Leave the tower as it is, so that a medium is encoded once for a whole run."""
    pixels: int = 0
    """Most pixels of a picture or of a frame; a larger one is made smaller. 0: what the folder says, 24 x 24 from scratch."""
    frames: int = 0
    """Most frames that are read of a film, spread evenly from its first to its last. 0: all."""
    fps: float = 0.0
    """Frames that are read of a second of film, at most those that it has. 0: all."""

    kinds: ClassVar[tuple[str, ...]] = ("image", "video")

    def __post_init__(self) -> None:
        require(self.pixels >= 0, f"vision.pixels={self.pixels} is negative; 0 is what the model's folder says")
        require(self.frames >= 0, f"vision.frames={self.frames} is negative; 0 is all that a film has")
        require(self.fps >= 0, f"vision.fps={self.fps} is negative; 0 is all frames")


@spec
class Hearing:
    """A model that hears: one of the Qwen2-Audio kind from scratch, or a folder's with its tower. Rows bring sounds in their
    column ``audio``."""

    frozen: bool = True
    """Leave the tower as it is, so that a sound is encoded once for a whole run."""
    rate: int = 8000
    """Samples a second of a model from scratch, a multiple of 50; a folder says its own."""
    seconds: int = 1
    """Longest sound that a model from scratch hears; a folder says its own."""

    kinds: ClassVar[tuple[str, ...]] = ("audio",)

    def __post_init__(self) -> None:
        require(self.rate >= 2000 and self.rate % 50 == 0, f"hearing.rate={self.rate}: use a multiple of 50, at least 2000")
        require(self.seconds > 0, f"hearing.seconds={self.seconds} is no length of a sound; use 1 or more")


Media = Vision | Hearing

READ: dict[str, Media | None] = {"none": None, "vision": Vision(), "hearing": Hearing()}
"""What a model reads besides text, by its name on the command line."""
