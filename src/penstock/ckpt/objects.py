"""Objects under a URL, in one of fsspec's file systems."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.core.errors import SpecError
from penstock.core.storage import file_system


class Objects:
    """Objects below ``url``, each named by its path there, such as ``checkpoints/stage-00-…/manifest.json``.

    Any exception may come of a call: each of fsspec's file systems has its own for a store that is away or refuses a key.
    """

    def __init__(self, url: str) -> None:
        """Makes no connection yet.

        Raises:
            SpecError: no such kind of store, its package is missing (names what to install), or it writes on no condition.
        """
        self.url, scheme = url.rstrip("/"), url.partition("://")[0]
        self._folders = scheme in ("file", "local")
        options: dict[str, Any] = {"auto_mkdir": True} if self._folders else {"use_listings_cache": False}
        options["skip_instance_cache"] = True  # credentials may be others by now
        self.fs, self.root = file_system(self.url, "checkpoint.store", **options)
        self.root = self.root.rstrip("/")
        writes = getattr(self.fs.pipe_file, "__qualname__", "")
        if not self._folders and writes == "AbstractFileSystem.pipe_file":  # which looks first, and then writes
            raise SpecError(
                f"checkpoint.store={self.url}: {scheme}:// cannot make an object only where there is none, which keeps two "
                "processes apart; use s3://, gs://, abfs:// or file://"
            )

    def __truediv__(self, name: str) -> str:
        return f"{self.root}/{name}"

    def sizes(self, under: str = "") -> dict[str, int]:
        """Sizes in bytes by name, below ``under``; none where there is nothing. Never an old listing."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.find(self / under if under else self.root, detail=True)
        except FileNotFoundError:
            return {}
        return {name.removeprefix(f"{self.root}/"): about["size"] for name, about in found.items() if about["type"] == "file"}

    def read(self, name: str) -> bytes:
        """The content of an object. Raises FileNotFoundError."""
        content: bytes = self.fs.cat_file(self / name)
        return content

    def write(self, name: str, content: bytes, new: bool = False) -> None:
        """Write an object whole. ``new``: raises FileExistsError where there is one, also where two writers race."""
        if new and self.fs.exists(self / name):  # a plain answer; the race is decided by the condition
            raise FileExistsError(name)
        if new and self._folders:
            with self.fs.open(self / name, "xb") as file:
                file.write(content)
        else:
            self.fs.pipe_file(self / name, content, mode="create" if new else "overwrite")

    def put(self, path: Path, name: str) -> None:
        """Upload a file that nobody writes to."""
        self.fs.put_file(str(path), self / name)

    def get(self, name: str, path: Path) -> None:
        """Download an object; what it lies in is made. Raises FileNotFoundError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fs.get_file(self / name, str(path))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects one by one, in order; those that are gone are passed over."""
        for name in names:
            with suppress(FileNotFoundError):
                self.fs.rm_file(self / name)
            with suppress(OSError):  # folders that are not empty, of which only a file system has any
                for parent in list(Path(self / name).parents)[: name.count("/")] if self._folders else ():
                    parent.rmdir()
