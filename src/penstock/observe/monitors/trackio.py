"""trackio: local-first tracking in SQLite, shown by ``trackio show``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step, leaves


class Trackio(Monitor):
    """``trackio`` or ``trackio:PROJECT``; where it goes is as ``TRACKIO_DIR``, ``TRACKIO_SPACE_ID`` and its others say."""

    spaced = True

    def open(self) -> None:
        import trackio

        self.trackio = trackio
        self.service = trackio.init(
            project=self.destination or "penstock",
            name=self.kept(lambda: f"{self.run.name}-{token_hex(2)}"),
            config=leaves(self.run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def metrics(self, steps: Sequence[Step]) -> None:
        for at, values in steps:
            self.service.log({**values, "stage": at.stage}, step=at.total)

    def samples(self, at: At, rows: Sequence[Mapping[str, str | float]]) -> None:
        if rows:
            table = self.trackio.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
            self.service.log({self.named(at, "samples"): table}, step=at.total)

    def alarm(self, at: At, event: Event) -> None:
        level = self.trackio.AlertLevel.ERROR if event["severity"] == "fatal" else self.trackio.AlertLevel.WARN
        self.service.alert(title=f"{at.stage}: {event['sentinel']}", text=f"step {at.step}: {event['message']}", level=level)

    def close(self, summary: Mapping[str, Any]) -> None:
        self.service.log({f"summary/{name}": value for name, value in leaves(summary).items()})
        self.service.finish()
