"""From product signals to labels, with little trust: several people must agree, nobody counts for much, and what is true is
not held against a response because it was unwelcome.

Thumbs are easy to give, to fake and to please. A policy that is rewarded by them learns to flatter those who click (Williams et
al. 2024, arXiv 2411.02306), so they are never the only reward of a run (``runtime/check.py`` refuses it).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.feedback.errors import FeedbackError
from penstock.feedback.queue import uniform
from penstock.product import log as product_log
from penstock.product.log import Signals
from penstock.product.signals import SIGNALS, SignalEvent, SignalKind

if TYPE_CHECKING:
    from penstock.feedback.store import Store

Row = dict[str, Any]
User = tuple[str, str]
"""Tenant and keyed hash: the same person at two products is two users."""
Place = tuple[str, str]
"""Tenant and what was said (``Reply.said``)."""

ONE_SIDED = 20
"""Responses from which on somebody who never once differs with themselves is looked at."""
IN_STEP = 5
"""Responses on which users who always say the same of the same responses are looked at."""


@dataclass(frozen=True)
class Policy:
    """How signals become labels."""

    users: int = 3
    """Distinct users who must agree on a response."""
    share: float = 0.7
    """Of the users who said something of a response, those who must agree."""
    cap: int = 20
    """Responses on which one user's voice counts, by a hash; so m users alone make at most ``m * cap / users`` labels."""
    signals: tuple[SignalKind, ...] = ("thumbs_up", "thumbs_down", "rating")
    """What counts. Copying and asking again say little; name them to use them."""
    tenant: str = ""
    """The one tenant whose signals count; empty: each tenant's for its own responses."""

    def __post_init__(self) -> None:
        if self.users < 2 or self.cap < 1 or not 0.5 < self.share <= 1:
            raise FeedbackError(
                f"users={self.users}, share={self.share}, cap={self.cap}; a label needs at least 2 users, a share above 0.5 "
                "and at most 1, and a cap of at least 1"
            )
        unknown = set(self.signals) - set(SIGNALS) | (set(self.signals) & {"edit"})
        if unknown or not self.signals:
            raise FeedbackError(f"signals={self.signals}; use some of: {', '.join(set(SIGNALS) - {'edit'})}")


@dataclass(frozen=True)
class Voice:
    """What one user holds of one response: their newest signal that counts. ``sign`` is 1 or -1."""

    user: User
    place: Place
    sign: int
    sequence: int


def voices(taken: Signals, policy: Policy) -> list[Voice]:
    """Each user's newest sign on each response, of at most ``policy.cap`` responses a user, in the order of the log.

    Somebody's newest signal counts alone: who takes a complaint back, or says that it was true but unwelcome, is silent.
    """
    newest: dict[tuple[User, Place], SignalEvent] = {}
    for event in taken.events:
        if event.standing != "counted" or event.signal not in policy.signals or policy.tenant not in ("", event.tenant):
            continue
        place = event.tenant, taken.replies[event.tenant, event.response].said
        newest[(event.tenant, event.user), place] = event
    by_user: dict[User, list[Voice]] = defaultdict(list)
    for (user, place), event in newest.items():
        if event.sign:
            by_user[user].append(Voice(user, place, event.sign, event.sequence))
    kept = [voice for said in by_user.values() for voice in sorted(said, key=_draw)[: policy.cap]]
    return sorted(kept, key=lambda voice: voice.sequence)


def _draw(voice: Voice) -> float:
    """Which of a user's voices count, if there are too many: nobody can choose, and later signals move it little."""
    return uniform("voice", voice.user, voice.place)


def labels_of(taken: Signals, policy: Policy | None = None) -> list[Row]:
    """Rows for KTO: responses on which enough users agree, in the order in which they were first spoken of.

    Columns: ``prompt``, ``completion``, ``label``, ``users`` (who agree), ``of`` (who said something), ``tenant``, ``time`` (of
    the newest signal, seconds), ``origin`` (run, stage, version and source of each response that says this).
    """
    policy = policy or Policy()
    said: dict[Place, list[Voice]] = defaultdict(list)
    for voice in voices(taken, policy):
        said[voice.place].append(voice)
    written: dict[Place, dict[str, Any]] = {}
    for (tenant, name), reply in taken.replies.items():
        written.setdefault((tenant, reply.said), {})[name] = reply
    rows = []
    for place, heard in said.items():
        up = sum(voice.sign > 0 for voice in heard)
        agree = max(up, len(heard) - up)
        if agree < policy.users or agree < policy.share * len(heard):
            continue
        replies = list(written[place].values())
        made: Row = {"prompt": replies[0].prompt, "completion": replies[0].response.text, "label": 2 * up > len(heard)}
        made |= {"users": agree, "of": len(heard), "tenant": place[0]}
        made["time"] = max(taken.events[voice.sequence - 1].time for voice in heard)
        origins = {tuple(reply.response.origin.items()) for reply in replies}
        made["origin"] = [dict(origin) for origin in sorted(origins)]
        rows.append(made)
    return rows


def labels(store: Store, policy: Policy | None = None, until: int | None = None) -> list[Row]:
    """:func:`labels_of` a store's signals, as they are now or up to one of them."""
    return labels_of(product_log.snapshot(store, until), policy)


def summary(taken: Signals, policy: Policy | None = None) -> dict[str, Any]:
    """A store's signals in numbers, as JSON, and what a person should look at; of one tenant where the policy names one.

    ``signals`` by kind, ``reasons``, distinct ``users``, how many signals were ``capped``, the ``labels`` that they amount to
    (good and bad), and ``concerns``.
    """
    policy = policy or Policy()
    good = [bool(row["label"]) for row in labels_of(taken, policy)]
    events = tuple(event for event in taken.events if policy.tenant in ("", event.tenant))
    return {
        "signals": dict(Counter(event.signal for event in events)),
        "reasons": dict(Counter(event.reason for event in events if event.reason)),
        "users": len({(event.tenant, event.user) for event in events}),
        "capped": sum(event.standing == "capped" for event in events),
        "labels": [sum(good), len(good) - sum(good)],
        "concerns": concerns(Signals(events, taken.replies), policy),
    }


def concerns(taken: Signals, policy: Policy | None = None) -> list[str]:
    """Users whom a person should look at: floods, who only ever praises or blames, who always move together.

    Nothing is taken from them here; caps and agreement bound what they can do.
    """
    found = []
    capped = Counter((event.tenant, event.user) for event in taken.events if event.standing == "capped")
    for (tenant, user), count in capped.most_common():
        found.append(f"{tenant}: user {user[:8]} sent {count} signals above the cap of a day")
    said: dict[User, dict[Place, int]] = defaultdict(dict)
    for event in taken.events:
        if event.sign and (policy is None or event.signal in policy.signals):
            said[event.tenant, event.user][event.tenant, taken.replies[event.tenant, event.response].said] = event.sign
    together: dict[frozenset[tuple[Place, int]], list[User]] = defaultdict(list)
    for (tenant, user), signs in said.items():
        if len(signs) >= ONE_SIDED and len(set(signs.values())) == 1:
            word = "praises" if 1 in signs.values() else "blames"
            found.append(f"{tenant}: user {user[:8]} {word} all of {len(signs)} responses")
        if len(signs) >= IN_STEP:
            together[frozenset(signs.items())].append((tenant, user))
    for signs_of_all, users in together.items():
        if len(users) > 1:
            names = ", ".join(user[:8] for _, user in users[:5])
            found.append(f"{users[0][0]}: {len(users)} users say the same of the same {len(signs_of_all)} responses ({names})")
    return found
