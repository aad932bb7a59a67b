"""What a run with TransferQueue is refused for, before anything begins."""

from dataclasses import replace

import pytest

from penstock.cli import storing
from penstock.config.streams import TransferQueue
from penstock.core.errors import SpecError
from penstock.recipes.quickstart import quickstart
from penstock.runtime.storing import require_stream, stream_line


def run(runtime="ray", **fields):
    made = quickstart()
    return replace(made, runtime=runtime, roles=replace(made.roles, stream=TransferQueue(**fields)))


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(storing.importlib.util, "find_spec", lambda name: name)


def test_groups_lie_in_the_hub_unless_it_is_said():
    assert stream_line(replace(quickstart(), runtime="ray")) == "  groups lie in the hub"


def test_explain_tells_of_the_storage_units():
    assert "in TransferQueue, 3 storage units (on this machine only)" in stream_line(run(units=3))


def test_another_runtime_is_refused_with_the_one_to_set():
    with pytest.raises(SpecError, match=r'runtime="procs"; set runtime="ray"'):
        run("procs")


def test_a_missing_package_is_refused_with_its_extra(monkeypatch):
    monkeypatch.setattr(storing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install .penstock\[transferqueue\]"):
        require_stream(run())


def test_open_sockets_are_refused_unless_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(SpecError, match=r"unpickle what comes.*set roles\.stream\.open_ports=True"):
        require_stream(run())
    require_stream(run(open_ports=True))


def test_a_unit_is_the_least():
    with pytest.raises(SpecError, match=r"stream\.units=0; at least 1"):
        TransferQueue(units=0)
