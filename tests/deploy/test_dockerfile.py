"""What can be known of the image without building it: its files, extras, pins and user."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

from penstock.deploy.manifests import USER
from penstock.deploy.needs import BY_KIND, BY_PREFIX, BY_VALUE, FOREIGN, IMPLIED
from penstock.deploy.options import IMAGE_EXTRAS, SECRETIVE

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_it_copies_is_there_and_not_ignored() -> None:
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE) for word in line.split()[:-1]]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert copied == ["pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src"]
    assert all((ROOT / name).exists() and f"!{name}" in allowed for name in copied)


def test_its_extras_exist_and_its_versions_are_the_tested_ones() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=([\w,]+)$", TEXT, re.MULTILINE)
    assert '".[$EXTRAS]"' in TEXT
    assert extras == IMAGE_EXTRAS
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert {"ray", "monitors", "s3"} <= set(extras.split(","))
    assert "--constraint constraints.txt" in TEXT
    assert re.search(r"^torch==[\d.]+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)


def test_it_runs_as_the_user_of_the_pods_and_holds_no_secret() -> None:
    assert re.findall(r"^USER (.*)$", TEXT, re.MULTILINE) == [f"{USER}:{USER}"]
    names = re.findall(r"^(?:ARG|ENV) (.*)$", TEXT, re.MULTILINE)
    assert not any(SECRETIVE.search(name) for name in names)


def test_kuberays_probes_find_their_program() -> None:
    assert re.search(r"apt-get install \S+ \S+ wget", TEXT)


def test_what_runs_may_need_are_extras_that_the_image_can_have() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {*BY_KIND.values(), *BY_VALUE.values(), *BY_PREFIX.values(), *IMPLIED, *IMPLIED.values()}
    assert named - extras.keys() == set(FOREIGN)
    for extra, implied in IMPLIED.items():
        assert f"penstock[{implied}]" in extras[extra] or set(extras[implied]) <= set(extras[extra])


def test_the_build_arguments_reach_pip(tmp_path: Path) -> None:
    """The step that installs, by a shell, with programs that only say how they are called."""
    (step,) = re.findall(r"^RUN (python -m venv .*)$", TEXT, re.MULTILINE)
    for name in ("python", "pip"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "{name}"; printf " <%s>" "$@"; echo\n')
        (tmp_path / name).chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DEVICE": "cuda",
        "EXTRAS": "ray,wandb",
        "PACKAGES": "vllm b",
    }
    script = re.sub(r"\S+/bin/pip", "pip", step)
    done = subprocess.run(["sh", "-ec", script], cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert "<.[ray,wandb]> <ray[default]> <vllm> <b>" in done.stdout
    assert "whl/cpu" not in done.stdout
