"""Names of user functions and back: ``MODULE:FUNCTION``, ``FILE.py:FUNCTION`` and, within one process, ``callable:NAME``.

A spec holds names, never code. :func:`register` names a function that is at hand, :func:`resolve` finds the function of a
name. A function registered in this process is returned as it is: importing its script a second time would run it again.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.config.spec import suggestion
from penstock.core.errors import SpecError, blame

_REGISTERED: dict[str, Callable[..., Any]] = {}
_IMPORTED: dict[Path, ModuleType] = {}
_LOCK = threading.RLock()

LOCAL = "callable:"


def is_reference(text: str) -> bool:
    """Whether ``text`` reads as the name of a function rather than as a file or another source."""
    place, colon, name = text.rpartition(":")
    if text.startswith(LOCAL):
        return True
    if not colon or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        return False
    return place.endswith(".py") or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", place) is not None


def register(function: Callable[..., Any]) -> str:
    """Name a callable so that :func:`resolve` gives this very object back in this process.

    A function at the top level of a file is named ``/ABSOLUTE/FILE.py:NAME``, one in a package ``PACKAGE.MODULE:NAME``;
    other processes find both. A lambda, a nested function or a callable object is named ``callable:NAME``, which
    holds in this process only. Registering a callable again gives the same name.
    """
    if not callable(function):
        raise SpecError(f"{function!r} is not callable; give a function")
    with _LOCK:
        for known, registered in _REGISTERED.items():
            if registered is function:
                return known
        name = _importable_name(function) or _local_name(function)
        _REGISTERED[name] = function
        return name


def _importable_name(function: Callable[..., Any]) -> str | None:
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    if module is None or not name.isidentifier() or getattr(module, name, None) is not function:
        return None
    if module.__name__ != "__main__" and module.__package__:
        return f"{module.__name__}:{name}"
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py") or not Path(file).is_file():
        return None
    return f"{Path(file).resolve()}:{name}"


def _local_name(function: Callable[..., Any]) -> str:
    given = getattr(function, "__qualname__", type(function).__qualname__)
    base = LOCAL + given.replace("<locals>.", "").replace("<lambda>", "lambda")
    name, count = base, 1
    while name in _REGISTERED:
        count += 1
        name = f"{base}-{count}"
    return name


def resolve(reference: str, base: Path | None = None) -> Callable[..., Any]:
    """The function of a name that :func:`register` gave or a user wrote; relative files are looked up in ``base``.

    A file is imported once per absolute path; a file that already runs as the main script or was imported by someone else
    is used as it is. Its folder is appended to the import path, so that it finds the modules next to it.

    Raises:
        SpecError: no such module, file or function; importing it failed; or the name held in another process only.
    """
    with _LOCK:
        if reference in _REGISTERED:
            return _REGISTERED[reference]
        if reference.startswith(LOCAL):
            raise SpecError(
                f'"{reference}" exists only in the process that registered it; '
                "define the function at the top level of a file and name it FILE.py:FUNCTION, or go on from that script"
            )
        if not is_reference(reference):
            raise SpecError(f'"{reference}" is not the name of a function; write MODULE:FUNCTION or FILE.py:FUNCTION')
        place, _, name = reference.rpartition(":")
        if place.endswith(".py") and (absolute := f"{_path(place, base)}:{name}") in _REGISTERED:
            return _REGISTERED[absolute]
        return _member(_module(place, base, reference), name, reference)


def load_modules(names: Iterable[str], base: Path | None = None) -> None:
    """Import ``MODULE`` or ``FILE.py`` (relative to ``base``), once in a process, so that what they register is known by name.

    Raises:
        SpecError: it is not there, or importing it failed.
    """
    for name in names:
        with _LOCK:
            _module(name, base, f"modules: {name}")


def _path(file: str, base: Path | None) -> Path:
    return ((base or Path.cwd()) / Path(file).expanduser()).resolve()


def _module(place: str, base: Path | None, reference: str) -> ModuleType:
    if place.endswith(".py"):
        return _file_module(_path(place, base), reference)
    return _named_module(place, reference)


def _named_module(place: str, reference: str) -> ModuleType:
    with blame(SpecError, f'"{reference}": importing {place}'):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
                raise
            raise SpecError(f'"{reference}": there is no module "{place}"; install it or name a file: FILE.py:…') from error


def _file_module(path: Path, reference: str) -> ModuleType:
    if path in _IMPORTED:
        return _IMPORTED[path]
    if not path.is_file():
        raise SpecError(f'"{reference}": there is no file {path}')
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise SpecError(f'"{reference}": {path} is not a Python file')
    module = importlib.util.module_from_spec(found)
    # Appended, not prepended: a user's file must never shadow an installed package.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        with blame(SpecError, f'"{reference}": importing {path}'):
            found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _IMPORTED[path] = module
    return module


def _member(module: ModuleType, name: str, reference: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise SpecError(f'"{reference}": {module.__name__} has no "{name}"{suggestion(name, known)}')
        found = getattr(found, part)
    if not callable(found):
        raise SpecError(f'"{reference}" is {type(found).__name__}, not a function')
    return found
