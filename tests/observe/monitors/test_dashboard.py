"""The dashboard and the alert rules: every metric that they name is served by a real run."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from monitor_examples import ALARM, event, folder, run_of

pytest.importorskip("prometheus_client")
pytest.importorskip("psutil")

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parents[1]))
from nvml_examples import NVML

from penstock.cli.main import main
from penstock.core.events import Event
from penstock.observe import machine
from penstock.observe.machine import GPU, Looks
from penstock.observe.monitors import Monitor, monitors_of
from penstock.observe.monitors.dashboard import ALERTS, ONE_RUN, alert_rules, dashboard, expressions
from penstock.runtime import launch
from penstock.runtime.stages import offline, online

METRIC = re.compile(r"\bpenstock_\w+")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Label names by metric of a real run on one machine, as ``/metrics`` has them; with GPUs of both kinds and an alarm."""
    from prometheus_client import generate_latest

    patch = pytest.MonkeyPatch()
    patch.setattr(machine, "EVERY", 0.01)
    looks = Looks()
    looks("learner")
    end = time.monotonic() + 30
    while not looks._new and time.monotonic() < end:
        time.sleep(0.01)
    for stage in (offline, online):
        patch.setattr(stage, "seen", looks)
    heard: list[Event] = []
    path = tmp_path_factory.mktemp("dashboard")
    launch(run_of(), path / "run", [heard.append])
    heard.append(event("sentinel", **ALARM))
    for place, counts in enumerate((True, False)):
        seen = GPU(NVML(counts=counts), "device").look()
        heard.append(event("metrics", values={f"machine/gpu/box:{place}/{name}": value for name, value in seen.items()}))
    (monitor,) = monitors_of(run_of("prometheus:0"), folder(path, "other"))
    for one in heard:
        monitor(one)
    monitor.flush()
    text = generate_latest(registry_of(monitor)).decode()
    monitor.ended()
    patch.undo()
    return {sample.name: set(sample.labels) for family in text_string_to_metric_families(text) for sample in family.samples}


def registry_of(monitor: Monitor) -> CollectorRegistry:
    return monitor.registry  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_that_is_named_is_served_with_the_labels_that_are_named(
    expression: str, served: dict[str, set[str]]
) -> None:
    names = METRIC.findall(expression)
    assert names
    for name in names:
        assert name in served
        for labels in re.findall(rf"\b{name}{{([^}}]*)}}", expression):
            assert set(re.findall(r"(\w+)=~?", labels)) <= served[name]


def test_every_metric_carries_the_run(served: dict[str, set[str]]) -> None:
    assert {name for name in served if "run" not in served[name]} == set()


def test_legends_name_labels_that_the_metric_has(served: dict[str, set[str]]) -> None:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            name = METRIC.findall(target["expr"])[0]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= served[name], target


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard()["panels"]]
    assert len(set(places)) == len(places)
    assert all(x + 8 <= 24 for x, _ in places)


def test_panels_have_numbers_and_targets_letters_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_rules_have_all_that_prometheus_asks_for() -> None:
    (group,) = alert_rules()["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(ALERTS)
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_settings_and_pages_that_rules_send_to_exist() -> None:
    from penstock.config.run import CheckpointSpec

    root = Path(__file__).parents[3]
    said = " ".join(description for *_, description in ALERTS)
    assert all((root / page).exists() for page in re.findall(r"docs/\w+\.md", said))
    assert set(re.findall(r"checkpoint\.(\w+)", said)) <= {field.name for field in fields(CheckpointSpec)}


@pytest.mark.parametrize(("word", "made"), [("dashboard", dashboard), ("rules", alert_rules)])
def test_the_commands_print_them(word: str, made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitors", word]) == 0
    assert json.loads(capsys.readouterr().out) == made()


def test_rules_are_a_file_that_yaml_reads(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    main(["monitors", "rules"])
    assert yaml.safe_load(capsys.readouterr().out) == alert_rules()


@pytest.mark.parametrize("name", ["PenstockStuck", "PenstockNoCheckpoint"])
def test_a_run_that_never_gets_there_is_alarmed_about_and_no_run_hides_another_of_its_name(name: str, tmp_path: Path) -> None:
    """What an alert waits for has no series before it happens first; two namespaces may have runs of one name."""
    (condition,) = (condition for alert, _, _, condition, _ in ALERTS if alert == name)
    (monitor,) = monitors_of(run_of("prometheus:0"), folder(tmp_path, "new"))
    before_any_step = {family.name for family in registry_of(monitor).collect() if family.samples}
    monitor.ended()
    waited, begun = METRIC.findall(condition)[:2]
    assert (waited in before_any_step, begun in before_any_step) == (False, True)
    assert f") or max by {ONE_RUN} ({begun})" in condition
    assert {"namespace", "run"} <= set(re.findall(r"\w+", ONE_RUN))
    assert condition.count(ONE_RUN) == 3
