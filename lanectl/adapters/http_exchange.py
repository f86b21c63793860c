"""One HTTP/1.1 request and its reply, on a connection of their own.

As much of HTTP as asking a lane needs, and no more: no redirects, no proxies, no compression, no
kept connections. aiohttp's client does all that too, but importing it takes 0.2 s, and in an
incident that time passes before the stop is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, urlsplit

READ_BYTES = 1 << 16
HEADERS_MAX = 256
_WITHOUT_BODY = (204, 304)


class NotReached(Exception):
    """No connection could be made; nothing was sent."""


class NotHttp(Exception):
    """What came back is not HTTP."""


class BrokenOff(ConnectionError):
    """The connection ended before the reply did."""


class Response:
    """A reply whose head has been read. headers: names in lower case."""

    def __init__(self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader):
        self.status, self.headers, self._reader = status, headers, reader
        self._chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._left = None if self._chunked else _length(status, headers)
        """Bytes still to come, of the body or of this chunk; None where only the end tells."""
        self._began = self._over = False

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self, bytes_max: int = READ_BYTES) -> bytes:
        """What there is of the body, at most so many bytes; b"" at its end."""
        if self._chunked and not self._left:
            await self._next_chunk()
        if self._over or self._left == 0:
            return b""
        wanted = bytes_max if self._left is None else min(bytes_max, self._left)
        part = await self._reader.read(wanted)
        if self._left is not None:
            if not part:
                raise BrokenOff("the connection ended in the middle of the body")
            self._left -= len(part)
        return part

    async def _next_chunk(self) -> None:
        if self._over:
            return
        if self._began and await _line(self._reader):
            raise NotHttp("a chunk is longer than it says")
        self._began = True
        size = (await _line(self._reader)).partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError as error:
            raise NotHttp(f"no size of a chunk: {size[:40]!r}") from error
        self._over = self._left <= 0


@asynccontextmanager
async def exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b"", *, connect_s: float
) -> AsyncIterator[Response]:
    """Send the request and read the reply's head; the connection ends with the block.

    Raises NotReached, NotHttp, OSError, and ValueError for a URL that is none. Limits of time are
    the caller's, but for `connect_s`.
    """
    parts = urlsplit(url)
    head = _head(method, parts, {**headers, "Content-Length": str(len(body))} if body else headers)
    reader, writer = await _connect(parts, connect_s)
    try:
        writer.write(head + body)
        await writer.drain()
        yield await _response(reader)
    finally:
        writer.transport.abort()  # At once, so that a server that still sends sees us gone.


async def _connect(
    parts: SplitResult, connect_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(connect_s):
            return await asyncio.open_connection(parts.hostname or "", port, ssl=secure or None)
    except TimeoutError as error:
        raise NotReached(f"no connection within {connect_s:g} s") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one.
        raise NotReached(str(error)) from error


def _head(method: str, parts: SplitResult, headers: Mapping[str, str]) -> bytes:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _response(reader: asyncio.StreamReader) -> Response:
    status = 100
    while 100 <= status < 200:  # "100 Continue" and its like come before the reply.
        version, _, rest = (await _line(reader)).partition(b" ")
        code = rest[:3]
        if not version.startswith(b"HTTP/1.") or not code.isdigit():
            raise NotHttp(f"no HTTP reply: {(version + b' ' + rest)[:80]!r}")
        status = int(code)
        headers = await _headers(reader)
    return Response(status, headers, reader)


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = await _line(reader)
        if not line:
            return headers
        name, colon, value = line.partition(b":")
        if not colon:
            raise NotHttp(f"no header: {line[:80]!r}")
        headers[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
    raise NotHttp(f"more than {HEADERS_MAX} headers")


async def _line(reader: asyncio.StreamReader) -> bytes:
    """A line without its end. The reader bounds its length."""
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        raise BrokenOff("the connection ended before the reply did") from error
    except asyncio.LimitOverrunError as error:
        raise NotHttp("a line without end") from error
    return line.rstrip(b"\r\n")


def _length(status: int, headers: Mapping[str, str]) -> int | None:
    if status in _WITHOUT_BODY:
        return 0
    told = headers.get("content-length")
    if told is None:
        return None
    if not (told.isascii() and told.isdigit()):
        raise NotHttp(f"no length: {told[:40]!r}")
    return int(told)
