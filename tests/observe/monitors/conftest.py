"""Where services keep what they keep in the user's home otherwise."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

HOME = tempfile.mkdtemp(prefix="monitors-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["TRACKIO_DIR"] = f"{HOME}/trackio"  # read as it is imported
os.environ |= {"WANDB_CONFIG_DIR": f"{HOME}/wandb", "WANDB_CACHE_DIR": f"{HOME}/wandb", "WANDB_DATA_DIR": f"{HOME}/wandb"}
