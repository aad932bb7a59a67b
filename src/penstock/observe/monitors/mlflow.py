"""MLflow: a run of an experiment on a tracking server, or in a local store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step, leaves

METRICS, PARAMETERS, LETTERS = 1000, 100, 500
"""What a request may hold, and the characters of a parameter."""
ENVIRONMENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""How long the library tries where the environment does not say: by default it is minutes."""


class MLflow(Monitor):
    """``mlflow`` or ``mlflow:URI``; by default where ``MLFLOW_TRACKING_URI`` says. The experiment is that of
    ``MLFLOW_EXPERIMENT_NAME``, or "penstock"; user and password, or token, are ``MLFLOW_TRACKING_USERNAME``, ``…_PASSWORD`` and
    ``…_TOKEN``."""

    spaced = True  # a store in SQLite takes 0.05 ms of CPU a number, in the run's own process

    def open(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient, entities

        self.entities = entities
        self.client = MlflowClient(self.destination or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "penstock")
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self.client.create_experiment(name)
        self.id = self.kept(lambda: self.client.create_run(experiment, run_name=self.run.name).info.run_id)
        self.client.update_run(self.id, status="RUNNING")
        known = self.client.get_run(self.id).data.params  # where the run is resumed; none of them may change
        config = [(key_of(name), str(value)[:LETTERS]) for name, value in leaves(self.run.config).items()]
        config = [(name, value) for name, value in config if name not in known]
        for start in range(0, len(config), PARAMETERS):
            parameters = [entities.Param(name, value) for name, value in config[start : start + PARAMETERS]]
            self.client.log_batch(self.id, params=parameters)

    def metrics(self, steps: Sequence[Step]) -> None:
        values = [
            self.entities.Metric(key_of(name), value, int(at.time * 1000), at.total)
            for at, values in steps
            for name, value in values.items()
        ]
        for start in range(0, len(values), METRICS):
            self.client.log_batch(self.id, metrics=values[start : start + METRICS])

    def samples(self, at: At, rows: Sequence[Mapping[str, str | float]]) -> None:
        if rows:
            # As log_table would write it, which also lists every table in one tag of 8,000 characters.
            table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
            self.client.log_dict(self.id, table, f"samples/{at.stage}-{at.step:06d}-{int(at.time)}.json")

    def alarm(self, at: At, event: Event) -> None:
        self.client.set_tag(self.id, f"alarm.{event['sentinel']}", f"{at.stage} step {at.step}: {event['message']}"[:LETTERS])

    def close(self, summary: Mapping[str, Any]) -> None:
        self.client.set_tag(self.id, "mlflow.note.content", str(summary.get("headline", "not finished")))
        self.client.set_terminated(self.id, "FINISHED" if "headline" in summary else "FAILED")


@cache
def key_of(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)
