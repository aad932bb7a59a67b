"""The commands of ``penstock feedback`` for products: tokens, rulings on their users' corrections, and what those are worth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional

from penstock.cli.command import called
from penstock.cli.commands.feedback import ProjectCommand, StoreCommand, opened

MOST_SHOWN = 400
"""Characters of each text of a correction in a terminal."""


@dataclass(kw_only=True)
class TenantCommand(StoreCommand):
    """Base of the commands about one product."""

    tenant: Positional[Annotated[str, called("TENANT")]]
    """The name of the product."""


@dataclass(kw_only=True)
class Product(TenantCommand):
    """Print a token, once, with which a product sends what its users do (docs/feedback_product.md)."""

    revoke: bool = False
    """Switch off all its tokens instead."""

    def run(self) -> None:
        """Print the token, or how many are switched off."""
        from penstock.product.tenants import new_token, revoke_tokens

        with opened(self.store) as store:
            if self.revoke:
                print(f"{revoke_tokens(store, self.tenant)} tokens of {self.tenant} are switched off")
            else:
                print(new_token(store, self.tenant))


@dataclass(kw_only=True)
class Corrections(ProjectCommand):
    """List the corrections that nobody has ruled on."""

    tenant: Annotated[str, called("NAME")] = ""
    """Of one product only."""
    gather: Annotated[str, called("TENANT")] = ""
    """First take in annotators' edits, for this product."""

    def run(self) -> None:
        """Print them. Texts are printed as JSON: a terminal must not obey what a stranger wrote."""
        from penstock.product.quarantine import gather, waiting

        with opened(self.store) as store:
            if self.gather:
                new = gather(store, self.gather, store.project(self.project).name)
                print(f"{new} new edits of annotators, for {self.gather}")
            found = waiting(store, self.tenant)
        for one in found:
            print(f"{one.id} · {one.tenant}" + "".join(f" · {odd}" for odd in one.suspicions))
            for name, text in one.body.items():
                print(f"  {name:<9}{json.dumps(text[:MOST_SHOWN])}")
        how = ": penstock feedback rule STORE ID approved|rejected --by NAME" if found else ""
        print(f"{len(found)} {'correction is' if len(found) == 1 else 'corrections are'} waiting{how}")


@dataclass(kw_only=True)
class Rule(StoreCommand):
    """Decide about a correction, as an adjudicator."""

    correction: Positional[Annotated[str, called("CORRECTION")]]
    """Its id, as penstock feedback corrections prints it."""
    verdict: Positional[Annotated[Literal["approved", "rejected", "withdrawn"], called("VERDICT")]]
    """approved, rejected or withdrawn."""
    by: Annotated[str, called("NAME")]
    """Who decides: an adjudicator or administrator of this store."""
    note: Annotated[str, called("TEXT")] = ""
    """Why."""
    days: float = 180.0
    """For how long an approval holds."""

    def run(self) -> None:
        """Keep the ruling and print it."""
        from penstock.product import quarantine

        with opened(self.store) as store:
            made = quarantine.rule(store, self.correction, self.verdict, self.by, self.note, self.days)
        print(f"ruling {made.sequence}: {made.correction} {made.verdict} by {made.annotator}")


@dataclass(kw_only=True)
class Effect(TenantCommand):
    """Compare how users liked answers with corrections in their prompts and answers without."""

    def run(self) -> None:
        """Print both shares and their difference."""
        from penstock.product.effect import effect as measured

        with opened(self.store) as store:
            found = measured(store, self.tenant)
        print(f"good signals with corrections {found.with_corrections:.1%} ({found.units[0]} users), "
              f"without {found.without:.1%} ({found.units[1]})")  # fmt: skip
        low, high = found.interval
        said = "clear" if found.clear else "could be chance"
        print(f"difference {found.difference:+.1%}, 95% interval {low:+.1%} to {high:+.1%}: {said}")
