"""Which engine generates, said in one flag, and the Python that runs it. No torch in here: help and plans answer at once."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock.config.engines import ENGINES, VLLM, Served, SGLang
from penstock.config.run import Online, Run
from penstock.config.spec import suggestion
from penstock.config.strategies import OneDevice
from penstock.core.errors import SpecError
from penstock.runtime.supervisor import Role

USUAL = Path(".venv-vllm/bin/python")
"""Where ``make vllm`` puts the Python that has vLLM; used where the running one has none."""
ROLE = ("-m", "penstock.runtime.role")
ASKING = 120.0
"""Seconds in which a Python must say what it can import."""
_LOOPBACK = re.compile(r"https?://(127\.|localhost\b|\[::1\])")
_QUESTION = "import sys, importlib.util as u; sys.exit(0 if all(map(u.find_spec, ('vllm', 'penstock'))) else 3)"


def with_engine(run: Run, name: str) -> Run:
    """The run with the engine that ``--generator`` names, in processes if it was in one.

    Raises:
        SpecError: there is no such engine.
    """
    known = {kind.__name__.lower(): kind for kind in ENGINES}
    if name.lower() not in known:
        raise SpecError(f'--generator: there is no engine "{name}"{suggestion(name.lower(), sorted(known))}')
    kind = known[name.lower()]
    engine = VLLM(python=_python_of_vllm()) if kind is VLLM else kind()
    runtime = "procs" if run.runtime == "local" and kind is not ENGINES[0] else run.runtime
    return replace(run, runtime=runtime, roles=replace(run.roles, engine=engine))


def _python_of_vllm() -> str:
    """Empty: the running Python, which has vLLM, or nothing better was found."""
    usual = USUAL.absolute()
    return str(usual) if importlib.util.find_spec("vllm") is None and usual.exists() else ""


def require_engine(run: Run) -> None:
    """Refuse a run whose engine cannot be started, before anything is begun.

    Raises:
        SpecError: the engine's Python does not exist, or lacks vLLM or Penstock; there are too few servers, no token, or a
            process group is asked for with a server that cannot reach it.
    """
    engine = run.roles.engine
    if isinstance(engine, Served | SGLang):
        _require_servers(engine, run.roles.generators)
    if not isinstance(engine, VLLM):
        return
    python = engine.python or Role.command[0]
    remedy = f"make vllm sets one up; then --roles.engine.python {USUAL}"
    try:
        done = subprocess.run([python, "-c", _QUESTION], capture_output=True, timeout=ASKING)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"roles.engine.python={python} does not run ({error}); {remedy}") from error
    if done.returncode:
        raise SpecError(f"{python} has no vLLM with Penstock beside it; {remedy}")


def _require_servers(engine: Served | SGLang, generators: int) -> None:
    servers = len([url for url in engine.url.split(",") if url.strip()])
    if servers < generators:
        raise SpecError(f"roles.engine.url names {servers} server and there are {generators} generators; name one for each")
    far = [url.strip() for url in engine.url.split(",") if not _LOOPBACK.match(url.strip())]
    grouped = isinstance(engine, SGLang) and engine.weights == "process group"
    if grouped and far and not os.environ.get("PENSTOCK_HOST"):
        raise SpecError(
            f'roles.engine.weights="process group": {far[0]} is another machine, which cannot join a group on 127.0.0.1; set '
            "PENSTOCK_HOST to this machine's address"
        )
    if engine.key and not os.environ.get(engine.key, "").strip():
        raise SpecError(f"roles.engine.key: set the environment variable {engine.key} to the server's token")


def command_of(run: Run, kind: str, usual: Sequence[str]) -> tuple[str, ...]:
    """What starts a process of a role: generators of a foreign engine run in its own Python."""
    engine = run.roles.engine
    if kind == "generator" and isinstance(engine, VLLM) and engine.python:
        return (engine.python, *ROLE)
    return tuple(usual)


def sends_adapters(run: Run, stage: Online) -> bool:
    """Whether weights travel to the generators as low-rank adapters alone, beside matrices that never change."""
    engine, learner = run.roles.engine, stage.learner
    return isinstance(engine, VLLM) and engine.adapters and learner.lora is not None and isinstance(learner.strategy, OneDevice)


def way_of_weights(run: Run) -> str:
    """How weights get from the learner to what generates, in a line of ``penstock explain``."""
    channel, engine = run.roles.channel, run.roles.engine
    further = {"VLLM": "shared memory to vLLM's workers", "Served": "one HTTP upload"}
    last = further.get(type(engine).__name__, "")
    if isinstance(engine, SGLang):
        last = {"disk": "a folder to the server", "process group": "a process group to the server's processes"}[engine.weights]
    return f"to the generators by {channel}" + (f", then by {last}" if last else "")


def described(run: Run) -> str:
    """The engine in a line of ``penstock explain``."""
    engine = run.roles.engine
    if isinstance(engine, VLLM):
        dtype = "the weights' own" if engine.dtype == "auto" else engine.dtype
        return f"vLLM in {engine.python or 'this Python'}, {dtype} arithmetic, with processes of its own for each generator"
    return {"Embedded": "Penstock's own"}.get(type(engine).__name__, f"{type(engine).__name__}, over HTTP")
