"""``python reduce.py FILE.yaml``: the schema of a CustomResourceDefinition as a test needs it, compact, on standard output.

Kept are the rules of structure; descriptions, defaults and status go. ``cel`` counts the blocks of CEL rules that are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

KEPT = {
    "type", "required", "enum", "pattern", "format", "nullable", "minimum", "maximum", "minItems", "maxItems", "minLength",
    "maxLength", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip


def reduced(schema: Any) -> Any:
    """A schema without what says nothing of structure."""
    if not isinstance(schema, dict):
        return schema
    made = {name: value for name, value in schema.items() if name in KEPT}
    made |= {name: reduced(schema[name]) for name in ("items", "additionalProperties", "not") if name in schema}
    made |= {name: [reduced(one) for one in schema[name]] for name in ("anyOf", "oneOf", "allOf") if name in schema}
    if "properties" in schema:
        made["properties"] = {name: reduced(one) for name, one in schema["properties"].items()}
    return made


def blocks(schema: Any) -> int:
    """Blocks of CEL rules anywhere in a schema."""
    if isinstance(schema, list):
        return sum(map(blocks, schema))
    if not isinstance(schema, dict):
        return 0
    return len(schema.get("x-kubernetes-validations", ())) + sum(map(blocks, schema.values()))


if __name__ == "__main__":
    spec = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))["spec"]
    version = next(one for one in reversed(spec["versions"]) if one["storage"])
    whole = version["schema"]["openAPIV3Schema"]
    whole["properties"].pop("status", None)
    kind = {"group": spec["group"], "version": version["name"], "kind": spec["names"]["kind"], "cel": blocks(whole)}
    print(json.dumps({**kind, "schema": reduced(whole)}, separators=(",", ":"), sort_keys=True))
