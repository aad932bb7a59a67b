"""A product whose users' signals a store takes."""

from __future__ import annotations

import pytest
from product_examples import tenant

from penstock.feedback.store import Store
from penstock.product.tenants import Tenant


@pytest.fixture
def shop(store: Store) -> Tenant:
    return tenant(store)
