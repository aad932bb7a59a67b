"""How a model sees: a model whose spec has it reads pictures where ``<image>`` is in prompts."""

from __future__ import annotations

from penstock.config.spec import require, spec

MARK = "<image>"
"""Where a picture is in the text of a prompt."""


@spec
class Vision:
    """A vision-language model of the Qwen2.5-VL kind: one from scratch, or a folder's with its tower instead of its text part
    alone. Rows bring pictures in their column ``image``."""

    frozen: bool = True
    """Leave the tower as it is, so that a picture is encoded once for a whole run."""
    pixels: int = 0
    """Most pixels of a picture; a larger one is made smaller. 0: what the folder says, 24 x 24 from scratch."""

    def __post_init__(self) -> None:
        require(self.pixels >= 0, f"vision.pixels={self.pixels} is negative; 0 is what the model's folder says")
