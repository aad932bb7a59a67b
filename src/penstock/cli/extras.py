"""Optional packages: refused by name before anything starts."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.core.errors import SpecError


def require(command: str, extra: str, *packages: str) -> None:
    """Raises SpecError, with what to install, unless all packages of an extra are there."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise SpecError(f"penstock {command} needs {', '.join(missing)}: pip install 'penstock[{extra}]'")
