"""Own views of the machine for a process: users, processes, files, network, IPC, host name. unshare(2), mount_setattr(2)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.sandbox.kernel import ARM, syscall

_MS_NOSUID, _MS_NODEV, _MS_PRIVATE_ALL = 2, 4, 1 << 18 | 1 << 14
_NEW_USER, _NEW_PID, _NEW_REST = 0x10000000, 0x20000000, 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000
_CLONE_TREE = 1 | 0x80000 | 0x8000  # OPEN_TREE_CLONE, O_CLOEXEC, AT_RECURSIVE
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_BASE, _INODES = "/tmp", 8192


def own_processes(own_user: bool) -> None:
    """The next process that is forked is the first of a process namespace: when it dies, all in it die.

    ``own_user``: in a new user namespace, where this process's own user and group are the only ones and have all capabilities.
    """
    user, group = os.geteuid(), os.getegid()
    syscall(97 if ARM else 272, _NEW_PID | (_NEW_USER if own_user else 0))
    if own_user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def own_files(readable: Sequence[str], file_bytes: int) -> None:
    """Leave the host's file system, network and IPC for new ones; ends in the empty folder ``/work``.

    The new root is a file system in memory of ``file_bytes``; ``/work``, ``/tmp`` and ``/dev/shm`` are everybody's, and
    ``readable`` paths of the host are there read-only.
    """
    syscall(97 if ARM else 272, _NEW_REST)
    _mount(None, "/", None, _MS_PRIVATE_ALL, "")
    links = [path for path in readable if os.path.islink(path)]
    kept = [path for path in readable if path not in links and os.path.exists(path)]
    trees = [(path, os.path.isdir(path), _tree(path, _READ_ONLY | _NO_SUID | _NO_DEVICES)) for path in kept]
    trees += [(path, False, _tree(path, _NO_SUID | _NO_EXECUTION)) for path in _DEVICES]
    _mount("sandbox", _BASE, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={file_bytes},nr_inodes={_INODES},mode=755")
    for folder in ("/work", "/tmp", "/dev/shm"):
        os.makedirs(_BASE + folder)
        os.chmod(_BASE + folder, 0o1777)
    for path, is_folder, tree in trees:
        target = _BASE + path
        if is_folder:
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        syscall(429, tree, b"", -100, os.fsencode(target), 4)  # move_mount
        os.close(tree)
    for path in links:
        os.makedirs(os.path.dirname(_BASE + path), exist_ok=True)
        os.symlink(os.readlink(path), _BASE + path)
    os.chdir(_BASE)
    syscall(41 if ARM else 155, b".", b".")  # pivot_root: the old root now lies over the new one, and is let go
    syscall(39 if ARM else 166, b".", 2)
    os.chdir("/work")


def _tree(path: str, attributes: int) -> int:
    """A copy of the mounts at a path with these attributes, everywhere in it, attached nowhere yet."""
    tree = syscall(428, -100, os.fsencode(path), _CLONE_TREE)
    syscall(442, tree, b"", 0x1000 | 0x8000, attributes.to_bytes(8, "little") + bytes(24), 32)
    return tree


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str) -> None:
    given = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    syscall(40 if ARM else 165, *given, flags, os.fsencode(data))
