"""A GPU for tests on machines without one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class NVML:
    """The functions of NVML that are called, with numbers; the names of its metrics are those of the real package."""

    class NVMLError(Exception):
        pass

    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 2, 5, 10
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, counts: bool, refused: tuple[str, ...] = ()) -> None:
        self.counts, self.refused, self.freed, self.taken = counts, refused, list[int](), 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self.refused:
            raise self.NVMLError(name)
        answers: dict[str, Callable[..., Any]] = {
            "nvmlGpmQueryDeviceSupport": lambda device: SimpleNamespace(isSupportedDevice=self.counts),
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=2e9, total=8e9),
            "nvmlDeviceGetPowerUsage": lambda device: 70_500,
            "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=98),
            "nvmlGpmSampleAlloc": self.sample,
            "nvmlGpmSampleGet": lambda device, sample: sample,
            "nvmlGpmSampleFree": self.freed.append,
            "c_nvmlGpmMetricsGet_t": lambda **given: SimpleNamespace(metrics=[SimpleNamespace() for _ in range(9)], **given),
            "nvmlGpmMetricsGet": self.metrics,
        }
        return answers[name]

    def sample(self) -> int:
        self.taken += 1
        return self.taken

    def metrics(self, asked: Any) -> None:
        """10 percent for each number of a metric, over the two samples that were given."""
        assert (asked.sample1, asked.sample2, asked.numMetrics) == (self.taken - 1, self.taken, 3)
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = 10.0 * metric.metricId
