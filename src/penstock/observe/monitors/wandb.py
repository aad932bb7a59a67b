"""Weights & Biases: the run in a project there, or in its folder with ``WANDB_MODE=offline``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from penstock.core.events import Event
from penstock.observe.monitors.monitor import At, Monitor, Step, leaves

WAIT = 15.0
"""Seconds in which the service must answer."""


class WeightsAndBiases(Monitor):
    """``wandb``, ``wandb:PROJECT`` or ``wandb:ENTITY/PROJECT``; the key is ``WANDB_API_KEY`` or that of ``wandb login``."""

    spaced = True

    def open(self) -> None:
        import wandb

        self.wandb = wandb
        entity, _, project = (self.destination or "penstock").rpartition("/")
        settings = wandb.Settings(
            silent=True, console="off", init_timeout=WAIT, x_disable_stats=True, disable_git=True, save_code=False
        )
        self.service = wandb.init(
            entity=entity or None,
            project=project,
            name=self.run.name,
            id=self.kept(lambda: token_hex(8)),
            resume="allow",
            dir=str(self.run.folder / "monitors"),
            config=dict(self.run.config),
            settings=settings,
        )
        self.service.define_metric("step")
        self.service.define_metric("*", step_metric="step")  # an evaluation may come after later steps

    def metrics(self, steps: Sequence[Step]) -> None:
        for at, values in steps:
            self.service.log({**values, "step": at.total, "stage": at.stage, "_timestamp": at.time})

    def samples(self, at: At, rows: Sequence[Mapping[str, str | float]]) -> None:
        if rows:
            data = [[str(value) for value in row.values()] for row in rows]
            self.service.log({self.named(at, "samples"): self.wandb.Table(columns=list(rows[0]), data=data), "step": at.total})

    def alarm(self, at: At, event: Event) -> None:
        level = "ERROR" if event["severity"] == "fatal" else "WARN"
        self.service.alert(title=f"{at.stage}: {event['sentinel']}", text=f"step {at.step}: {event['message']}", level=level)

    def close(self, summary: Mapping[str, Any]) -> None:
        self.service.summary.update(leaves(summary))
        self.service.finish(exit_code=0 if "headline" in summary else 1)
