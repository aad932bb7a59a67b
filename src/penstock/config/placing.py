"""``--placement colocate | split | FILE.toml``: what lands where in a cluster, from the command line, and in words."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.config.engine_choice import weights_way
from penstock.config.placement import Bundle, Colocate, Placed, Resources, Split
from penstock.config.roles import roles
from penstock.config.run import Run
from penstock.config.spec import parse, suggestion
from penstock.core.errors import SpecError

NAMED = {"colocate": Colocate, "split": Split}


def placed(run: Run, text: str) -> Run:
    """The run with the placement that a flag gives; as it is where ``text`` is empty.

    Raises:
        SpecError: the run has no cluster, or the placement cannot be read; one line.
    """
    if not text:
        return run
    if run.runtime != "ray":
        raise SpecError(
            f'--placement says what lands where in a Ray cluster, and the runtime is "{run.runtime}"; add --runtime ray'
        )
    return dataclasses.replace(run, roles=dataclasses.replace(run.roles, placement=read_placement(text)))


def read_placement(text: str) -> Any:
    """The placement of a word or a file. Raises SpecError with one line that says what is wrong."""
    if text in NAMED:
        return NAMED[text]()
    if not text.endswith(".toml"):
        raise SpecError(f"--placement {text}: there is no such placement; use colocate, split or a FILE.toml")
    try:
        found = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"--placement {text}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"--placement {text}: {error}") from error
    return Placed(roles={role: resources_of(text, role, values) for role, values in found.items()})


def resources_of(file: str, role: str, values: Any) -> Resources:
    """What a section of a placement file says of a role."""
    if role not in roles():
        raise SpecError(f'{file}: unknown role "{role}"{suggestion(role, roles())}; roles are {", ".join(roles())}')
    if not isinstance(values, Mapping):
        raise SpecError(f"{file}: {role} is no section; write [{role}] and below it cpus = 1")
    try:
        return parse(Resources, values)
    except SpecError as error:
        raise SpecError(f"{file}: [{role}]: {error}") from error


def placement_lines(run: Run) -> list[str]:
    """What lands where, for ``penstock explain``."""
    plan = run.roles.placement.bundles(run)
    name = type(run.roles.placement).__name__.lower()
    how = {"PACK": "on as few nodes as there is room", "SPREAD": "on as many nodes as there are"}[plan.strategy]
    return [
        f"  runtime ray: the driver keeps the stream, actors the rest; placement {name}: {len(plan.bundles)} bundles, {how}",
        *(f"    bundle {index:<3}{', '.join(bundle.processes)}: {shown(bundle)}" for index, bundle in enumerate(plan.bundles)),
        f"  weights go {weights_way(run)}; the run's folder is one that all nodes see",
    ]


def shown(bundle: Bundle) -> str:
    """What a bundle takes, in words."""
    return ", ".join(f"{amount:g} {name}" for name, amount in bundle.total.items()) or "nothing"
