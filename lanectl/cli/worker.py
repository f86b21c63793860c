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
from collections.abc import Callable, Iterator
from typing import Any

from lanectl.cli import errors
from lanectl.errors import LanectlError

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
        os.close(read_end)
        _detach()
        _run(work, write_end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
    os.close(write_end)
    os.waitpid(child, 0)
    return Channel(read_end)


def _detach() -> None:
    """Let go of the terminal: standard input and output go nowhere, errors to a private log."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _run(work: Callable[[Send], None], fd: int) -> None:
    """Run `work`, tell how it ended, and leave without the parent's clean-up. Never returns."""
    os.set_inheritable(fd, False)

    def send(message: Message) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            return  # The follower left. The journal has it all.

    try:
        work(send)
    except LanectlError as error:
        send(errors.of(error))
    except BaseException as error:  # noqa: BLE001  (a worker has no terminal: tell, then end)
        send(errors.bug(error))
    finally:
        os._exit(0)
