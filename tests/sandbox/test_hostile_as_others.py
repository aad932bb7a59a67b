"""The same attacks as root and as an ordinary user, by an interpreter that both may execute, on both jails."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ORDINARY = 23456
"""A user without an account."""
WITH_PYTEST = str(Path(pytest.__file__).resolve().parents[1])
PYTHONS = [f"{sys.base_prefix}/bin/python3", "/usr/bin/python3", "/usr/local/bin/python3"]


def reachable() -> str | None:
    """An interpreter of this version that every user may execute, behind folders that all may enter."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for each in map(Path, PYTHONS):
        real = each.resolve()
        if real.exists() and real.name == version and all(folder.stat().st_mode & 1 for folder in (real, *real.parents)):
            return str(real)
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(reachable() is None, reason="no interpreter of this version that every user may execute")
@pytest.mark.parametrize("user", [0, ORDINARY])
def test_every_attack_is_stopped_for_this_user_on_both_jails(user):
    root = TESTS.parents[1]
    with tempfile.TemporaryDirectory() as home:  # pytest's own lies below a folder of root's
        os.chown(home, user, user)
        os.chmod(home, 0o755)  # root's programs are another user's
        done = attacked(user, home, root)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


def attacked(user, home, root):
    return subprocess.run(
        [reachable(), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-c", os.devnull,
         "-k", "not thousand", "--rootdir", str(TESTS), str(TESTS / "test_hostile_programs.py")],
        env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1",
             "PYTHONPATH": f"{root / 'src'}{os.pathsep}{WITH_PYTEST}", "PENSTOCK_JAILS": "namespaces landlock"},
        user=user, group=user, extra_groups=[], cwd=home, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
