"""What stays light: help, specs, ``explain`` and the processes that compute nothing answer at once, since they import no torch.

One interpreter imports all of it in turn, the lightest first, and notes after each step what is there; only the first step that
imports too much is at fault, those after it fail with it. That no module needs another imported before it is
``test_architecture.py``'s.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.feedback

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "penstock"
TORCH = ["torch", "transformers"]
HEAVY = [*TORCH, "numpy", "jinja2", "rich", "penstock.config.run"]
SPECS = sorted(
    f"penstock.{folder}.{path.stem}" for folder in ("core", "config") for path in (PACKAGE / folder).glob("[!_]*.py")
)
STORE = [f"penstock.feedback.{module.name}" for module in pkgutil.iter_modules(penstock.feedback.__path__) if not module.ispkg]
PROCESSES = ["runtime.hub", "runtime.remote", "runtime.roles.rank", "runtime.supervise"]
BUILDING = "import penstock.algos as a; a.PPO(), a.SFT(), a.LeaveOneOut(), a.BradleyTerry(), a.GRPO().loss()"

STEPS: dict[str, tuple[str, list[str]]] = {
    "the package": ("import penstock", HEAVY),
    **{f"penstock {' '.join(words)}": (f"from penstock.cli.main import main; main({words!r})", HEAVY)
       for words in (["--help"], [], ["--version"], ["trian"])},
    **{name: (f"import {name}", TORCH) for name in [*SPECS, "penstock.algos", "penstock.recipes"]},
    "building algorithms": (BUILDING, TORCH),
    **{name: (f"import {name}", TORCH) for name in STORE},
    **{name: (f"import penstock.{name}", TORCH) for name in PROCESSES},
}  # fmt: skip
"""What is done, and what must not be imported then."""
CODE = """
import contextlib, io, json, sys
for name, (code, heavy) in json.loads(sys.argv[1]).items():
    error = None
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(code)
    except BaseException as raised:
        error = repr(raised)
    print(json.dumps([name, sorted(set(heavy) & set(sys.modules)), error]))
"""


def done(steps: dict[str, tuple[str, list[str]]]) -> dict[str, tuple[list[str], str | None]]:
    """What each step imported that it must not, and its error."""
    ran = subprocess.run([sys.executable, "-B", "-c", CODE, json.dumps(steps)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return {name: (heavy, error) for name, heavy, error in map(json.loads, ran.stdout.splitlines())}


@pytest.fixture(scope="module")
def imported() -> dict[str, tuple[list[str], str | None]]:
    return done(STEPS)


@pytest.mark.parametrize("name", STEPS)
def test_it_imports_nothing_heavy(name: str, imported: dict[str, tuple[list[str], str | None]]) -> None:
    assert imported[name] == ([], None)


def test_model_files_are_read_without_diffusers() -> None:
    step = {"penstock.models.files": ("import penstock.models.files", ["diffusers"])}
    assert done(step) == {"penstock.models.files": ([], None)}
