"""OpenTelemetry: the run's numbers to a collector over HTTP, and through it to Grafana Cloud, Datadog and others."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from penstock.core.errors import ConnectionLost
from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step, merged

WAIT = 5.0
"""Seconds in which the collector must answer."""
MOST = 500
"""Metrics that are sent; further ones are left out."""


class Exporter(OTLPMetricExporter):
    """Says whether the last request reached its end, which the library writes to its log alone."""

    failed = False

    def export(self, *given: Any, **more: Any) -> MetricExportResult:
        result = super().export(*given, **more)
        self.failed = result is not MetricExportResult.SUCCESS
        return result


class OTLP(Monitor):
    """``otlp`` or ``otlp:URL``; by default where ``OTEL_EXPORTER_OTLP_ENDPOINT`` says, or ``http://localhost:4318``. Keys are
    ``OTEL_EXPORTER_OTLP_HEADERS``. Metrics are gauges ``penstock.reward.mean`` with the attributes run and stage."""

    def open(self) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what it would repeat is said once
        endpoint = f"{self.destination.rstrip('/')}/v1/metrics" if self.destination else None
        self.exporter = Exporter(endpoint=endpoint, timeout=WAIT)
        reader = PeriodicExportingMetricReader(self.exporter, export_interval_millis=float("inf"))
        about = {"service.name": "penstock", **{f"penstock.{name}": value for name, value in self.run.facts.items()}}
        self.provider = MeterProvider([reader], Resource.create(about), shutdown_on_exit=False)
        self.meter = self.provider.get_meter("penstock")
        self.gauges: dict[str, Any] = {}
        self.alarms = self.meter.create_counter("penstock.alarms", description="alarms of sentinels")

    def named(self, at: At, name: str) -> str:
        """The stage is an attribute."""
        return name

    def metrics(self, steps: Sequence[Step]) -> None:
        for at, values in merged(steps, lambda at, values: at.stage):
            about = {"run": self.run.name, "stage": at.stage}
            for name, value in {**values, "step": float(at.step)}.items():
                if name not in self.gauges and len(self.gauges) < MOST:
                    self.gauges[name] = self.meter.create_gauge(f"penstock.{name.replace('/', '.')}")
                if name in self.gauges:
                    self.gauges[name].set(value, about)
        self._send()

    def _send(self) -> None:
        self.provider.force_flush(int(WAIT * 1000))
        if self.exporter.failed:
            raise ConnectionLost("the collector did not take the metrics; look at OTEL_EXPORTER_OTLP_ENDPOINT and …_HEADERS")

    def alarm(self, at: At, event: Event) -> None:
        about = {"run": self.run.name, "stage": at.stage, "sentinel": event["sentinel"], "severity": event["severity"]}
        self.alarms.add(1, about)

    def close(self, summary: Mapping[str, Any]) -> None:
        try:
            self._send()
        finally:
            self.provider.shutdown(timeout_millis=int(WAIT * 1000))
