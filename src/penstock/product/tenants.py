"""Products that send signals, and the tokens that they send them with."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.feedback import rows, schema
from penstock.feedback.errors import NotFound
from penstock.feedback.records import require_name
from penstock.feedback.service.secrets import hashed

if TYPE_CHECKING:
    from penstock.feedback.store import Store

TOKEN = "penstock_product_"
"""What a token begins with, so that one in a log or a repository is recognised."""


@dataclass(frozen=True)
class Tenant:
    """A product. ``secret`` (hex) keys the hashes of its users' names and the fences of its corrections."""

    name: str
    secret: str


def new_token(store: Store, tenant: str) -> str:
    """A new token of a tenant, who is added if there is none of that name. Only its hash is kept: show it once."""
    require_name(tenant, "tenant")
    token, now = TOKEN + secrets.token_hex(24), store.now()
    row = {"hash": hashed(token), "tenant": tenant, "added": now, "enabled": True}
    with store.database.write() as connection:
        if not rows.has(connection, schema.tenants.c.name, tenant):
            connection.execute(schema.tenants.insert(), {"name": tenant, "secret": secrets.token_hex(32), "added": now})
        connection.execute(schema.product_tokens.insert(), row)
    return token


def revoke_tokens(store: Store, tenant: str) -> int:
    """Switch off all tokens of a tenant; how many there were. Raises NotFound if there is no such tenant."""
    table = schema.product_tokens
    with store.database.write() as connection:
        load_tenant(connection, tenant)
        mine = (table.c.tenant == tenant) & table.c.enabled
        return connection.execute(table.update().where(mine).values(enabled=False)).rowcount


def tenant_of(store: Store, token: str) -> Tenant | None:
    """Whose token it is; None for one that is unknown or switched off."""
    table = schema.product_tokens
    query = sa.select(table.c.tenant).where(table.c.hash == hashed(token), table.c.enabled)
    with store.database.read() as connection:
        name = connection.execute(query).scalar()
        return None if name is None else load_tenant(connection, name)


def tenant(store: Store, name: str) -> Tenant:
    """The tenant of a name. Raises NotFound."""
    with store.database.read() as connection:
        return load_tenant(connection, name)


def tenant_names(store: Store) -> list[str]:
    """All tenants, by name."""
    with store.database.read() as connection:
        return list(connection.execute(sa.select(schema.tenants.c.name).order_by(schema.tenants.c.name)).scalars())


def load_tenant(connection: Connection, name: str) -> Tenant:
    """The tenant of a name. Raises NotFound."""
    row = connection.execute(sa.select(schema.tenants).where(schema.tenants.c.name == name)).first()
    if row is None:
        raise NotFound(f"there is no tenant {name!r:.60}; make one: penstock feedback product STORE {name:.60}")
    return Tenant(row.name, row.secret)
