"""What the stand-in does to processes: an engine child that renames itself and outlives it."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

ORPHAN_LIFE_S = 300.0
"""An orphan that nobody ends goes by itself, so that a broken test leaves nothing for ever."""
ENGINE_NAME = "VLLM::EngineCore"


def rename(name: str) -> None:
    """Overwrite this process's name, command line and environment, as vLLM's engine does.

    The kernel shows `/proc/PID/cmdline` and `environ` from the process's own memory, so writing
    there is all it takes. The kernel's short name keeps the first 15 characters.
    """
    comm = os.open("/proc/self/comm", os.O_WRONLY)
    os.write(comm, name.encode())
    os.close(comm)
    stat = os.open("/proc/self/stat", os.O_RDONLY)
    fields = os.read(stat, 4096).rpartition(b")")[2].split()
    os.close(stat)
    # Fields 48 to 51 of proc(5); the first one after the name is field 3.
    argv_start, argv_end, env_start, env_end = (int(field) for field in fields[45:49])
    memory = os.open("/proc/self/mem", os.O_WRONLY)
    for start, end, text in ((argv_start, argv_end, name), (env_start, env_end, "")):
        data = text.encode()[: end - start - 1]
        os.pwrite(memory, data.ljust(end - start, b"\0"), start)
    os.close(memory)


def fork_engine(go_on: Callable[[], None]) -> None:
    """Fork the engine child, renamed and deaf; it runs `go_on` and then only lives on.

    It stays in the server's process group, as the real one does. Returns in the server alone, once
    the child is what it is to be. Call before any thread starts.
    """
    parent = os.getpid()
    ready, tell = os.pipe()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        rename(ENGINE_NAME)
        go_on()
        os.close(ready)
        os.close(tell)
        _live_on(parent)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)


def _live_on(parent: int) -> NoReturn:
    """Stay while `parent` lives, and as an orphan for a bounded time after it; then end."""
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(ORPHAN_LIFE_S)
    os._exit(0)
