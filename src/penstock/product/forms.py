"""Feedback as training data: the forms of the source ``feedback:STORE``, each pinned.

- ``pairs``, ``completions``, ``corrections``: what annotators said (``exchange.snapshot``)
- ``product``: rows for KTO, of responses on which enough users agree (``product.Policy``)
- ``product_corrections``: users' edits that were approved, for SFT and as pairs
- ``prompts``: rows of another source with the column ``corrections`` for their template, and ``arm`` with it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from penstock.config.run import DataSpec
from penstock.config.spec import parse, suggestion
from penstock.core.errors import DataError
from penstock.data.render import Template
from penstock.data.sources import open_source
from penstock.feedback.exchange.snapshot import FORMS as VOTES
from penstock.feedback.exchange.snapshot import Labels, chosen, snapshot
from penstock.feedback.records import DEFAULT
from penstock.feedback.store import Store
from penstock.product import log as product_log
from penstock.product import quarantine
from penstock.product.labels import Policy, labels_of
from penstock.product.search import Corrections, Embedder, HashedEmbedder, Retrieval
from penstock.product.tenants import tenant

Row = dict[str, Any]
Pins = dict[str, Any]
ADDED = ("corrections", "arm", "corrections_used")
"""Columns that ``prompts`` adds."""


def names_of(spec: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(spec))


def votes(store: Store, options: Mapping[str, Any], base: Path) -> tuple[list[Row], Pins]:
    """What annotators said, after the first ``until`` events."""
    form, labels = options.get("form", "pairs"), chosen(Labels, options)
    taken = snapshot(store, options.get("until"), store.project(options.get("project", DEFAULT)).name)
    found = VOTES[form](taken, labels)
    if not found:
        natures = ", ".join(sorted(set(taken.natures.values()))) or "nobody"
        raise DataError(
            f"{taken.until} events give no {form} by votes of {', '.join(labels.natures)} "
            f"(annotators there are: {natures}); collect votes, or choose natures and form in options"
        )
    return found, {"until": taken.until}


def product(store: Store, options: Mapping[str, Any], base: Path) -> tuple[list[Row], Pins]:
    """Labelled completions, after the first ``until`` signals."""
    taken = product_log.snapshot(store, options.get("until"))
    found = labels_of(taken, chosen(Policy, options))
    if not found:
        raise DataError(
            f"{taken.until} signals give no label on which enough users agree; collect more, or choose users, share and signals"
        )
    return found, {"until": taken.until}


def product_corrections(store: Store, options: Mapping[str, Any], base: Path) -> tuple[list[Row], Pins]:
    """Approved edits, after the first ``until`` rulings. Expiry is for prompts; what was once right may be learned from."""
    until = options.get("until", quarantine.length(store))
    found = quarantine.rows_of(quarantine.approved(store, options.get("tenant", ""), until))
    if not found:
        raise DataError(f"{until} rulings leave no approved correction; an adjudicator approves them: /api/corrections")
    return found, {"until": until}


def prompts(store: Store, options: Mapping[str, Any], base: Path) -> tuple[list[Row], Pins]:
    """Rows of the source ``rows`` (its name, or the fields of a DataSpec) with the columns of :class:`Retrieved`.

    A row's request is its place in its source, so each row is in one arm for ever. What had expired when the run began
    (``at``) is left out.
    """
    for needed in ("rows", "tenant"):
        if not options.get(needed):
            raise DataError(
                f'form="prompts" needs the option {needed}: rows, a source of prompts, and tenant, whose corrections'
            )
    given = options["rows"]
    spec = parse(DataSpec, {"source": given} if isinstance(given, str) else given, "options.rows")
    if spec.source.startswith("feedback:"):
        raise DataError(f"options.rows={spec.source}: give a source of prompts, not a feedback store")
    pins = {"until": options.get("until", quarantine.length(store)), "at": options.get("at", store.now())}
    embedder = embedder_of(options.get("embedder", "hashed"), base)
    found_by = chosen(Retrieval, options)
    corrections = Corrections(store, tenant(store, options["tenant"]), embedder, found_by, until=pins["until"])
    source, question = open_source(spec, base), Template("prompt", spec.prompt)
    made: list[Row] = []
    for index in range(len(source)):
        row, where = dict(source[index]), f"{source.name} row {index}"
        taken = [name for name in ADDED if name in row]
        if taken:
            raise DataError(f'{where}: has a column "{taken[0]}" already; rename it')
        found = corrections.retrieve(question(row, where), f"{source.name}/{index}", at=pins["at"])
        made.append({**row, **found.columns()})
    return made, pins


def embedder_of(name: str, base: Path) -> Embedder:
    """``hashed``, or the model in a folder. Raises ModelError: no such folder, or no model in it."""
    if name == "hashed":
        return HashedEmbedder()
    from penstock.models.embedding import ModelEmbedder

    return ModelEmbedder(str((base / Path(name).expanduser()).resolve()))


FORMS: Mapping[str, Callable[[Store, Mapping[str, Any], Path], tuple[list[Row], Pins]]] = {
    **dict.fromkeys(VOTES, votes),
    "product": product,
    "product_corrections": product_corrections,
    "prompts": prompts,
}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(VOTES, (*names_of(Labels), "project")),
    "product": names_of(Policy),
    "product_corrections": ("tenant",),
    "prompts": ("rows", "tenant", "embedder", "at", *names_of(Retrieval)),
}


def read(store: Store, options: Mapping[str, Any], base: Path) -> tuple[list[Row], Pins]:
    """The rows of a form, and what pins them. Raises DataError: an unknown form or option, or no rows."""
    form = options.get("form", "pairs")
    if form not in FORMS:
        raise DataError(f'form="{form}"{suggestion(str(form), FORMS)}')
    known = ("form", "until", "content", *OPTIONS[form])
    for name in options:
        if name not in known:
            raise DataError(f'form="{form}": unknown option "{name}"{suggestion(name, known)}')
    return FORMS[form](store, options, base)
