"""What the code that a test depends on does, as a digest: two digests differ where something it might run changed.

What counts is the code of the folders that the test names and of everything that they import, at any depth and wherever the
import stands; files of other kinds beside it (templates, tables); and the test's own file with the helpers that it imports.
Comments, docstrings and layout do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Every name that a file imports, as a module and as a part of one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reached(first: Iterable[str], known: dict[str, Path]) -> set[str]:
    """``first`` and the known modules that they import, at any depth."""
    seen: set[str] = set()
    left = [name for name in first if name in known]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        left += [other for other in (*imported(known[name]), name.rpartition(".")[0]) if other in known]
    return seen


@cache
def of_file(path: Path) -> str:
    """Digest of one file; of Python without comments, docstrings and layout."""
    content = path.read_bytes()
    if path.suffix == ".py":
        tree = ast.parse(content)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts = [part for part in node.body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
                node.body = [part for part in node.body if part not in texts]
        content = ast.dump(tree).encode()
    return hashlib.sha256(content).hexdigest()[:16]


@cache
def of_package(package: Path, folders: tuple[str, ...]) -> str:
    """Digest of some folders of a package and of everything that they import.

    Raises:
        AssertionError: a folder that is not there.
    """
    unknown = [folder for folder in folders if not (package / folder).is_dir()]
    assert not unknown, f"learning(…) names {unknown}, which are no folders of the package"
    known = modules(package)
    first = [name for name, path in known.items() if path.relative_to(package).parts[0] in folders]
    code = [known[name] for name in reached(first, known)]
    places = {path.parent for path in code} | {package / folder for folder in folders}
    other = {path for place in places for path in place.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    return _together(package, [*code, *other])


def of_test(path: Path, package: Path, folders: tuple[str, ...]) -> str:
    """Digest of a test's file, of the helpers that it imports from its folder and those above, and of what it names."""
    tests = Path(__file__).parent
    places = [path.parent, *(folder for folder in path.parents if tests in (folder, *folder.parents))]
    helpers = {file.stem: file for place in reversed(places) for file in place.glob("*.py")}
    files = [helpers[name] for name in reached(imported(path), helpers)]
    return hashlib.sha256(f"{of_file(path)} {_together(None, files)} {of_package(package, folders)}".encode()).hexdigest()[:16]


def _together(root: Path | None, files: Iterable[Path]) -> str:
    """Digest of files and of where they are."""
    lines = sorted(f"{path.relative_to(root) if root else path.name} {of_file(path)}" for path in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
