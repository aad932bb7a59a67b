"""Signals of imagined users about imagined responses."""

from __future__ import annotations

from feedback_examples import HandClock, enrol

from penstock.feedback.records import Response
from penstock.feedback.store import Store
from penstock.product.log import record
from penstock.product.signals import Reply, Signal
from penstock.product.tenants import Tenant, new_token, tenant_of


def opened(place, clock=None) -> Store:
    return Store.open(place, now=clock or HandClock())


def tenant(store: Store, name: str = "shop") -> Tenant:
    found = tenant_of(store, new_token(store, name))
    assert found is not None
    return found


def reply(about: str = "x", **fields: object) -> Reply:
    return Reply(f"prompt {about}", Response(f"answer {about}", run="r", version=3), **fields)  # type: ignore[arg-type]


def signal(user: str, kind: str = "thumbs_up", name: str = "x", key: str = "", **fields: object) -> Signal:
    made = {"reply": reply(name), **fields}
    return Signal(key or f"{user}:{kind}:{name}", user, kind, **made)  # type: ignore[arg-type]


def thumbs(store: Store, who: Tenant, users: list[str], kind: str = "thumbs_up", name: str = "x", **fields: object) -> None:
    for user in users:
        record(store, who, [signal(user, kind, name, **fields)])


def people(store: Store) -> None:
    enrol(store, "judy", role="adjudicator")
    enrol(store, "root", role="admin")
    enrol(store, "ann")
