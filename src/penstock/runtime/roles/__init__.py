"""The programs of a run's processes: one file for each role, with an ``async function run(bootstrap)``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.config.roles import roles
from penstock.core.errors import RoleError
from penstock.data.resolve import resolve
from penstock.runtime.bootstrap import Bootstrap


def program_of(bootstrap: Bootstrap) -> Callable[[Bootstrap], Coroutine[Any, Any, None]]:
    """What a process of a role runs.

    Raises:
        RoleError: nobody registered the role.
    """
    if bootstrap.role not in roles():
        raise RoleError(f'there is no role "{bootstrap.role}"; registered are {", ".join(roles())}')
    if named := roles()[bootstrap.role].program:
        return resolve(named, bootstrap.base)
    found: Callable[[Bootstrap], Coroutine[Any, Any, None]] = importlib.import_module(f"{__name__}.{bootstrap.role}").run
    return found
