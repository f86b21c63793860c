"""The lock of a lane: flock on a file beside its launcher, whoever and whichever store asks.

The kernel lets go of it when the holder dies, however it dies. The file itself stays for good:
unlinking it would let two processes each hold "the" lock. Its text says who holds it; only while
the flock is held does that text mean anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from lanectl.adapters import procfs
from lanectl.adapters.refusal import refusal
from lanectl.errors import ConfigError, LaneBusy

_SUFFIX = ".lanectl.lock"
_PATIENCE_S = 0.2
"""A reader of the holder takes the lock for an instant; do not call that busy."""
# O_CLOEXEC: a child that outlived us with the descriptor open would hold the lane for ever.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def beside(launcher: str) -> str:
    """The lock file of a launcher (with links followed)."""
    return launcher + _SUFFIX


@contextmanager
def hold(lock_path: str, who: Mapping[str, Any]) -> Iterator[None]:
    """Hold the lock for the `with` block. Raises LaneBusy, naming the holder and its age."""
    fd, writable = _take(lock_path)
    try:
        if writable:
            with suppress(OSError):  # A full disk takes the words away, not the lock.
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(dict(who)).encode(), 0)
        yield
    finally:
        if writable:
            with suppress(OSError):
                os.ftruncate(fd, 0)
        os.close(fd)


def holder(lock_path: str) -> Mapping[str, Any] | None:
    """What the live holder wrote; None when nobody holds it, {} when it could not say."""
    try:
        fd = os.open(lock_path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refusal("cannot read the lock", lock_path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _told(fd)
    finally:
        os.close(fd)


def _take(lock_path: str) -> tuple[int, bool]:
    """The lock file, locked, and whether we may write the holder into it. Raises LaneBusy."""
    patience = time.monotonic() + _PATIENCE_S
    while True:
        fd, writable = _open(lock_path)
        kept = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = _still_there(lock_path, fd)
            if kept:
                return fd, writable
        except BlockingIOError:
            if time.monotonic() > patience:
                raise _busy(lock_path, _told(fd)) from None
        finally:
            if not kept:
                os.close(fd)
        time.sleep(0.01)


def _open(lock_path: str) -> tuple[int, bool]:
    """A descriptor of the lock file, and whether it may be written to.

    A new one is given to the launcher's owner, so that a lock made by root serves that user too.
    One that we may only read can be locked all the same; then it does not say who holds it.
    """
    try:
        try:
            fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o644)
        except FileExistsError:
            try:
                return os.open(lock_path, os.O_RDWR | _FLAGS), True
            except PermissionError:
                return os.open(lock_path, os.O_RDONLY | _FLAGS), False
        with suppress(OSError):
            os.fchmod(fd, 0o644)  # Whatever the umask: another user must see who holds it.
            owner = os.lstat(lock_path.removesuffix(_SUFFIX))
            os.fchown(fd, owner.st_uid, owner.st_gid)
        return fd, True
    except FileNotFoundError as error:
        folder = str(Path(lock_path).parent)
        raise ConfigError(f"there is no folder {folder}, where the launcher should be") from error
    except OSError as error:
        raise refusal("cannot open the lock", lock_path, error) from error


def _still_there(lock_path: str, fd: int) -> bool:
    """Whether `fd` is the file at `lock_path`: somebody may have removed it before we locked it."""
    try:
        return os.path.samestat(os.lstat(lock_path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _told(fd: int) -> Mapping[str, Any]:
    """The text of the lock file; {} when unreadable or left by a process that is long gone."""
    try:
        told = json.loads(os.pread(fd, 1 << 16, 0))
    except ValueError:
        return {}
    if not isinstance(told, dict):
        return {}
    pid, started = told.get("pid"), told.get("started")
    if isinstance(pid, int) and isinstance(started, int | float):
        process = procfs.process(pid)
        if process is None or abs(process.started - started) > 1.0:
            return {}
    return told


def _busy(lock_path: str, told: Mapping[str, Any]) -> LaneBusy:
    words = [f"{key} {told[key]}" for key in ("switch", "who", "pid") if told.get(key)]
    age = _age(told.get("at"))
    since = f", for {age:.0f} s" if age is not None else ""
    return LaneBusy(
        f"another change holds this lane: {', '.join(words) or 'an unknown holder'}{since} "
        f"({lock_path}); nothing changed",
        next_step="wait for it (`lanectl status`), or `lanectl rollback` to pre-empt it",
    )


def _age(at: Any) -> float | None:
    """Seconds since `at`: ISO 8601 or seconds since the epoch; None when it is neither."""
    if isinstance(at, int | float):
        return max(0.0, time.time() - at)
    try:
        return max(0.0, time.time() - datetime.fromisoformat(str(at)).timestamp())
    except ValueError:
        return None
