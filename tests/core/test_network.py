"""Whether the hub is worth asking."""

import pytest

from penstock.core.network import hub_is_reachable


@pytest.fixture(autouse=True)
def _unresolvable(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    for name in ("https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_hub_whose_name_does_not_resolve_is_out_of_reach():
    assert not hub_is_reachable()


def test_a_hub_on_this_machine_is_in_reach(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:8080")
    assert hub_is_reachable()


def test_a_proxy_resolves_names_by_itself(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    assert hub_is_reachable()
