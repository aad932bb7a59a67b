"""A disk that takes no more says so at the write it did not take, with what is left of it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from penstock.core.files import append_to, cause


def test_a_line_of_which_a_part_is_written_is_an_error(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with append_to(tmp_path / "log") as log:
        assert log.write(b"x" * 60) == 60
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OSError, match="too large") as full:
                log.write(b"y" * 60)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.errno == errno.EFBIG
    with append_to(tmp_path / "log") as log:
        log.write(b"z\n")
    assert (tmp_path / "log").read_bytes() == b"x" * 60 + b"y" * 40 + b"\nz\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_the_error_of_a_full_disk_says_how_much_is_left(number: int, tmp_path: Path) -> None:
    said = cause(OSError(number, os.strerror(number), str(tmp_path / "events.jsonl")), tmp_path)
    assert said.startswith(f"cannot write {tmp_path}/events.jsonl: {os.strerror(number)}: ")
    assert " bytes free; make room" in said


def test_another_error_is_said_as_it_is(tmp_path: Path) -> None:
    assert cause(PermissionError(errno.EACCES, "Permission denied", "f"), tmp_path) == "[Errno 13] Permission denied: 'f'"
