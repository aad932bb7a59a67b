"""The commands of ``penstock feedback`` for products: tokens, rulings on their users' corrections, and what those are worth.

``opened`` opens the store of a place; the store must be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli.recipe import no_more_flags, take
from penstock.config.spec import suggestion
from penstock.core.errors import SpecError

if TYPE_CHECKING:
    from penstock.feedback.store import Store

Opened = Callable[[str], "Store"]
MOST_SHOWN = 400
"""Characters of each text of a correction in a terminal."""


@dataclass(frozen=True)
class Given:
    """A command's arguments and flags."""

    arguments: Sequence[str]
    flags: dict[str, Any]


def read(command: str, words: Sequence[str], names: Sequence[str], **flags: Any) -> Given:
    """Raises SpecError for arguments or flags that the command does not have."""
    left, own = take(words, **flags)
    no_more_flags(left, *own, "help")
    if len(left) != len(names):
        raise SpecError(f"penstock feedback {command} {' '.join(names)}: got {len(left)} of them")
    return Given(left, own)


def product(words: Sequence[str], opened: Opened) -> None:
    """Print a new token of a tenant, or switch off all of them."""
    given = read("product", words, ("STORE", "TENANT"), revoke=False)
    from penstock.feedback.product.log import new_token, revoke_tokens

    place, tenant = given.arguments
    with opened(place) as store:
        if given.flags["revoke"]:
            print(f"{revoke_tokens(store, tenant)} tokens of {tenant} are switched off")
        else:
            print(new_token(store, tenant))


def corrections(words: Sequence[str], opened: Opened) -> None:
    """List what waits for a ruling, after taking in annotators' edits if told to.

    Texts are printed as JSON: a terminal must not obey what a stranger wrote.
    """
    given = read("corrections", words, ("STORE",), tenant="", gather="")
    from penstock.feedback.corrections.quarantine import gather, waiting

    with opened(given.arguments[0]) as store:
        if given.flags["gather"]:
            print(f"{gather(store, given.flags['gather'])} new edits of annotators, for {given.flags['gather']}")
        found = waiting(store, given.flags["tenant"])
    for one in found:
        print(f"{one.correction.id} · {one.correction.tenant}" + "".join(f" · {odd}" for odd in one.suspicions))
        for name, text in one.correction.body.items():
            print(f"  {name:<9}{json.dumps(text[:MOST_SHOWN])}")
    print(f"{len(found)} corrections wait" + (": penstock feedback rule STORE ID approved|rejected --by NAME" if found else ""))


def rule(words: Sequence[str], opened: Opened) -> None:
    """Decide about a correction, as an adjudicator."""
    given = read("rule", words, ("STORE", "CORRECTION", "VERDICT"), by="", note="", days=180.0)
    from penstock.feedback.corrections import quarantine

    place, name, verdict = given.arguments
    if verdict not in quarantine.VERDICTS:
        raise SpecError(f'no verdict "{verdict}"{suggestion(verdict, quarantine.VERDICTS)}')
    if not given.flags["by"]:
        raise SpecError("say who decides: --by NAME, an adjudicator or administrator of this store")
    with opened(place) as store:
        made = quarantine.rule(store, name, verdict, given.flags["by"], given.flags["note"], given.flags["days"])
    print(f"ruling {made.sequence}: {made.correction} {made.verdict} by {made.annotator}")


def effect(words: Sequence[str], opened: Opened) -> None:
    """Compare the arms of a tenant's requests."""
    given = read("effect", words, ("STORE", "TENANT"))
    from penstock.feedback.corrections.effect import effect as measured

    place, tenant = given.arguments
    with opened(place) as store:
        found = measured(store, tenant)
    print(f"good signals with corrections {found.with_corrections:.1%} ({found.units[0]} users), without {found.without:.1%} "
          f"({found.units[1]})")  # fmt: skip
    low, high = found.interval
    said = "clear" if found.clear else "could be chance"
    print(f"difference {found.difference:+.1%}, 95% interval {low:+.1%} to {high:+.1%}: {said}")
