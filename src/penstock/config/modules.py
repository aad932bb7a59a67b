"""Modules of a user's own, imported in every process of a run so that what they register is known there by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from penstock.core.errors import SpecError, blame


def load_modules(names: Iterable[str], base: Path | None = None) -> None:
    """Import ``MODULE`` or ``FILE.py`` (relative to ``base``), once in a process.

    Raises:
        SpecError: it is not there, or importing it failed.
    """
    for name in names:
        with blame(SpecError, f'modules: "{name}"'):
            if name.endswith(".py"):
                _load_file(((base or Path.cwd()) / Path(name).expanduser()).resolve())
            else:
                importlib.import_module(name)


def is_listed(module: str, names: Iterable[str]) -> bool:
    """Whether a module that is imported is among ``names``."""
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return any(name == module or (name.endswith(".py") and file.resolve().match(Path(name).name)) for name in names)


def _load_file(path: Path) -> None:
    if any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None or not path.is_file():
        raise SpecError(f'modules: "{path}" is no Python file')
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(path.stem, module)
    found.loader.exec_module(module)
