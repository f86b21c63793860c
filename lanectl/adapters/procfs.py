"""Processes and listening sockets of this machine, straight from /proc.

A switch polls these at 20 to 50 Hz, so each process costs one `open`, one `read` and one `close` of
its `stat`. Everything here may vanish between two system calls: gone is an answer, never an error.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal as signals
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from lanectl.errors import EffectFailed
from lanectl.ports import Listener, Process

OUTPUT_LIMIT = 1 << 20
"""Bytes kept of each output of a command; what is above is read and thrown away."""
TIMED_OUT = 124
"""The exit status that stands for the time limit, as timeout(1) has it."""

_GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)
_TCP_LISTEN = "0A"
_LINGER_S = 0.2
"""How long output is still read after the command has ended, and its end awaited after a kill."""


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def boot_time() -> int:
    """When this machine booted, in whole seconds since the epoch.

    Read once, so that one process turns the same ticks into the same time for as long as it lives.
    The kernel's `btime` moves only when the clock is *set*: slewing changes both its terms. It is
    rounded down, so a start time reckoned from it may lie up to a second before the true one:
    compare start times with each other, not with the clock.
    """
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    raise OSError(errno.ENODATA, "no btime in /proc/stat")


@cache
def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def _read(path: str) -> bytes | None:
    """A whole /proc file; None when its process is gone or it may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def parse_stat(data: bytes) -> Process:
    """One `/proc/PID/stat`. The command name may hold spaces and parentheses: the last `)` ends it.

    Raises ValueError or IndexError for anything else.
    """
    opened, closed = data.index(b"("), data.rindex(b")")
    state, ppid, pgid, *rest = data[closed + 2 :].split(b" ", 20)
    return Process(
        pid=int(data[:opened]),
        ppid=int(ppid),
        pgid=int(pgid),
        # Hundredths are exact enough in a float that equal ticks give equal numbers.
        started=round(boot_time() + int(rest[16]) / _ticks_per_second(), 2),
        name=data[opened + 1 : closed].decode("utf-8", "replace"),
        state=state.decode("ascii"),
    )


def _stat(pid: int) -> Process | None:
    data = _read(f"/proc/{pid}/stat")
    return parse_stat(data) if data else None


