"""A run that cannot reach its servers is refused before anything begins."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.config.engine_choice import with_engine
from penstock.config.engines import Served
from penstock.core.errors import SpecError
from penstock.recipes.quickstart import quickstart


def check_engine(run: Any) -> None:
    run.roles.engine.check(run.roles.generators)


@pytest.mark.parametrize(("name", "kind"), [("served", "Served"), ("sglang", "SGLang")])
def test_servers_are_chosen_by_name_and_make_the_run_one_of_processes(name, kind):
    run = with_engine(quickstart(), name)
    assert (type(run.roles.engine).__name__, run.runtime) == (kind, "procs")


def test_a_run_without_the_servers_token_is_refused(monkeypatch):
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    with pytest.raises(SpecError, match="set the environment variable PENSTOCK_TOKEN"):
        check_engine(with_engine(quickstart(), "served"))


def test_each_generator_needs_a_server(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "a-token-of-some-length")
    run = with_engine(quickstart(), "served")
    two = replace(run, roles=replace(run.roles, generators=2))
    with pytest.raises(SpecError, match="names 1 server and there are 2 generators"):
        check_engine(two)
    enough = replace(two, roles=replace(two.roles, engine=Served(url="http://a:1,http://b:1")))
    assert check_engine(enough) is None
