"""`ports.LaneApi` over HTTP: every request bounded in time and bytes, streams cut on proof.

A new connection for each request, on purpose: a kept one would go on talking to the process of
before the restart. No redirects, no proxies of the environment, no decompression: the lane is
asked directly, and whatever does otherwise is told as it is.

The methods are synchronous; generations run on a private event loop. One object serves one thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lanectl.adapters.chat_reply import ReplyBuilder, error_text
from lanectl.adapters.http_get import get
from lanectl.adapters.lane_metrics import read_metrics
from lanectl.adapters.sse import EventSplitter, TooLong
from lanectl.core.smoke import ProbeRequest, Reply
from lanectl.core.text import printable
from lanectl.errors import ConfigError
from lanectl.ports import Answer, Metrics, Model

if TYPE_CHECKING:
    import aiohttp

POLL_S = 0.1
"""How often `stop` is asked while replies come in."""
CONNECT_S = 5.0
ERROR_BYTES_MAX = 64 * 2**10
ANSWER_BYTES_MAX = 2**20
METRICS_BYTES_MAX = 4 * 2**20
REPLY_BYTES_MAX = 64 * 2**20
"""Bytes of a whole stream; an event of one token is some hundred bytes."""

_T = TypeVar("_T")


class HttpLane:
    """The API at `base` (`http://127.0.0.1:8000/v1`); `/health` and `/metrics` lie beside `/v1`.

    api_key_file: its text is sent as the bearer token, and shown nowhere. Read when first needed;
    raises ConfigError where it cannot be read.
    """

    def __init__(self, base: str, *, api_key_file: str | None = None) -> None:
        self._base = base.rstrip("/")
        self._root = self._base.removesuffix("/v1")
        self._api_key_file = api_key_file
        self._runner: asyncio.Runner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._headers: dict[str, str] | None = None

    # ---------------------------------------------------------------------------------- the port

    def health(self, *, timeout_s: float = 2.0) -> Answer:
        return self._get(f"{self._root}/health", timeout_s)

    def version(self, *, timeout_s: float = 2.0) -> str | None:
        answer = self._get(f"{self._root}/version", timeout_s)
        told = _object(answer).get("version")
        return printable(told) if isinstance(told, str) else None

    def models(self, *, timeout_s: float = 2.0) -> list[Model] | Answer:
        answer = self._get(f"{self._base}/models", timeout_s)
        data = _object(answer).get("data")
        if not isinstance(data, list):
            error = answer.error or ("no list of models" if answer.status == 200 else "")
            return Answer(answer.status, answer.body, error)
        return [
            Model(entry["id"], length if type(length) is int and length > 0 else None)
            for entry in data
            if isinstance(entry, dict) and isinstance(entry.get("id"), str)
            for length in [entry.get("max_model_len")]
        ]

    def metrics(self, *, timeout_s: float = 2.0) -> Metrics | None:
        answer = self._get(f"{self._root}/metrics", timeout_s, METRICS_BYTES_MAX)
        return read_metrics(answer.body) if answer.status == 200 and not answer.error else None

    def chat(self, requests: Sequence[ProbeRequest], stop: Callable[[], bool]) -> list[Reply]:
        return self._run(self._chat(requests, stop))

    def close(self) -> None:
        if self._runner is None:
            return
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()
        self._runner = self._session = None

    # ------------------------------------------------------------------------------------- inside

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def _asking(self) -> dict[str, str]:
        """The headers of every request; the key is read when first needed."""
        if self._headers is None:
            headers = {"Accept-Encoding": "identity", "User-Agent": "lanectl"}
            if self._api_key_file:
                headers["Authorization"] = f"Bearer {_read_key(self._api_key_file)}"
            self._headers = headers
        return self._headers

    def _get(self, url: str, timeout_s: float, bytes_max: int = ANSWER_BYTES_MAX) -> Answer:
        return get(url, self._asking(), timeout_s=timeout_s, bytes_max=bytes_max)

    def _opened(self) -> aiohttp.ClientSession:
        """The session of the generations, made inside the loop at the first one."""
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                headers=self._asking(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def _chat(
        self, requests: Sequence[ProbeRequest], stop: Callable[[], bool]
    ) -> list[Reply]:
        tasks = [asyncio.create_task(self._ask(request)) for request in requests]
        pending: set[asyncio.Task[Reply]] = set(tasks)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, timeout=POLL_S)
                if pending and stop():
                    break
        finally:
            # A cancelled one says "stopped"; gone is gone, also when `stop` itself raised.
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)
        return [task.result() for task in tasks]

    async def _ask(self, request: ProbeRequest) -> Reply:
        """One reply, whatever happens."""
        clock = asyncio.get_running_loop().time
        began = clock()
        built = ReplyBuilder(request.cancel_after)
        try:
            await self._stream(request, built, began)
        except asyncio.CancelledError:
            built.end("stopped")
        return built.reply(clock() - began)

    async def _stream(self, request: ProbeRequest, built: ReplyBuilder, began: float) -> None:
        """Send, and read until `built` is over. Faults of the lane end in `built`."""
        session = self._opened()
        import aiohttp

        try:
            async with (
                asyncio.timeout_at(began + request.timeout_s) as limit,
                session.post(
                    f"{self._base}/chat/completions",
                    json={**request.body, "stream": True},
                    allow_redirects=False,
                ) as response,
            ):
                # Left before its end, the connection is closed: the lane sees it and stops.
                built.status = response.status
                await _read_reply(response, request, built, began)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            built.end("unreachable", _why(error))
        except TimeoutError:
            built.end("timed_out" if limit.expired() else "stalled")
        except aiohttp.ClientResponseError as error:
            built.end("garbled", _why(error))
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            built.end("aborted", _why(error))
        except (aiohttp.ClientError, ValueError) as error:
            built.end("garbled", _why(error))


async def _read_reply(
    response: aiohttp.ClientResponse, request: ProbeRequest, built: ReplyBuilder, began: float
) -> None:
    """Read the body as what its head says it is."""
    kind = response.content_type
    if response.status != 200:
        body = await _read(response, ERROR_BYTES_MAX)
        built.end("", error_text(body.decode("utf-8", "replace")))
    elif response.headers.get("Content-Encoding", "identity") != "identity":
        built.end("garbled", "a compressed body, although none was asked for")
    elif kind == "application/json":
        built.take_whole(await _read(response, REPLY_BYTES_MAX))
    else:
        await _read_events(response, request, built, began)


async def _read_events(
    response: aiohttp.ClientResponse, request: ProbeRequest, built: ReplyBuilder, began: float
) -> None:
    clock = asyncio.get_running_loop().time
    splitter = EventSplitter()
    head = b""
    left = REPLY_BYTES_MAX
    last_event: float | None = None
    while not built.over:
        # Before the first event a lane may be prefilling: only the total limit counts there.
        async with asyncio.timeout_at(last_event and last_event + request.stall_s):
            chunk = await response.content.readany()
        if not chunk:
            told = head.decode("utf-8", "replace")
            built.end("aborted") if built.events else built.end("garbled", told or "an empty body")
            return
        head += chunk[: ERROR_BYTES_MAX - len(head)] if not built.events else b""
        left -= len(chunk)
        try:
            events = splitter.feed(chunk)
        except TooLong:
            left = -1
        if left < 0:
            built.end("oversized", head.decode("utf-8", "replace"))
            return
        for event in events:
            built.take_event(event)
            last_event = clock()
            if built.first_token_s is None and built.output_chars:
                built.first_token_s = last_event - began
            if built.over:
                return


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """At most so many bytes of the body; the rest is never asked for."""
    parts: list[bytes] = []
    left = bytes_max
    while left > 0 and (part := await response.content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _read_key(path: str) -> str:
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", key="api_key_file", file=path) from None
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("holds no key on one line", key="api_key_file", file=path)
    return key


def _object(answer: Answer) -> dict[str, Any]:
    """The JSON object of a 200 answer, or an empty one."""
    if answer.status != 200 or answer.error:
        return {}
    try:
        told = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _why(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)
