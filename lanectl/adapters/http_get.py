"""One bounded GET, with the standard library.

aiohttp takes 0.2 s to import. Only generations need it, several streams at once; a look at the
gauges does not, and in an incident one comes before the stop.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from lanectl.adapters import timed_socket
from lanectl.core.text import printable
from lanectl.ports import Answer


def get(url: str, headers: Mapping[str, str], *, timeout_s: float, bytes_max: int) -> Answer:
    """The answer, whatever it is, on a connection of its own; redirects are not followed.

    timeout_s: for all of it, but the resolver's own limits come on top where the host is a name.
    """
    deadline = time.monotonic() + timeout_s
    status: int | None = None
    try:
        connection = _connected(url, deadline)
        try:
            connection.request("GET", _path(url), headers={**headers, "Connection": "close"})
            response = connection.getresponse()
            status = response.status
            body = response.read(bytes_max + 1)
            if len(body) <= bytes_max and response.length:
                raise ConnectionError("the connection ended in the middle of the body")
        finally:
            connection.close()
    except TimeoutError:
        return Answer(status, error=f"no answer within {timeout_s:g} s")
    except (http.client.HTTPException, OSError, ValueError) as error:
        return Answer(status, error=printable(str(error) or type(error).__name__))
    text = body[:bytes_max].decode("utf-8", "replace")
    if len(body) > bytes_max:
        return Answer(status, text, f"more than {bytes_max} bytes")
    return Answer(status, text)


def _connected(url: str, deadline: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    secure, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if secure else 80)
    sock = timed_socket.connect(timed_socket.resolve(host, port), deadline)
    connection = http.client.HTTPConnection(host, port)  # It is told the names for `Host:` only.
    connection.sock = timed_socket.secured(sock, host) if secure else sock
    return connection


def _path(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
