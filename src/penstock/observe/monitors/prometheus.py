"""Prometheus: the run's numbers at ``/metrics`` while it goes, on this machine only unless an address is given."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from penstock.core.errors import SpecError
from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step, Watched, merged

PORT = "9464"
MOST = 500
"""Metrics of the run that are served, counted with those of the machines; further ones are left out."""
MACHINE = {"role": ("role",), "node": ("node",), "gpu": ("node", "gpu")}
"""Labels of the three kinds of machine metrics, ``machine/KIND/WHICH/NAME``."""


class Prometheus(Monitor):
    """``prometheus:PORT`` or ``prometheus:HOST:PORT``. Each metric is a gauge: ``reward/mean`` is ``penstock_reward_mean``."""

    def __init__(self, run: Watched, name: str, destination: str) -> None:
        super().__init__(run, name, destination)
        self.registry = CollectorRegistry()
        self.gauges: dict[str, Gauge] = {}
        self.last: dict[str, tuple[int, float]] = {}
        """The last step of each stage and when it was."""
        stage = ("run", "stage")
        self.step = self._gauge("step", "Steps of the stage that are done", *stage)
        self.steps = Counter("penstock_steps", "Steps done since the process began", stage, registry=self.registry)
        self.samples_trained = Counter("penstock_samples", "Samples trained on since then", stage, registry=self.registry)
        self.tokens = Counter("penstock_tokens", "Tokens generated since then", stage, registry=self.registry)
        self.last_step = self._gauge("last_step_timestamp_seconds", "When the last step was logged, Unix time", *stage)
        self.step_seconds = self._gauge("step_seconds", "From the step before to the last one", *stage)
        self.checkpoint = self._gauge(
            "checkpoint_timestamp_seconds", "When the newest checkpoint was durable, Unix time", "run"
        )
        self.begun = self._gauge("begun_timestamp_seconds", "When the run was begun or gone on with, Unix time", "run")
        self.finished = self._gauge("finished", "1 once the run is finished", "run")
        labels = ("run", "stage", "sentinel", "severity")
        self.alarms = Counter("penstock_alarms", "Alarms of sentinels", labels, registry=self.registry)
        self.alarmed = self._gauge("alarm_timestamp_seconds", "When a sentinel tripped last, Unix time", *labels)
        self.begun.labels(run.name).set_to_current_time()
        self.finished.labels(run.name).set(0)
        self._gauge("run_info", "What the run is", *run.facts).labels(**run.facts).set(1)
        host, _, port = (destination or PORT).rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise SpecError(f'monitors: "prometheus:{destination}" names no port; write "prometheus:{PORT}"')
        try:
            self.server, _ = start_http_server(int(port), host.strip("[]") or "127.0.0.1", self.registry)
        except OSError as error:
            raise SpecError(
                f'monitors: prometheus cannot listen on port {port} ({error.strerror}); name another one, "prometheus:PORT"'
            ) from error
        self.port = int(self.server.server_port)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"penstock_{name}", what, labels, registry=self.registry)

    def open(self) -> None:
        """The server listens from the start."""

    def named(self, at: At, name: str) -> str:
        """The stage is a label."""
        return name

    def metrics(self, steps: Sequence[Step]) -> None:
        for at, values in merged(steps, lambda at, values: at.stage):
            for name, value in values.items():
                self._set(at, name, value)
        for at, values in steps:
            if not all(name.startswith(("evaluation/", "machine/")) for name in values):
                self._count(at, values.get("tokens/generated", 0.0))

    def _count(self, at: At, tokens: float) -> None:
        """One step more."""
        before, when = self.last.get(at.stage, (at.step - 1, 0.0))
        labels = (self.run.name, at.stage)
        self.step.labels(*labels).set(at.step)
        self.last_step.labels(*labels).set(at.time)
        self.steps.labels(*labels).inc(max(0, at.step - before))
        self.samples_trained.labels(*labels).inc(max(0, at.step - before) * self.run.samples[at.stage])
        self.tokens.labels(*labels).inc(max(0.0, tokens))
        if when:
            self.step_seconds.labels(*labels).set(at.time - when)
        self.last[at.stage] = (at.step, at.time)

    def _set(self, at: At, name: str, value: float) -> None:
        """One number. A name that another metric of this page has is left out."""
        labels: dict[str, str] = {"run": self.run.name}
        if name.startswith("machine/"):
            _, kind, which, name = name.split("/", 3)
            labels |= dict(zip(MACHINE[kind], which.split(":"), strict=True))
            name = f"machine_{kind}_{name}"
        else:
            labels["stage"] = at.stage
        if name not in self.gauges:
            if len(self.gauges) >= MOST:
                return
            key = re.sub(r"\W", "_", name, flags=re.ASCII)
            try:
                self.gauges[name] = self._gauge(key, f"{name} of the last step that has it", *labels)
            except ValueError:
                return
        self.gauges[name].labels(**labels).set(value)

    def alarm(self, at: At, event: Event) -> None:
        labels = (self.run.name, at.stage, event["sentinel"], event["severity"])
        self.alarms.labels(*labels).inc()
        self.alarmed.labels(*labels).set(at.time)

    def lifecycle(self, at: At, event: Event) -> None:
        if event["what"] == "checkpoint":
            self.checkpoint.labels(self.run.name).set(at.time)
        elif event["what"] == "finished":
            self.finished.labels(self.run.name).set(1)

    def ended(self) -> None:
        self.server.shutdown()
        self.server.server_close()
