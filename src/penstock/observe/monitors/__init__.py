"""Monitors that people already use, fed with the events of a run. One file for each service; ``Run.monitors`` names them."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

from penstock.config.run import Run
from penstock.config.spec import suggestion
from penstock.core.errors import SpecError
from penstock.observe.monitors.monitor import Monitor, watched

MONITORS = {
    "prometheus": ("Prometheus", "monitors", "prometheus_client"),
    "otlp": ("OTLP", "monitors", "opentelemetry.exporter.otlp.proto.http"),
    "wandb": ("WeightsAndBiases", "wandb", "wandb"),
    "mlflow": ("MLflow", "mlflow", "mlflow"),
    "tensorboard": ("TensorBoard", "tensorboard", "tensorboard"),
    "trackio": ("Trackio", "trackio", "trackio"),
}
"""By name, which is also that of its module: its class, the extra that brings its package, and that package."""


def monitors_of(run: Run, folder: Path) -> list[Monitor]:
    """The monitors that a run names, each ready to be called with the run's events.

    Raises:
        SpecError: a name is unknown or comes twice, a package is not installed, or a port is taken.
    """
    made: list[Monitor] = []
    try:
        for entry in run.monitors:
            name, _, destination = entry.partition(":")
            if name not in MONITORS:
                known = ", ".join(MONITORS)
                raise SpecError(f'monitors: there is no "{name}"{suggestion(name, MONITORS)}; there are {known}')
            if any(other.name == name for other in made):
                raise SpecError(f"monitors: {name} is named twice; a run has one of each")
            kind, extra, package = MONITORS[name]
            if not _installed(package):
                raise SpecError(f"monitors: {name} needs {package.partition('.')[0]}: pip install 'penstock[{extra}]'")
            module = importlib.import_module(f"{__name__}.{name}")
            made.append(getattr(module, kind)(watched(run, folder), name, destination))
    except BaseException:
        for monitor in made:
            monitor.ended()
        raise
    return made


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
