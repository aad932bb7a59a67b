"""``--patch FILE``: what the printed objects say otherwise in one cluster, as Kubernetes' own patches are written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from penstock.config.spec import require
from penstock.core.errors import SpecError
from penstock.deploy.needs import texts
from penstock.deploy.options import SECRET

KEYS = ("mountPath", "containerPort", "name", "port")
"""What tells the items of a list apart, the first that all of them have."""


def patched(text: str, file: str) -> str:
    """A manifest with the patches of a YAML file. Objects that none changes stay as they were printed.

    Raises:
        SpecError: the file is no YAML of patches, one matches no object, or takes away what the run needs.
    """
    try:
        patches = [one for one in yaml.safe_load_all(Path(file).read_text(encoding="utf-8")) if one is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"--patch {file}: {' '.join(str(error).split())}") from error
    require(bool(patches), f"--patch {file} is empty; write objects with kind and what is to be changed")
    parts = text.split("\n---\n")
    objects = [yaml.safe_load(part) for part in parts]
    changed = copy.deepcopy(objects)
    for patch in patches:
        good = isinstance(patch, dict) and isinstance(patch.get("kind"), str) and isinstance(patch.get("metadata", {}), dict)
        require(good, f"--patch {file}: a patch is a map with kind, perhaps metadata.name, and what is to be changed")
        require(
            not any(map(SECRET.search, texts(patch))),
            f"--patch {file} would print a secret; put it into a Secret: --secret NAME",
        )
        name = patch.get("metadata", {}).get("name")
        places = [
            i for i, one in enumerate(objects) if one["kind"] == patch["kind"] and name in (None, one["metadata"]["name"])
        ]
        there = ", ".join(f"{one['kind']} {one['metadata']['name']}" for one in objects)
        require(bool(places), f"--patch {file}: there is no {patch['kind']} {name or ''}".rstrip() + f"; there are {there}")
        for place in places:
            changed[place] = _merged(changed[place], patch)
    for place, (before, after) in enumerate(zip(objects, changed, strict=True)):
        if before == after:
            continue
        what = f"--patch {file}: {before['kind']} {before['metadata']['name']}"
        require(_stands(before) == _stands(after), f"{what} would lose its apiVersion, name, labels or a container of its pods")
        comments = "".join(f"{line}\n" for line in parts[place].splitlines() if line.startswith("# "))
        parts[place] = comments + yaml.safe_dump(after, sort_keys=False, allow_unicode=True, width=2**31).rstrip("\n")
    return "\n---\n".join(parts).rstrip("\n") + "\n"


def _merged(old: Any, new: Any) -> Any:
    """Maps merge and null deletes; lists whose items a key tells apart merge by it, others are replaced."""
    if isinstance(new, dict):
        made = dict(old) if isinstance(old, dict) else {}
        for name, value in new.items():
            if value is None:
                made.pop(name, None)
            else:
                made[name] = _merged(made.get(name), value)
        return made
    if not (isinstance(old, list) and isinstance(new, list) and old and new):
        return new
    for key in KEYS:
        if all(isinstance(one, dict) and key in one for one in [*old, *new]):
            named = {one[key]: one for one in old}
            if len(named) == len(old):
                return list((named | {one[key]: _merged(named.get(one[key]), one) for one in new}).values())
    return new


def _stands(made: dict[str, Any]) -> tuple[Any, ...]:
    """What a patch leaves as it is: what the object is, and the labels and containers by which its pods are found."""
    head = made.get("metadata") or {}
    return made.get("apiVersion"), made.get("kind"), head.get("name"), head.get("namespace"), sorted(_pods(made))


def _pods(value: Any) -> Iterator[tuple[str, ...]]:
    """The container and the run's labels of each pod template."""
    if isinstance(value, dict):
        if isinstance(containers := value.get("containers"), list):
            yield from ((str(one.get("name")),) for one in containers[:1] if isinstance(one, dict))
        labels = value.get("labels")
        if isinstance(labels, dict):
            yield tuple(f"{name}={text}" for name, text in sorted(labels.items()) if name.startswith("app.kubernetes.io/"))
        for inner in value.values():
            yield from _pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _pods(inner)
