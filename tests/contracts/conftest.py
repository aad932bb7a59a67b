"""What implementations leave out, and a record of what the suites saw: ``pytest tests/contracts --contracts-json FILE``.

The record is a list of ``{"suite", "implementation", "requirement", "outcome", "why"}``; ``tools/backends_table.py`` makes the
table of docs/backends.md of such files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SUITES = {
    "test_generator_contract": "kind",
    "test_learner_contract": "make",
    "test_channel_contract": "opened",
    "test_stream_contract": "kind",
}
"""Suite → the fixture whose parameter names the implementation."""

LACKS = {
    ("SGLang (recorded)", "test_log_probs_are_those_of_score[0.7]"): "SGLang scores given tokens at temperature 1 only",
    ("alias", "test_weights_may_change_as_soon_as_publish_returns"): "learner and generator hold the same parameters",
    ("alias", "test_a_restarted_learner_may_bring_a_version_again"): "learner and generator end together",
    ("alias", "test_a_damaged_image_is_refused_and_changes_nothing"): "nothing travels",
    ("alias", "test_other_shapes_are_refused_and_change_nothing"): "nothing travels",
    ("alias", "test_a_late_generator_gets_the_newest_version"): "learner and generator begin together",
}
"""(Implementation, test with the parameters that are not the implementation) → why it cannot fulfil the requirement."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--contracts-json", metavar="FILE", help="write what the contract suites saw to FILE")


def named(item: Any) -> tuple[str, str]:
    """The implementation that a test runs, and the test's name without it."""
    fixture = SUITES.get(item.path.stem, "")
    calls = getattr(item, "callspec", None)
    if calls is None or fixture not in calls.params:
        return "", item.name
    implementation = calls.params[fixture]
    rest = [part for part in calls.id.replace(implementation, "", 1).split("-") if part]
    return implementation, item.originalname + (f"[{'-'.join(rest)}]" if rest else "")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if item.path.stem in SUITES and (why := LACKS.get(named(item))):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any) -> Any:
    report = (yield).get_result()
    implementation, _ = named(item)
    if implementation:
        requirement = item.originalname.removeprefix("test_").replace("_", " ")
        report.user_properties.append(("contract", [item.path.stem.split("_")[1], implementation, requirement]))


class Record:
    """Collects the reports of all processes of a test run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        found = dict(report.user_properties).get("contract")
        if found is None or (report.when != "call" and report.passed):
            return
        why = ""
        if report.skipped:
            why = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = (crash.message if crash else str(report.longrepr)).splitlines()[0][:200]
        outcome = {"passed": "run", "skipped": "skipped", "failed": "failing"}[report.outcome]
        suite, implementation, requirement = found
        self.seen.append(
            {"suite": suite, "implementation": implementation, "requirement": requirement, "outcome": outcome, "why": why}
        )

    def pytest_sessionfinish(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in self.seen)
        self.file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--contracts-json", None)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(Path(file)))
