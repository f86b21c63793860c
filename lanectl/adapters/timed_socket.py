"""A socket whose every wait ends at one deadline: a reply that drips in is cut as well.

`http.client` limits each read on its own, so a server that sends a byte now and then holds it up
for as long as it likes.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class TimedSocket(socket.socket):
    """deadline: on the monotonic clock; it may be set anew for the next call."""

    deadline: float = float("inf")

    def _arm(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == float("inf") else left)

    def connect(self, address: Any) -> None:
        self._arm()
        super().connect(address)

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        self._arm()
        super().sendall(data, flags)

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        self._arm()
        return super().recv_into(buffer, nbytes or memoryview(buffer).nbytes, flags)


class TimedTlsSocket(TimedSocket, ssl.SSLSocket):
    """The same over TLS."""


def resolve(host: str, port: int) -> list[tuple[int, Any]]:
    """Families and addresses of `host`. The resolver's own limits hold here, not ours."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(entry[0], entry[4]) for entry in found]


def connect(places: Iterable[tuple[int, Any]], deadline: float) -> TimedSocket:
    """Connected to the first of `places` that takes it. Raises OSError."""
    failure: OSError = OSError("no address")
    for family, address in places:
        sock = TimedSocket(family, socket.SOCK_STREAM)
        sock.deadline = deadline
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
            continue
        if family != socket.AF_UNIX:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise failure


def secured(sock: TimedSocket, host: str) -> TimedSocket:
    """`sock` with TLS upon it, the certificate of `host` checked; its handshake done."""
    context = ssl.create_default_context()
    context.sslsocket_class = TimedTlsSocket
    deadline = sock.deadline
    sock.settimeout(max(0.001, deadline - time.monotonic()))
    wrapped = context.wrap_socket(sock, server_hostname=host)
    assert isinstance(wrapped, TimedTlsSocket)
    wrapped.deadline = deadline
    return wrapped
