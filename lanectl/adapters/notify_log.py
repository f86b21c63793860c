"""`ports.Notifier` that writes to a file: what is told when no other way is configured.

Whoever is told lives in a worker without a terminal, so a line goes to a private file that
`lanectl status` reads, and to the system's log where there is one. Nothing here ever raises or
waits: a rollback must not be held up by the telling of it.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from lanectl.core.text import mask, printable
from lanectl.ports import Alert

SIZE_MAX = 1 << 20
"""Above it the file becomes `.1`, and what was there before goes."""
TAIL = 1 << 16
TITLE_MAX, BODY_MAX = 200, 2000
SYSTEM_LOG = "/dev/log"
USER_WARNING = 12
"""Facility `user`, severity `warning`, as syslog counts them."""

_log = logging.getLogger("lanectl")


class LogNotifier:
    """Alerts, one a line, in `path`: time, lane, title and body, with tabs between."""

    def __init__(self, path: Path, *, system_log: str | None = SYSTEM_LOG) -> None:
        self._path, self._system_log = path, system_log

    def tell(self, lane: str, title: str, body: str) -> None:
        limits = (TITLE_MAX, TITLE_MAX, BODY_MAX)
        parts = [
            printable(mask(part), limit)
            for part, limit in zip((lane, title, body), limits, strict=True)
        ]
        self._tell_the_system(": ".join(parts))
        try:
            self._append("\t".join([_now(), *parts]) + "\n")
        except (OSError, ValueError) as error:
            _log.warning("not written to %s: %s (%s)", self._path, ": ".join(parts), error)

    def last(self, lane: str) -> Alert | None:
        """The newest alert of the lane; None also where the file cannot be read."""
        for path in (self._path, self._older):
            for line in reversed(_last_lines(path)):
                at, told, title, body, *_ = [*line.split("\t"), "", "", ""]
                if told == lane:
                    with suppress(ValueError):
                        return Alert(datetime.fromisoformat(at), title, body)
        return None

    @property
    def _older(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def _append(self, line: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError("it is not a regular file")
            if found.st_mode & 0o077:
                os.fchmod(fd, 0o600)
            if found.st_size < SIZE_MAX:
                os.write(fd, line.encode())
                return
        finally:
            os.close(fd)
        os.replace(self._path, self._older)  # noqa: PTH105
        self._append(line)

    def _tell_the_system(self, text: str) -> None:
        """One datagram; `syslog(3)` would wait for a log daemon that hangs."""
        if self._system_log is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.setblocking(False)
            log.sendto(f"<{USER_WARNING}>lanectl: {text}".encode(), self._system_log)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _last_lines(path: Path) -> list[str]:
    try:
        with open(path, "rb", opener=_cautiously) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL, 0))
            return file.read(TAIL).decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def _cautiously(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
