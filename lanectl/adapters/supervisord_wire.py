"""XML-RPC calls to one supervisord that are certain to end.

supervisor's own `SupervisorTransport` has no time limit at all: a stopped supervisord hangs it for
good (field note 21). Importing it also costs 60 ms more than `xmlrpc.client` alone (the server half
comes with it), which is most of what `lanectl status` may take. So the transport stands here.

One limit holds for a whole call, not for each read, so a reply that drips in is cut as well.
"""

from __future__ import annotations

import base64
import http.client
import select
import socket
import threading
import time
import xmlrpc.client
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.parsers.expat import ExpatError

from lanectl.adapters import timed_socket
from lanectl.adapters.timed_socket import TimedSocket
from lanectl.errors import ConfigError, Unreachable

REPLY_LIMIT = 8 << 20
"""A reply of more bytes than this is not supervisord's."""

# XML cannot carry these, yet supervisord sends them as they stand in a program's log (a colour
# code is enough); expat then refuses the whole reply.
_CONTROLS = bytes(set(range(32)) - {9, 10, 13})
_NO_CONTROLS = bytes.maketrans(_CONTROLS, b"?" * len(_CONTROLS))


class ReplyFailed(Unreachable):
    """HTTP 500: supervisord is there, but this one call made it stumble."""


class Wire:
    """One kept connection to one supervisord; calls from several threads take turns.

    url: `unix:///path` or `http://host:port`. timeout_s: for a whole call, connecting included (the
    resolver's own limits come on top where `host` is a name).
    """

    def __init__(
        self, url: str, user: str | None, password_file: str | None, timeout_s: float
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self._socket_path = url.removeprefix("unix://") if parts.scheme == "unix" else None
        if not self._socket_path and not (parts.scheme == "http" and parts.hostname):
            raise ConfigError(
                f"{url} is neither unix:///path/to/supervisor.sock nor http://host:port",
                key="supervisor",
            )
        self._address = (parts.hostname or "", parts.port or 80)
        self._user, self._password_file = user, password_file
        self._timeout_s = timeout_s
        self._headers: dict[str, str] | None = None
        self._http: http.client.HTTPConnection | None = None
        self._turn = threading.Lock()

    @property
    def local(self) -> bool:
        """Whether supervisord surely runs on this machine."""
        return bool(self._socket_path) or self._address[0] in ("localhost", "127.0.0.1", "::1")

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def call(self, method: str, *params: str | int | bool) -> Any:
        """The value that `method` returns. Raises xmlrpc.client.Fault, ReplyFailed, Unreachable."""
        body = xmlrpc.client.dumps(params, method).encode()
        with self._turn:
            if self._headers is None:
                self._headers = self._make_headers()
            status = None
            try:
                status, data = self._post(body, self._headers)
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
            finally:
                # After anything but a whole, good reply the next call starts afresh: there may be
                # bytes of this one on the way.
                if status != 200:
                    self.close()
        if status != 200:
            raise self._bad_status(status)
        try:
            return xmlrpc.client.loads(data.translate(_NO_CONTROLS))[0][0]
        except xmlrpc.client.Fault:
            raise
        except (ExpatError, xmlrpc.client.Error, ValueError, TypeError, LookupError) as error:
            self.close()
            raise self._not_supervisord() from error

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout_s
        connection = self._connected(deadline)
        connection.request("POST", "/RPC2", body, headers)
        reply = connection.getresponse()
        data = reply.read(REPLY_LIMIT + 1)
        if len(data) > REPLY_LIMIT:
            raise http.client.HTTPException(f"a reply of more than {REPLY_LIMIT} bytes")
        return reply.status, data

    def _connected(self, deadline: float) -> http.client.HTTPConnection:
        """The kept connection, or a new one where supervisord has closed the kept one.

        An idle connection has nothing to read; one that is readable has been closed. Looking first
        means that no call is ever sent twice, which for `startProcess` would not be the same.
        """
        if self._http is not None:
            held = self._http.sock
            if isinstance(held, TimedSocket) and not select.select([held], [], [], 0)[0]:
                held.deadline = deadline
                return self._http
            self.close()
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self._connect(deadline)
        self._http = connection
        return connection

    def _connect(self, deadline: float) -> TimedSocket:
        if self._socket_path:
            return timed_socket.connect([(socket.AF_UNIX, self._socket_path)], deadline)
        return timed_socket.connect(timed_socket.resolve(*self._address), deadline)

    def _make_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "text/xml", "Accept": "text/xml"}
        if self._user is not None:
            password = ""
            if self._password_file is not None:
                try:
                    password = Path(self._password_file).read_text().strip("\r\n")
                except (OSError, ValueError) as error:
                    raise ConfigError(
                        f"cannot read {self._password_file}: {error}",
                        key="supervisor_password_file",
                    ) from error
            pair = base64.b64encode(f"{self._user}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        return headers

    # ------------------------------------------------------------------------------------- failures

    def _unreachable(self, error: Exception) -> Unreachable:
        where = self.url
        match error:
            case FileNotFoundError():
                return Unreachable(
                    f"no supervisord at {where}: there is no such socket",
                    next_step="start supervisord, or correct `supervisor` in lanectl.toml",
                )
            case ConnectionRefusedError():
                return Unreachable(
                    f"no supervisord at {where}: nothing listens there",
                    next_step="start supervisord again",
                )
            case PermissionError():
                return Unreachable(
                    f"not allowed to connect to supervisord at {where}",
                    next_step="run lanectl as root or as the socket's owner (see `chmod` in "
                    "[unix_http_server])",
                )
            case TimeoutError() | BlockingIOError():
                return Unreachable(
                    f"supervisord at {where} did not answer within {self._timeout_s:g} s: it "
                    "hangs, or is stopped",
                    next_step="look at the supervisord process and its log",
                )
            case http.client.RemoteDisconnected() | ConnectionError():
                return Unreachable(
                    f"supervisord at {where} closed the connection without an answer: it may be "
                    "ending",
                    next_step="look at the supervisord process and its log, then try again",
                )
            case http.client.HTTPException():
                return self._not_supervisord()
            case _:
                return Unreachable(f"cannot reach supervisord at {where}: {error}")

    def _bad_status(self, status: int) -> Unreachable:
        if status == 500:
            return ReplyFailed(
                f"supervisord at {self.url} failed on this call (HTTP 500)",
                next_step="look at supervisord's own log",
            )
        if status in (401, 403):
            return Unreachable(
                f"supervisord at {self.url} asks for another user or password (HTTP {status})",
                next_step="set supervisor_user and supervisor_password_file to those of its "
                "configuration",
            )
        return self._not_supervisord(f" (HTTP {status})")

    def _not_supervisord(self, detail: str = "") -> Unreachable:
        return Unreachable(
            f"what answers at {self.url} is not supervisord{detail}",
            next_step="correct `supervisor` in lanectl.toml",
        )
