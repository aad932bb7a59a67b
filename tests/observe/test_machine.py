"""What is seen of a machine, held against what the system says itself, and how looks reach the log of a run."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("psutil")

from nvml_examples import NVML

from penstock.observe import machine
from penstock.observe.machine import GPU, Looks, Machine, gpus

NODE = socket.gethostname()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look every few milliseconds."""
    monkeypatch.setattr(machine, "EVERY", 0.01)


def wait_for(looks: Looks, role: str = "learner") -> dict[str, float]:
    """The first look, once it is there."""
    end = time.monotonic() + 30
    while not (found := looks(role)):
        assert time.monotonic() < end, "no look came"
        time.sleep(0.01)
    return found


def test_names_say_role_and_node() -> None:
    found = Machine("generator-1").look()
    assert {name.rsplit("/", 1)[0] for name in found} == {"machine/role/generator-1", f"machine/node/{NODE}"}


def test_memory_is_that_of_this_process() -> None:
    seen = Machine("learner").look()["machine/role/learner/memory_gb"]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert seen == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE") / 1e9, rel=0.05)


def test_the_disk_is_that_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, used, free = shutil.disk_usage(".")
    seen = Machine("learner").look()[f"machine/node/{NODE}/disk"]
    assert seen == pytest.approx(used / (used + free), abs=0.01)
    assert 0 <= seen <= 1


def test_cores_of_a_role_are_its_own_time_over_the_time_that_passed() -> None:
    seen = Machine("learner")
    before, began = time.process_time(), time.monotonic()
    while time.process_time() - before < 0.3:
        pass
    spent, passed = time.process_time() - before, time.monotonic() - began
    assert seen.look()["machine/role/learner/cpu_cores"] == pytest.approx(spent / passed, rel=0.2)


def test_rates_are_megabytes_a_second_since_the_look_before() -> None:
    seen = Machine("learner")
    counts = SimpleNamespace(read_bytes=5e6, write_bytes=1e6), SimpleNamespace(bytes_recv=4e6, bytes_sent=0.0)
    seen.psutil = SimpleNamespace(
        **{name: getattr(seen.psutil, name) for name in ("virtual_memory", "cpu_percent", "disk_usage")}
    )
    seen.psutil.disk_io_counters, seen.psutil.net_io_counters = lambda: counts[0], lambda: counts[1]
    seen._before = {"disk_read": 1e6, "disk_written": 2e6, "network_received": 0.0, "network_sent": 0.0}
    seen._when = time.monotonic() - 2.0
    found = seen.look()
    rates = {name: found[f"machine/node/{NODE}/{name}_mb_s"] for name in seen._before}
    assert rates == pytest.approx(
        {"disk_read": 2.0, "disk_written": 0.0, "network_received": 2.0, "network_sent": 0.0}, rel=0.05
    )  # a counter that goes back, as after a disk was taken away, is no negative rate


def test_shares_are_of_one() -> None:
    found = Machine("learner").look()
    assert all(0 <= found[f"machine/node/{NODE}/{name}"] <= 1 for name in ("cpu", "memory", "disk"))


def test_a_system_without_disk_counters_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    found = Machine("learner").look()
    assert f"machine/node/{NODE}/disk_read_mb_s" not in found
    assert f"machine/node/{NODE}/network_sent_mb_s" in found


@pytest.mark.usefixtures("quick")
def test_a_look_is_given_once() -> None:
    looks = Looks()
    assert looks("learner") == {}, "nothing is seen yet"
    assert f"machine/node/{NODE}/cpu" in wait_for(looks)
    looks._new = {"machine/node/a/cpu": 1.0}
    assert looks("learner") != looks("learner")


@pytest.mark.usefixtures("quick")
def test_asking_starts_one_thread_alone() -> None:
    before = sum(thread.name == "machine" for thread in threading.enumerate())
    looks = Looks()
    for _ in range(3):
        looks("learner")
    assert sum(thread.name == "machine" for thread in threading.enumerate()) == before + 1


def test_without_psutil_there_is_nothing_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    looks = Looks()
    assert looks("learner") == {}
    assert looks._thread is not None
    looks._thread.join(30)
    assert looks("learner") == {}


def test_without_the_package_of_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus() == []


def test_the_real_nvml_says_what_it_can() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        count = 0
    looks = gpus()
    assert len(looks) == count
    for look in looks:
        assert 0 <= look()["memory"] <= 1


def test_a_gpu_that_counts_its_units_says_how_much_of_them_worked() -> None:
    nvml = NVML(counts=True)
    assert GPU(nvml, "device").look() == {
        "memory": 0.25, "memory_gb": 2.0, "power_w": 70.5, "sm_active": 0.2, "tensor_active": 0.5, "dram_active": 1.0
    }  # fmt: skip


def test_samples_of_a_gpu_are_given_back() -> None:
    nvml = NVML(counts=True)
    gpu = GPU(nvml, "device")
    for _ in range(3):
        gpu.look()
    assert nvml.freed == [1, 2, 3]


def test_an_older_gpu_says_only_that_a_kernel_ran() -> None:
    found = GPU(NVML(counts=False), "device").look()
    assert found == {"memory": 0.25, "memory_gb": 2.0, "power_w": 70.5, "kernel_running": 0.98}


def test_what_the_driver_refuses_to_say_is_left_out() -> None:
    nvml = NVML(counts=False, refused=("nvmlDeviceGetPowerUsage", "nvmlGpmQueryDeviceSupport"))
    assert set(GPU(nvml, "device").look()) == {"memory", "memory_gb", "kernel_running"}


def test_numbers_of_the_metrics_are_those_of_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = ("NVML_GPM_METRIC_SM_UTIL", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", "NVML_GPM_METRIC_DRAM_BW_UTIL")
    assert [getattr(pynvml, name) for name in names] == [getattr(NVML, name) for name in names]
