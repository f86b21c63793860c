"""What the stand-in does to processes: an engine child that renames itself and outlives it."""

from __future__ import annotations

import os
import signal
import time

ORPHAN_LIFE_S = 300.0
"""An orphan that nobody ends goes by itself, so that a broken test leaves nothing for ever."""
ENGINE_NAME = "VLLM::EngineCore"


def rename(name: str) -> None:
    """Overwrite this process's name, command line and environment, as vLLM's engine does.

    The kernel shows `/proc/PID/cmdline` and `environ` from the process's own memory, so writing
    there is all it takes. The kernel's short name keeps the first 15 characters.
    """
    _write("/proc/self/comm", 0, name.encode())
    stat = os.open("/proc/self/stat", os.O_RDONLY)
    fields = os.read(stat, 4096).rpartition(b")")[2].split()
    os.close(stat)
    # Fields 48 to 51 of proc(5); the first one after the name is field 3.
    argv_start, argv_end, env_start, env_end = (int(field) for field in fields[45:49])
    for start, end, text in ((argv_start, argv_end, name), (env_start, env_end, "")):
        data = text.encode()[: end - start - 1]
        _write("/proc/self/mem", start, data.ljust(end - start, b"\0"))


def _write(path: str, offset: int, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, data, offset)
    os.close(file)


def fork_engine() -> int:
    """Fork the engine child: 0 in the child, already renamed and deaf, else its pid.

    It stays in the server's process group, as the real one does. Call before any thread starts.
    """
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        rename(ENGINE_NAME)
    return pid


def wait_out(parent: int) -> None:
    """Stay while `parent` lives, and as an orphan for a bounded time after it; then end."""
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(ORPHAN_LIFE_S)
    os._exit(0)
