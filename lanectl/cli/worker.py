"""A worker process that outlives the terminal, and the channel on which its progress arrives.

The worker is this process forked, in a session of its own, so it has every import already. The
channel only tells; the truth is the journal. A follower that leaves changes nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from lanectl.cli import errors
from lanectl.errors import LanectlError

PENDING_MAX = 1 << 20
LAST_WORDS_S = 5.0

Message = dict[str, Any]
Send = Callable[[Message], None]


class Channel:
    """Messages of the worker, one JSON object a line."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest = fd, b""
        self.closed = False

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """What has arrived, after at most `timeout_s`. `closed` is set at the end of the worker."""
        ready, _, _ = select.select([self._fd], [], [], timeout_s)
        if not ready:
            return
        chunk = os.read(self._fd, 1 << 16)
        if not chunk:
            self.closed = True
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


def start(work: Callable[[Send], None]) -> Channel:
    """Fork a worker that runs `work`; returns the follower's end of the channel.

    `work` gets a function that sends a message to whoever still follows. Call this before any
    thread, event loop or store connection exists in this process.
    """
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # Ctrl-C reaches the whole foreground group: the worker must be out of it before it may hit.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
        if os.fork():
            os._exit(0)  # The worker is nobody's child: no zombie stays, no wait is owed.
        _detach(write_end)
        _run(work, write_end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    os.close(write_end)
    os.waitpid(child, 0)
    return Channel(read_end)


def _detach(keep: int) -> None:
    """Let go of the terminal and of every descriptor that whoever called us waits on."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    highest = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, keep)
    os.closerange(keep + 1, highest)


class _Teller:
    """Sends messages without ever waiting for a reader: one that is stopped must not stop us."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd: int | None = fd
        self._pending = b""

    def send(self, message: Message) -> None:
        if len(self._pending) < PENDING_MAX or "say" not in message:
            self._pending += json.dumps(message).encode() + b"\n"
        self._flush()
        if "done" in message or "error" in message:
            self.last()

    def last(self) -> None:
        """Give a slow reader a moment for what is left; then it finds the channel closed.

        The probation comes after the last word, and takes too long to leave the reader waiting:
        to one that was stopped the journal tells the end.
        """
        if self._fd is None:
            return
        deadline = time.monotonic() + LAST_WORDS_S
        while self._pending and (left := deadline - time.monotonic()) > 0:
            select.select([], [self._fd], [], left)
            self._flush()
        os.close(self._fd)
        self._fd, self._pending = None, b""

    def _flush(self) -> None:
        if self._fd is None:
            return
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._fd, self._pending) :]
        except BlockingIOError:
            return  # The reader is slow or stopped. The journal has it all.
        except OSError:
            self._pending = b""  # The reader left.


def _run(work: Callable[[Send], None], fd: int) -> None:
    """Run `work`, tell how it ended, and leave without the parent's clean-up. Never returns."""
    teller = _Teller(fd)
    try:
        work(teller.send)
    except LanectlError as error:
        teller.send(errors.of(error))
    except BaseException as error:  # noqa: BLE001  (a worker has no terminal: tell, then end)
        teller.send(errors.bug(error))
    finally:
        teller.last()
        os._exit(0)
