"""End every process of a session, by pid: what a rig started, its orphans included.

A child keeps its session when it is renamed, when its parent dies and when supervisord gives it a
process group of its own, so the session is what finds all of them, and nothing else. Run as a
script this is a rig's watcher: it waits until its standard input ends, which it does when the
owner dies however it dies, and then cleans up.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

END_S = 5.0


def members(session: int) -> dict[int, int]:
    """Live processes of the session: pid to start time in clock ticks since the boot."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib doubles the watcher's start
        if name.isdigit():
            state, sid, started = _stat(int(name))
            if sid == session and state not in "ZX":
                found[int(name)] = started
    return found


def started(pid: int) -> int:
    """The start time of a process in clock ticks since the boot; 0 when it is gone."""
    return _stat(pid)[2]


def end(session: int, leader_started: int) -> list[int]:
    """Kill the session's leader, then all others; those still alive after a few seconds.

    leader_started: the leader's start time. Should its pid have become another process by now, the
    session is gone (its number stays taken while a member lives), and nothing is touched.
    """
    until = time.monotonic() + END_S
    while True:
        if started(session) not in (0, leader_started):
            return []
        alive = members(session)
        if not alive or time.monotonic() > until:
            return sorted(alive)
        # The leader first: it is supervisord, which would start its programs again.
        for pid in sorted(alive, key=lambda pid: pid != session):
            _kill(pid, alive[pid])
        time.sleep(0.005)


def _kill(pid: int, its_start: int) -> None:
    """SIGKILL this very process, never one that got its pid meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if started(pid) == its_start:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _stat(pid: int) -> tuple[str, int, int]:
    """State letter, session and start time of a process; all empty when it is gone."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return "X", 0, 0
    try:
        fields = os.read(file, 4096).rpartition(b")")[2].split()
    except OSError:
        return "X", 0, 0
    finally:
        os.close(file)
    return fields[0].decode(), int(fields[3]), int(fields[19])


def watch(session: int, leader_started: int, folders: list[str]) -> None:
    """Wait for the owner; unless it said `keep` before it went, clean up after it."""
    if sys.stdin.read() == "keep":
        return
    end(session, leader_started)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # The owner's Ctrl-C is the owner's: its death is what counts here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
