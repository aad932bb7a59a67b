"""Lets a torchvision that was built for another torch be imported: ``python tools/torchvision_without_ops.py``.

Package indexes have wheels of torchvision for CUDA alone; next to a torch for CPUs their compiled operators do not load, and
the import fails where two of these are described. vLLM needs the rest of the package, which is Python. This writes the schemas
of the two into the installed package, for where its operators are missing; nothing else of it changes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

AFTER = "import torchvision.extension  # noqa: F401\n"
MARK = "# operators are missing: written by Penstock's tools/torchvision_without_ops.py\n"
SCHEMAS = f"""
if not torchvision.extension._has_ops():  {MARK}    from torch import library as _operators

    _schemas = _operators.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{{_name}}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main() -> None:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        sys.exit("torchvision is not installed in this Python")
    file = Path(found.origin).with_name("_meta_registrations.py")
    text = file.read_text(encoding="utf-8")
    if MARK in text:
        return
    if AFTER not in text:
        sys.exit(f"{file} is not as expected; this torchvision needs another remedy")
    file.write_text(text.replace(AFTER, AFTER + SCHEMAS, 1), encoding="utf-8")


if __name__ == "__main__":
    main()
