"""EnvPool: environments written in C++ and stepped by threads, behind gymnasium's vector API. The home of the import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import SpecError

try:
    import envpool
except ImportError as error:
    raise SpecError("environments.vectorization=envpool needs that package; run: pip install 'penstock[envpool]'") from error


def pool(name: str, seeds: Sequence[int], options: Mapping[str, Any]) -> Any:
    """As many environments as there are seeds. ``options`` are EnvPool's, such as ``num_threads``.

    What ended is reset by the next step, as EnvPool's metadata say. An episode that its task ends in the very step in which
    time is up counts as truncated there.

    Raises:
        SpecError: EnvPool has no such environment; it has names of its own (HalfCheetah-v4, Pong-v5).
    """
    if name not in envpool.list_all_envs():
        raise SpecError(f"EnvPool has no {name}; its names are those of envpool.list_all_envs()")
    if "render_mode" in options and "mujoco" in envpool.registration.registry.specs[name][0]:
        raise SpecError(
            f"{name}: EnvPool draws MuJoCo by OpenGL and ends the process where there is none; set evaluation.film=0"
        )
    return envpool.make_gymnasium(name, num_envs=len(seeds), seed=list(seeds), **options)