def processes() -> list[Process]:
    """Every process that can be seen, argv left empty."""
    found = (_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return [process for process in found if process is not None]


def process(pid: int) -> Process | None:
    """One process with its argv; None when it is gone."""
    seen = _stat(pid)
    if seen is None:
        return None
    argv = _argv(pid, seen.name)
    again = _stat(pid)
    if again is None or again.started != seen.started:
        return None  # It ended while we read, and the pid may be another's by now.
    return Process(again.pid, again.ppid, again.pgid, again.started, again.name, again.state, argv)


def _argv(pid: int, name: str) -> tuple[str, ...]:
    data = (_read(f"/proc/{pid}/cmdline") or b"").rstrip(b"\0")
    if not data:
        return ()
    argv = tuple(os.fsdecode(word) for word in data.split(b"\0"))
    return () if _renamed(pid, name, argv) else argv


def _renamed(pid: int, name: str, argv: tuple[str, ...]) -> bool:
    """Whether `argv` is a title that the process gave itself (`VLLM::EngineCore`).

    Such a title is one word, is the kernel's command name too, and names no program: neither the
    executable that runs nor a path.
    """
    title = argv[0]
    if len(argv) > 1 or "/" in title or title[: len(name)] != name:
        return False
    if ":" in title:
        return True
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name != title  # noqa: PTH115
    except OSError:
        return False


def environ(pid: int) -> Mapping[str, str] | None:
    """The environment a process was started with; None when it cannot be read or was wiped."""
    data = _read(f"/proc/{pid}/environ")
    if not data or b"=" not in data:
        return None
    pairs = (word.partition(b"=") for word in data.split(b"\0") if b"=" in word)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


# ------------------------------------------------------------------------------------------ sockets


def listeners(port: int) -> list[Listener]:
    """Every listening TCP socket on `port` in our network namespace, IPv4 and IPv6.

    `pids` is None for a socket that no readable process holds while some could not be read.
    """
    addresses: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        addresses |= _listening(table, port)
    if not addresses:
        return []
    holders, all_seen = _holders(addresses)
    return [
        Listener(
            address=address,
            port=port,
            pids=frozenset(holders[inode]) if holders[inode] or all_seen else None,
        )
        for inode, address in addresses.items()
    ]


def _listening(table: str, port: int) -> dict[str, str]:
    """inode -> address of the listening sockets on `port` in one table of /proc/net."""
    suffix = f":{port:04X}"
    found: dict[str, str] = {}
    for line in (_read(f"/proc/net/{table}") or b"").decode("ascii", "replace").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _TCP_LISTEN and fields[1].endswith(suffix):
            found[fields[9]] = _address(fields[1].partition(":")[0])
    return found


def _address(digits: str) -> str:
    """`0100007F` -> `127.0.0.1`: the kernel prints 32-bit words in the machine's own byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def _holders(inodes: Mapping[str, str]) -> tuple[dict[str, set[int]], bool]:
    """inode -> pids that have the socket open, and whether every process could be looked at."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    holders: dict[str, set[int]] = {inode: set() for inode in inodes}
    all_seen = True
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        folder = f"/proc/{name}/fd"
        try:
            for fd in os.listdir(folder):  # noqa: PTH208
                with suppress(*_GONE):
                    inode = wanted.get(os.readlink(f"{folder}/{fd}"))  # noqa: PTH115
                    if inode is not None:
                        holders[inode].add(int(name))
        except _GONE:
            continue
        except PermissionError:
            all_seen = False
    return holders, all_seen


# ----------------------------------------------------------------------------- signals and commands


def send_signal(target: Process, signal: int) -> bool:
    """Send `signal` to this very process; False when it is gone, dead, or the pid is another's.

    The descriptor pins the process first, so the pid cannot change hands between look and signal.
    Raises EffectFailed when the kernel does not allow it.
    """
    try:
        pinned = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        pinned = None  # A kernel before 5.3 or a sandbox without the call: look, then signal.
    try:
        seen = _stat(target.pid)
        if seen is None or seen.started != target.started or seen.state == "Z":
            return False
        if pinned is None:
            os.kill(target.pid, signal)
        else:
            signals.pidfd_send_signal(pinned, signal)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise EffectFailed(
            f"not allowed to send {_signal_name(signal)} to process {target.pid} ({target.name})",
            next_step="run lanectl as root or as the user the program runs as",
        ) from error
    finally:
        if pinned is not None:
            os.close(pinned)
    return True


def _signal_name(signal: int) -> str:
    try:
        return signals.Signals(signal).name
    except ValueError:
        return f"signal {signal}"


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> tuple[int, str, str]:
    """Run a command without a shell: exit status, stdout, stderr.

    124 at the time limit, then its whole process group is killed; 127 and 126 where it cannot be
    started, -N after signal N. `OUTPUT_LIMIT` bytes of each output are kept.
    """
    deadline = time.monotonic() + timeout_s
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env,
            cwd=cwd,
        )
    except FileNotFoundError as error:
        return 127, "", str(error)
    except OSError as error:
        return 126, "", str(error)
    assert child.stdout is not None and child.stderr is not None
    outputs = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    with child.stdout, child.stderr:
        in_time = _collect(child, outputs, deadline)
        if not in_time:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signals.SIGKILL)
            # One that hangs in a driver does not die even of that; it is reaped whenever it ends.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LINGER_S)
    out, err = (bytes(text).decode("utf-8", "replace") for text in outputs.values())
    return (child.returncode if in_time else TIMED_OUT), out, err


def _collect(
    child: subprocess.Popen[bytes], outputs: Mapping[int, bytearray], deadline: float
) -> bool:
    """Read until the command has ended; False at the deadline.

    A descendant that keeps the pipes open is not waited for longer than `_LINGER_S`.
    """
    with selectors.DefaultSelector() as selector:
        for fd in outputs:
            selector.register(fd, selectors.EVENT_READ)
        ended_at: float | None = None
        while True:
            now = time.monotonic()
            if ended_at is None and child.poll() is not None:
                ended_at = now
            if ended_at is not None and (not selector.get_map() or now > ended_at + _LINGER_S):
                return True
            if ended_at is None and now >= deadline:
                return False
            if not selector.get_map():
                # Both outputs are closed, so the end is near: no need for more than a short nap.
                time.sleep(min(0.002, deadline - now))
                continue
            for key, _ in selector.select(min(0.05, max(0.0, deadline - now))):
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fd)
                kept = outputs[key.fd]
                kept += part[: OUTPUT_LIMIT - len(kept)]


def held_files(pid: int, path: str) -> list[str]:
    """`/proc/PID/fd/N` of every descriptor that `pid` holds of the file `path`, deleted or not."""
    folder = Path("/proc") / str(pid) / "fd"
    found: list[str] = []
    try:
        for entry in folder.iterdir():
            try:
                if str(entry.readlink()) in (path, f"{path} (deleted)"):
                    found.append(str(entry))
            except OSError:
                continue  # Closed while we looked.
    except OSError:
        return []
    return found
