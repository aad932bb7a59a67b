"""``penstock monitors``: what Grafana and Prometheus need to show runs, printed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.cli.command import Command, Group


@dataclass(kw_only=True)
class Dashboard(Command):
    """Print a Grafana dashboard of runs, as JSON to import: penstock monitors dashboard > penstock.json"""

    def run(self) -> None:
        """Print it."""
        from penstock.observe.monitors.dashboard import dashboard

        print(json.dumps(dashboard(), indent=2))


@dataclass(kw_only=True)
class Rules(Command):
    """Print alert rules for Prometheus, as JSON, which its rule files may be: penstock monitors rules > penstock.yml"""

    def run(self) -> None:
        """Print them."""
        from penstock.observe.monitors.dashboard import alert_rules

        print(json.dumps(alert_rules(), indent=2))


MONITORS = Group(
    "What Grafana and Prometheus need to show runs; a run serves its numbers with --monitors '[\"prometheus:9464\"]'.",
    {"dashboard": "monitors:Dashboard", "rules": "monitors:Rules"},
)
