"""Files that are replaced whole: who may read them, and what lies in their way."""

import os
import stat

import pytest

from penstock.core.files import replaced


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_private_file_is_nobody_else_s(tmp_path, private, mode):
    before = os.umask(0o022)
    try:
        with replaced(tmp_path / "file", private=private) as out:
            out.write("text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_link_in_the_way_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".file.{os.getpid()}.writing").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), replaced(tmp_path / "file") as out:
        out.write("text")
    assert (tmp_path / "victim").read_text() == "mine"
    with replaced(tmp_path / "file") as out:
        out.write("text")
    assert (tmp_path / "file").read_text() == "text"
