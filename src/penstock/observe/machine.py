"""What the machines of a run do: CPU, memory, disk, network and GPUs, of each process and each node.

A metric is ``machine/KIND/WHICH/NAME``: of a ``role`` (one process), a ``node``, or a ``gpu`` (``NODE:NUMBER``). Shares are of
1. A process is looked at every few seconds by a thread of its own; without psutil there is nothing to see.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.core.types import Metrics

EVERY = 5.0
"""Seconds between two looks."""
GB, MB = 1e9, 1e6


class Machine:
    """This process, as ``role``, and the node it runs on."""

    def __init__(self, role: str) -> None:
        import psutil

        self.psutil, self.role, self.node = psutil, role, socket.gethostname()
        self.process = psutil.Process()
        self.process.cpu_percent()
        psutil.cpu_percent()
        self._before, self._when = self._flows(), time.monotonic()
        self.gpus = gpus()

    def _flows(self) -> dict[str, float]:
        """Bytes since the node was started."""
        disk, network = self.psutil.disk_io_counters(), self.psutil.net_io_counters()
        found = {"disk_read": disk.read_bytes, "disk_written": disk.write_bytes} if disk else {}
        return found | ({"network_received": network.bytes_recv, "network_sent": network.bytes_sent} if network else {})

    def look(self) -> Metrics:
        """What is seen now; rates and shares of time are since the look before."""
        ps, flows, now = self.psutil, self._flows(), time.monotonic()
        seconds = max(1e-3, now - self._when)
        rates = {f"{name}_mb_s": max(0.0, flows[name] - self._before.get(name, 0.0)) / MB / seconds for name in flows}
        self._before, self._when = flows, now
        memory = ps.virtual_memory()
        role = {"cpu_cores": self.process.cpu_percent() / 100, "memory_gb": self.process.memory_info().rss / GB}
        node = {
            "cpu": ps.cpu_percent() / 100,
            "memory": memory.percent / 100,
            "memory_gb": (memory.total - memory.available) / GB,
            "disk": ps.disk_usage(".").percent / 100,
            **rates,
        }
        found = {f"machine/role/{self.role}/{name}": value for name, value in role.items()}
        found |= {f"machine/node/{self.node}/{name}": value for name, value in node.items()}
        for number, gpu in enumerate(self.gpus):
            found |= {f"machine/gpu/{self.node}:{number}/{name}": value for name, value in gpu().items()}
        return found


def gpus() -> list[Callable[[], Metrics]]:
    """What looks at each GPU of this node; none where NVML or its Python package is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # no package, no driver, no permission: a machine without GPUs, as far as can be seen
        return []
    return [GPU(pynvml, device).look for device in devices]


class GPU:
    """One GPU through NVML. Where it counts its units' work (Hopper and later) ``sm_active``, ``tensor_active`` and
    ``dram_active`` are shares of what it could do since the look before; elsewhere there is only ``kernel_running``, the
    share of time in which at least one kernel ran, however small: no sign that the GPU is well used.

    SOURCE: NVML API reference, "GPM functions" (metrics 2, 5 and 10) and nvmlDeviceGetUtilizationRates.
    """

    def __init__(self, nvml: Any, device: Any) -> None:
        self.nvml, self.device, self.sample = nvml, device, None
        self.counted = {
            "sm_active": nvml.NVML_GPM_METRIC_SM_UTIL,
            "tensor_active": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "dram_active": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        }
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            if nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
                self.sample = nvml.nvmlGpmSampleGet(device, nvml.nvmlGpmSampleAlloc())

    def look(self) -> Metrics:
        """What is seen now; what the driver refuses to say is left out."""
        nvml, found = self.nvml, Metrics()
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(self.device)
            found |= {"memory": memory.used / memory.total, "memory_gb": memory.used / GB}
        with contextlib.suppress(nvml.NVMLError):
            found["power_w"] = nvml.nvmlDeviceGetPowerUsage(self.device) / 1000
        with contextlib.suppress(nvml.NVMLError):
            found |= self._activity()
        return found

    def _activity(self) -> Metrics:
        nvml = self.nvml
        if self.sample is None:
            return {"kernel_running": nvml.nvmlDeviceGetUtilizationRates(self.device).gpu / 100}
        before, self.sample = self.sample, nvml.nvmlGpmSampleGet(self.device, nvml.nvmlGpmSampleAlloc())
        asked = nvml.c_nvmlGpmMetricsGet_t(
            version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(self.counted), sample1=before, sample2=self.sample
        )
        for place, number in enumerate(self.counted.values()):
            asked.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(asked)
        nvml.nvmlGpmSampleFree(before)
        return {name: asked.metrics[place].value / 100 for place, name in enumerate(self.counted)}


class Looks:
    """The looks of one process: a thread takes them, and what is new is given once."""

    def __init__(self) -> None:
        self._new: Metrics = {}
        self._thread: threading.Thread | None = None

    def __call__(self, role: str) -> Metrics:
        """What the last look has seen, nothing if it was given already. The first call starts the thread, which stays."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=[role], name="machine", daemon=True)
            self._thread.start()
        found, self._new = self._new, {}
        return found

    def _run(self, role: str) -> None:
        try:
            machine = Machine(role)
            while True:
                time.sleep(EVERY)
                self._new = machine.look()
        except Exception:  # no psutil, or a system that does not say: a run without these numbers
            return


seen = Looks()
"""What this process has seen since it was asked last: ``seen(role)``."""
