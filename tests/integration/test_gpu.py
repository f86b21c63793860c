"""The NVML adapter: no driver, and drivers that answer in part, hang or crash.

The probe's process finds a stand-in `pynvml` on PYTHONPATH.
"""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest

from lanectl.adapters import gpu_nvml, procfs
from lanectl.adapters.gpu_nvml import NvmlGpu
from lanectl.ports import GpuReading

HEAD = """
    import os, time
    from types import SimpleNamespace as Some
    NVML_TEMPERATURE_GPU = 0
    class NVMLError(Exception): pass
    class NVMLError_NotSupported(NVMLError): pass
    def nvmlInit(): pass
    def nvmlDeviceGetCount(): return 2
    def nvmlDeviceGetHandleByIndex(index): return index
    def nvmlDeviceGetUUID(board): return f"GPU-{board}"
    def nvmlDeviceGetName(board): return b"NVIDIA H200"
    def nvmlDeviceGetMemoryInfo(board): return Some(used=0, total=100)
    def nvmlDeviceGetPowerUsage(board): return 81500
    def nvmlDeviceGetTemperature(board, sensor): return 31
    def nvmlDeviceGetUtilizationRates(board): return Some(gpu=0, memory=0)
    def nvmlDeviceGetComputeRunningProcesses(board): return [Some(pid=7), Some(pid=8)]
    def no(*_): raise NVMLError_NotSupported("Not Supported")
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in module; what a test appends to it overrides what stands in HEAD."""
    module = tmp_path / "pynvml.py"
    module.write_text(textwrap.dedent(HEAD))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu_nvml, "_driver_present", lambda: True)
    return module


def override(driver: Path, text: str) -> None:
    with driver.open("a") as module:
        module.write(textwrap.dedent(text))


def whole(number: int) -> GpuReading:
    return GpuReading(
        uuid=f"GPU-{number}",
        name="NVIDIA H200",
        memory_used=0,
        memory_total=100,
        power_w=81.5,
        temperature_c=31,
        utilization_pct=0,
        pids=frozenset({7, 8}),
    )


def test_no_driver_is_none_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver here")

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(procfs, "run", started)
    assert NvmlGpu().readings() is None


def test_every_board_with_every_field(driver: Path) -> None:
    assert NvmlGpu().readings() == [whole(0), whole(1)]


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetMemoryInfo", ("memory_used", "memory_total")),
        ("nvmlDeviceGetPowerUsage", ("power_w",)),
        ("nvmlDeviceGetTemperature", ("temperature_c",)),
        ("nvmlDeviceGetUtilizationRates", ("utilization_pct",)),
        ("nvmlDeviceGetComputeRunningProcesses", ("pids",)),
    ],
)
def test_what_a_board_does_not_support_is_none(
    driver: Path, call: str, fields: tuple[str, ...]
) -> None:
    override(driver, f"{call} = no\n")
    readings = NvmlGpu().readings()
    assert readings is not None
    for field, value in vars(whole(0)).items():
        assert getattr(readings[0], field) == (None if field in fields else value)


def test_processes_may_be_none_running(driver: Path) -> None:
    override(driver, "nvmlDeviceGetComputeRunningProcesses = lambda board: []\n")
    readings = NvmlGpu().readings()
    assert readings is not None and readings[0].pids == frozenset()


def test_lost_board_is_shown_without_numbers(driver: Path) -> None:
    override(
        driver,
        """
        def nvmlDeviceGetHandleByIndex(index):
            if index == 0:
                raise NVMLError("GPU is lost")
            return index
        """,
    )
    readings = NvmlGpu().readings()
    assert readings is not None and readings[1] == whole(1)
    assert (readings[0].uuid, readings[0].name) == ("", "board 0: GPU is lost")
    assert (readings[0].memory_used, readings[0].pids) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "nvmlInit = no",
        "nvmlDeviceGetCount = no",
        "raise ImportError('broken')",
        "nvmlInit = os.abort",
        "nvmlInit = lambda: os._exit(0)",
        "nvmlInit = lambda: print('[{}]') or os._exit(0)",
        "nvmlInit = lambda: print('noise')",
    ],
)
def test_failure_or_crash_is_none(driver: Path, text: str) -> None:
    override(driver, text + "\n")
    assert NvmlGpu().readings() is None


def test_hang_is_cut_and_left_alone_for_a_while(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    override(driver, "nvmlDeviceGetMemoryInfo = lambda board: time.sleep(60)\n")
    gpu = NvmlGpu(timeout_s=0.5)
    before = time.monotonic()
    assert gpu.readings() is None
    assert 0.4 < time.monotonic() - before < 1.5
    before = time.monotonic()
    assert gpu.readings() is None
    assert time.monotonic() - before < 0.2
    override(driver, "nvmlDeviceGetMemoryInfo = lambda board: Some(used=0, total=100)\n")
    monkeypatch.setattr(gpu, "_timeout_s", 5.0)
    monkeypatch.setattr(gpu, "_rest_until", time.monotonic())
    assert gpu.readings() == [whole(0), whole(1)]
