"""Print one reading of every NVIDIA board as JSON, `null` without a usable driver.

Run as a process of its own (by `gpu_nvml`): a lost board can crash or hang whoever asks it. Uses
nothing of lanectl, so that it starts quickly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pynvml


def _ask(question: Callable[[], Any]) -> Any:
    """One answer of the driver; None where this board does not give it (field note 34)."""
    try:
        return question()
    except (pynvml.NVMLError, AttributeError, ValueError):
        return None


def _text(value: str | bytes | None) -> str:
    """Older versions of the module answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _board(index: int) -> dict[str, Any]:
    try:
        board = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        # A lost board is shown without its numbers rather than left out.
        return {"uuid": "", "name": f"board {index}: {error}"}
    memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(board))
    milliwatts = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(board))
    rates = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(board))
    processes = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(board))
    return {
        "uuid": _text(_ask(lambda: pynvml.nvmlDeviceGetUUID(board))),
        "name": _text(_ask(lambda: pynvml.nvmlDeviceGetName(board))),
        "memory_used": memory and memory.used,
        "memory_total": memory and memory.total,
        "power_w": None if milliwatts is None else milliwatts / 1000,
        "temperature_c": _ask(
            lambda: pynvml.nvmlDeviceGetTemperature(board, pynvml.NVML_TEMPERATURE_GPU)
        ),
        "utilization_pct": rates and rates.gpu,
        "pids": None if processes is None else [process.pid for process in processes],
    }


def main() -> None:
    try:
        pynvml.nvmlInit()
        boards = [_board(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        boards = None
    print(json.dumps(boards))


if __name__ == "__main__":
    main()
