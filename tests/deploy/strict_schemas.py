"""Strict validation of manifests: a field that a schema does not know is an error, as in kubectl apply --validate=strict."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from penstock.config.run import Run
from penstock.deploy.manifests import render
from penstock.deploy.options import Options, Target

SCHEMAS = Path(__file__).with_name("schemas")
KUBERNETES = "1.37"
CORE = {"ConfigMap", "NetworkPolicy", "PersistentVolumeClaim"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "namespace": {"type": "string"}, "labels": TEXTS, "annotations": TEXTS},
    "additionalProperties": False,
}
"""What a CustomResourceDefinition says nothing of, in pod templates either."""


def objects(run: Run, target: Target, options: Options) -> list[dict[str, Any]]:
    """The Kubernetes objects that are printed for a run."""
    return list(yaml.safe_load_all(render(run, target, options)))


def strict(schema: Any) -> Any:
    """A schema that refuses what it does not name. Numbers of resources may be texts."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items() if name != "properties"}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "properties" in schema:
        made["properties"] = {
            name: METADATA if name == "metadata" and one == {"type": "object"} else strict(one)
            for name, one in schema["properties"].items()
        }
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    return made


@functools.cache
def custom() -> dict[tuple[str, str], dict[str, Any]]:
    """The stored schemas by apiVersion and kind."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in SCHEMAS.glob("*.json")]
    return {(f"{one['group']}/{one['version']}", one["kind"]): one for one in found}


@functools.cache
def _validator(version: str, kind: str) -> Any:
    return jsonschema.Draft7Validator(strict(custom()[version, kind]["schema"]))


def problems(made: dict[str, Any]) -> list[str]:
    """What is wrong with an object, a line for each."""
    if made["kind"] in CORE:
        return _core_problems(made)
    found = [
        f"{made['kind']}.{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in _validator(made["apiVersion"], made["kind"]).iter_errors(made)
    ]
    for template in templates(made):  # what a CRD has copied from an older Kubernetes
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template["metadata"]}, "spec": template["spec"]}
        found += _core_problems(pod)
    return found


def _core_problems(made: dict[str, Any]) -> list[str]:
    if "apiVersion" not in made:
        return [f"{made['kind']}: 'apiVersion' is a required property"]
    try:
        kubernetes_validate.validate(made, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{made['kind']}.{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """The pod templates anywhere in an object."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}) and "metadata" in value:
            yield value
        for inner in value.values():
            yield from templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from templates(inner)
