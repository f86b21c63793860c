"""`ports.Gpu` for NVIDIA boards, asked in a process apart (`gpu_probe`) that may crash or hang."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from lanectl.adapters import procfs
from lanectl.ports import GpuReading

REST_S = 60.0
"""After a probe that had to be killed: one stuck in the driver outlives even SIGKILL, so that more
of them would pile up."""

_PROBE = Path(__file__).with_name("gpu_probe.py")


class NvmlGpu:
    """Every board by UUID; `CUDA_VISIBLE_DEVICES` neither hides one nor changes the order.

    timeout_s: for one reading of all boards, the start of the probe included.
    """

    def __init__(self, *, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._rest_until = 0.0

    def readings(self) -> list[GpuReading] | None:
        if time.monotonic() < self._rest_until or not _driver_present():
            return None
        # -P: the folder of the probe must not shadow modules that it imports.
        status, out, _ = procfs.run([sys.executable, "-P", str(_PROBE)], timeout_s=self._timeout_s)
        if status == procfs.TIMED_OUT:
            self._rest_until = time.monotonic() + REST_S
        if status != 0:
            return None
        try:
            boards = json.loads(out)
            return None if boards is None else [_reading(board) for board in boards]
        except (ValueError, TypeError, LookupError):
            return None


def _driver_present() -> bool:
    """Whether there is a driver to ask at all; most machines without one end here, at no cost."""
    if Path("/proc/driver/nvidia").exists():
        return True
    import ctypes  # Only where the first look found nothing (as under WSL, which has no such file).

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _reading(board: dict[str, Any]) -> GpuReading:
    pids = board.get("pids")
    return GpuReading(
        uuid=board["uuid"],
        name=board["name"],
        memory_used=board.get("memory_used"),
        memory_total=board.get("memory_total"),
        power_w=board.get("power_w"),
        temperature_c=board.get("temperature_c"),
        utilization_pct=board.get("utilization_pct"),
        pids=None if pids is None else frozenset(pids),
    )
