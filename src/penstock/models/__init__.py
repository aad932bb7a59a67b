"""Models: load and save, build from scratch, heads, and the attention hook that the engine and the learner share."""

from __future__ import annotations

import logging

# transformers imports torchao where it is installed, which reports every kernel that was built for another GPU.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
