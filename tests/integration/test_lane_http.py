"""The HTTP adapter against real servers on loopback that misbehave in every way seen or feared."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanectl.adapters import lane_http
from lanectl.adapters.chat_reply import EXCERPT_CHARS
from lanectl.adapters.lane_http import HttpLane
from lanectl.adapters.lane_metrics import read_metrics
from lanectl.adapters.sse import LINE_CHARS_MAX, EventSplitter, TooLong
from lanectl.core.smoke import ProbeRequest, Reply, ToolCall, judge
from lanectl.core.verdict import ReplyClass
from lanectl.errors import ConfigError
from lanectl.ports import Answer, Model

SSE = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
Handler = Callable[[socket.socket], None]


class Server:
    """A raw server: each connection's request is read whole, then `handler` does what it likes.

    It closes the connection when the handler returns. `requests` keeps what was asked.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[bytes] = []
        self.here = threading.local()
        """`here.request`: the one that this thread's handler is to answer."""
        self.over = threading.Event()
        self.hung_up = threading.Event()
        """A client left while the handler was still sending."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                head, _, body = head.partition(b"\r\n\r\n")
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        while len(body) < int(line.split(b":")[1]):
                            body += connection.recv(65536)
                self.here.request = head + b"\r\n\r\n" + body
                self.requests.append(self.here.request)
                self.handler(connection)
            except OSError:
                self.hung_up.set()

    def close(self) -> None:
        self.over.set()
        self._listening.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], tuple[Server, HttpLane]]]:
    opened: list[tuple[Server, HttpLane]] = []

    def start(handler: Handler, **options: Any) -> tuple[Server, HttpLane]:
        server = Server(handler)
        opened.append((server, HttpLane(server.base, **options)))
        return opened[-1]

    yield start
    for server, api in opened:
        api.close()
        server.close()


Serve = Callable[..., tuple[Server, HttpLane]]


def sends(*parts: bytes | str | float) -> Handler:
    """Send the parts; a number is a pause in seconds."""

    def handler(connection: socket.socket) -> None:
        for part in parts:
            if isinstance(part, int | float):
                time.sleep(part)
            else:
                connection.sendall(part.encode() if isinstance(part, str) else part)

    return handler


def plain(body: str | bytes, status: str = "200 OK", kind: str = "application/json") -> Handler:
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    return sends(head, data)


def event(delta: dict[str, Any] | None = None, **choice: Any) -> str:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": None, **choice}]
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': choices})}\n\n"


def call(**function: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


DONE = "data: [DONE]\n\n"
CALL = event(call(name="get_status", arguments='{"service": "lane"}'))
END = event(finish_reason="tool_calls")
USAGE = f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': 7, 'x': None}})}\n\n"
WHOLE = CALL + END + USAGE + DONE


def stream(*parts: bytes | str | float) -> Handler:
    return sends(SSE + "Connection: close\r\n\r\n", *parts)


REQUEST = ProbeRequest("p", {"model": "m", "messages": []}, timeout_s=3.0, stall_s=1.0)


def never() -> bool:
    return False


def ask(api: HttpLane, request: ProbeRequest = REQUEST, **changes: Any) -> Reply:
    (reply,) = api.chat([replace(request, **changes)], never)
    return reply


# ---------------------------------------------------------------------------- replies as they are


def test_a_streamed_call(serve: Serve) -> None:
    server, api = serve(stream(event({"role": "assistant", "content": ""}), WHOLE))
    reply = ask(api)
    assert reply.status == 200
    assert reply.tool_calls == (ToolCall("get_status", '{"service": "lane"}'),)
    assert (reply.finish_reason, reply.fault, reply.usage) == (
        "tool_calls",
        "",
        {"prompt_tokens": 7},
    )
    assert reply.first_token_s is not None and reply.first_token_s <= reply.elapsed_s
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1")
    assert b"accept-encoding: identity" in head.lower()
    assert json.loads(body) == {"model": "m", "messages": [], "stream": True}


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        ([call(name="ping")], [("ping", None)]),
        ([call(name="ping", arguments=None)], [("ping", None)]),
        ([call(name="ping", arguments="")], [("ping", "")]),
        ([call(name="ping", arguments={})], [("ping", "{}")]),
        (
            [call(name="ping"), call(arguments='{"a"'), call(arguments=": 1}")],
            [("ping", '{"a": 1}')],
        ),
        ([call(name="get_"), call(name="status")], [("get_status", None)]),
        ([call(name="ping"), call(name="ping", arguments="{}")], [("ping", "{}")]),
        ([call(name=None, arguments="{}")], [("", "{}")]),
        (
            [{"tool_calls": [{"index": 1, "function": {"name": "b"}}]}, call(name="a")],
            [("a", None), ("b", None)],
        ),
        (
            [
                {"tool_calls": [{"function": {"name": "a"}}]},
                {"tool_calls": [{"function": {"arguments": "1"}}]},
                {"tool_calls": [{"function": {"name": "b"}}]},
            ],
            [("a", "1"), ("b", None)],
        ),
        (
            [{"tool_calls": []}, {"tool_calls": None}, {"tool_calls": [None, {"function": None}]}],
            [],
        ),
    ],
)
def test_fragments_of_calls_are_merged(
    serve: Serve, events: list[dict[str, Any]], calls: list[tuple[str, str | None]]
) -> None:
    _, api = serve(stream(*map(event, events), END, DONE))
    assert ask(api).tool_calls == tuple(ToolCall(*each) for each in calls)


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"reasoning": None, "reasoning_content": "hm"},
        {"reasoning": [{"type": "text", "text": "hm"}]},
    ],
)
def test_both_names_of_the_reasoning(serve: Serve, delta: dict[str, Any]) -> None:
    _, api = serve(stream(event(delta), event(delta), END, DONE))
    assert ask(api).reasoning == "hmhm"


def test_a_reply_that_was_not_streamed(serve: Serve) -> None:
    message = {
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"id": "1", "function": {"name": "get_status", "arguments": "{}"}}],
    }
    body = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"a": 1},
    }
    _, api = serve(plain(json.dumps(body)))
    reply = ask(api)
    assert (reply.fault, reply.finish_reason, reply.reasoning) == ("", "stop", "hm")
    assert reply.tool_calls == (ToolCall("get_status", "{}"),)


def test_bytes_in_any_cut_and_any_line_end(serve: Serve) -> None:
    text = (event({"content": "grüße 好"}) + WHOLE).replace("\n", "\r\n")
    data = ("\ufeff: ping\r\nevent: x\r\nid: 1\r\n" + text).encode()
    drips: list[bytes | float] = []
    for byte in data:
        drips += [bytes([byte]), 0.0]
    _, api = serve(stream(*drips))
    reply = ask(api, timeout_s=20.0)
    assert (reply.content, reply.fault, len(reply.tool_calls)) == ("grüße 好", "", 1)


def test_an_event_of_several_lines_and_invalid_utf8(serve: Serve) -> None:
    lines = 'data: {"choices": [{"delta":\ndata:{"content": "a\xff"}}]}\n\n'.encode("latin-1")
    _, api = serve(stream(lines, END, DONE))
    assert ask(api).content == "a\ufffd"


# --------------------------------------------------------------------------- replies gone wrong

CHUNKED = SSE + "Transfer-Encoding: chunked\r\n\r\n"
HTML = "<html><h1>502 Bad Gateway</h1></html>"


@pytest.mark.parametrize(
    ("handler", "fault", "cls"),
    [
        (stream(CALL), "aborted", ReplyClass.STREAM_ABORTED),
        (stream(CALL, END), "aborted", ReplyClass.STREAM_ABORTED),
        (stream(CALL, DONE), "", ReplyClass.STREAM_ABORTED),
        (stream(CALL, END.rstrip("\n"), 0.1), "aborted", ReplyClass.STREAM_ABORTED),
        (sends(SSE + "Content-Length: 9999\r\n\r\n", CALL), "aborted", ReplyClass.STREAM_ABORTED),
        (sends(CHUNKED, "ff\r\ndata"), "aborted", ReplyClass.STREAM_ABORTED),
        (sends(), "aborted", ReplyClass.STREAM_ABORTED),
        (sends("HTTP/1.1 200"), "aborted", ReplyClass.STREAM_ABORTED),
        (stream(CALL, 9.0), "stalled", ReplyClass.STALLED),
        (stream(CALL, *[": ping\n\n", 0.3] * 8), "stalled", ReplyClass.STALLED),
        (stream(9.0), "timed_out", ReplyClass.TIMED_OUT),
        (sends(9.0), "timed_out", ReplyClass.TIMED_OUT),
        (stream(*[event({"content": "word "}), 0.3] * 12), "timed_out", ReplyClass.TIMED_OUT),
        (plain(HTML, "502 Bad Gateway", "text/html"), "", ReplyClass.HTTP_ERROR),
        (plain(HTML, kind="text/html"), "garbled", ReplyClass.HTTP_ERROR),
        (plain("", kind="text/event-stream"), "garbled", ReplyClass.HTTP_ERROR),
        (plain("[1]"), "garbled", ReplyClass.HTTP_ERROR),
        (plain("{nonsense"), "garbled", ReplyClass.HTTP_ERROR),
        (plain('{"choices": 3}'), "garbled", ReplyClass.HTTP_ERROR),
        (stream("data: {nonsense\n\n"), "garbled", ReplyClass.HTTP_ERROR),
        (stream("data: " + "[" * 100000 + "\n\n"), "garbled", ReplyClass.HTTP_ERROR),
        (stream(b"\x00\xff" * 5000), "garbled", ReplyClass.HTTP_ERROR),
        (sends(b"\x00\x01nonsense\r\n\r\n"), "garbled", ReplyClass.HTTP_ERROR),
        (stream(CALL, 'data: {"error": {"message": "F"}}\n\n'), "error", ReplyClass.HTTP_ERROR),
        (stream('data: {"object": "error", "message": "FSM"}\n\n'), "error", ReplyClass.HTTP_ERROR),
        (plain('{"error": "no"}', "401 Unauthorized"), "", ReplyClass.CLIENT_ERROR),
        (plain("no", "429 Too Many Requests"), "", ReplyClass.CLIENT_ERROR),
        (plain("", "503 Service Unavailable"), "", ReplyClass.HTTP_ERROR),
        (plain('{"error": {"message": "FSM"}}', "500 Error"), "", ReplyClass.HTTP_ERROR),
    ],
)  # fmt: skip
def test_each_way_to_break_off(serve: Serve, handler: Handler, fault: str, cls: ReplyClass) -> None:
    _, api = serve(handler)
    began = time.monotonic()
    reply = ask(api, timeout_s=1.2, stall_s=0.5)
    assert time.monotonic() - began < 2.5
    assert reply.fault == fault
    assert judge(reply, REQUEST).cls is cls
    assert len(reply.body_excerpt) <= EXCERPT_CHARS


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    api = HttpLane(f"http://127.0.0.1:{port}/v1")
    reply = ask(api)
    assert (reply.status, reply.fault) == (None, "unreachable")
    assert judge(reply, REQUEST).cls is ReplyClass.UNREACHABLE
    assert api.health().status is None and api.health().error
    assert api.metrics() is None and api.version() is None
    models = api.models()
    assert isinstance(models, Answer) and models.status is None
    api.close()
    api.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "[::1"])
def test_an_address_that_leads_nowhere(host: str) -> None:
    api = HttpLane(f"http://{host}:1/v1")
    assert api.health().status is None
    assert judge(ask(api), REQUEST).cls in (ReplyClass.UNREACHABLE, ReplyClass.HTTP_ERROR)
    api.close()


def test_redirects_are_not_followed(serve: Serve) -> None:
    other, _ = serve(stream(WHOLE))
    head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {other.base}/chat/completions\r\n"
    _, api = serve(sends(head + "Content-Length: 0\r\n\r\n"))
    assert ask(api).status == 307
    assert api.health().status == 307
    assert other.requests == []


def test_proxies_of_the_environment_are_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    _, api = serve(stream(WHOLE))
    assert ask(api).fault == ""


# ------------------------------------------------------------------------------------- bounds


def endless(piece: str | bytes) -> Handler:
    data = piece.encode() if isinstance(piece, str) else piece

    def handler(connection: socket.socket) -> None:
        connection.sendall(SSE.encode() + b"\r\n")
        while True:
            connection.sendall(data)

    return handler


def test_a_flood_is_cut_at_its_proof_and_the_server_sees_us_leave(serve: Serve) -> None:
    server, api = serve(endless(event({"content": "!"})))
    reply = ask(api, timeout_s=10.0)
    assert reply.repetition == "'!' x 256 in content"
    assert judge(reply, REQUEST).cls is ReplyClass.DEGENERATE
    assert 256 <= len(reply.content) < 300
    assert server.hung_up.wait(3)


@pytest.mark.parametrize(
    ("delta", "where"),
    [
        ({"reasoning": "think"}, "'think' x 256 in reasoning"),
        (call(arguments="ab"), "'ab' x 256 in arguments of call 1"),
        ({"tool_calls": [{"function": {"name": "get_status", "arguments": "{}"}}]}, "more than 64"),
    ],
)
def test_a_flood_anywhere(serve: Serve, delta: dict[str, Any], where: str) -> None:
    _, api = serve(endless(event(delta)))
    assert ask(api, timeout_s=10.0).repetition.startswith(where)


def test_a_giant_line_is_bounded(serve: Serve) -> None:
    server, api = serve(endless(b"data: " + b"x" * 2**20))
    reply = ask(api, timeout_s=10.0)
    assert reply.fault == "oversized"
    assert len(reply.body_excerpt) <= EXCERPT_CHARS
    assert server.hung_up.wait(3)


def test_more_than_any_cap_allows(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanectl.adapters.chat_reply.OUTPUT_CHARS_MAX", 5000)
    numbers = "".join(event({"content": f"{n} "}) for n in range(3000))
    _, api = serve(stream(numbers, WHOLE))
    assert ask(api).fault == "oversized"
    monkeypatch.setattr(lane_http, "REPLY_BYTES_MAX", 5000)
    _, api = serve(endless(": nothing but comments\n"))
    assert ask(api, timeout_s=10.0).fault == "oversized"


def test_a_gzip_bomb_stays_shut(serve: Serve) -> None:
    bomb = gzip.compress(b"\n" * 2**26)
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    _, api = serve(sends(SSE + head, bomb))
    assert ask(api).fault == "garbled"
    _, api = serve(sends("HTTP/1.1 200 OK\r\n" + head, bomb))
    assert api.metrics() is None
    assert len(api.health().body) < 2**20


def test_a_drip_does_not_outlive_its_limit(serve: Serve) -> None:
    _, api = serve(sends("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", *["x", 0.1] * 50))
    began = time.monotonic()
    answer = api.health(timeout_s=0.5)
    assert time.monotonic() - began < 1.5
    assert (answer.status, answer.error) == (200, "no answer within 0.5 s")


def test_error_bodies_are_read_to_a_bound(serve: Serve) -> None:
    def handler(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 500 Error\r\n\r\n")
        while True:
            connection.sendall(b"y" * 65536)

    server, api = serve(handler)
    reply = ask(api, timeout_s=10.0)
    assert (reply.status, len(reply.body_excerpt)) == (500, EXCERPT_CHARS)
    assert server.hung_up.wait(3)


# ------------------------------------------------------------------------- several, cut, stopped


def test_requests_go_out_at_once_and_keep_their_order(serve: Serve) -> None:
    here = threading.Barrier(3, timeout=5)

    def handler(connection: socket.socket) -> None:
        here.wait()  # None is answered before all have come.
        name = json.loads(server.here.request.partition(b"\r\n\r\n")[2])["model"]
        stream({"a": 0.2, "b": 0.0, "c": 0.1}[name], event({"content": name}), WHOLE)(connection)

    server, api = serve(handler)
    requests = [replace(REQUEST, body={"model": name, "messages": []}) for name in "abc"]
    assert [reply.content for reply in api.chat(requests, never)] == ["a", "b", "c"]


def test_each_keeps_its_own_limits(serve: Serve) -> None:
    _, api = serve(stream(event({"content": "one "}), 0.6, WHOLE))
    short, long = replace(REQUEST, timeout_s=0.3), REQUEST
    assert [reply.fault for reply in api.chat([short, long], never)] == ["timed_out", ""]


def test_cancel_in_mid_stream(serve: Serve) -> None:
    words = "".join(event({"content": f"{n} "}) for n in range(20))
    server, api = serve(stream(words, *[event({"content": "and "}), 0.05] * 100))
    reply = ask(api, cancel_after=10)
    assert reply.fault == "cancelled"
    assert len(reply.content) >= 10
    assert judge(reply, REQUEST).cls is ReplyClass.OK
    assert server.hung_up.wait(3)


def test_stop_cuts_all_of_them_soon(serve: Serve) -> None:
    server, api = serve(stream(CALL, 30.0))
    asked: list[float] = []
    began = time.monotonic()

    def stop() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 5

    replies = api.chat([replace(REQUEST, timeout_s=60, stall_s=60)] * 3, stop)
    assert time.monotonic() - began < 2.0  # six questions, five a second or more
    assert [reply.fault for reply in replies] == ["stopped"] * 3
    assert replies[0].tool_calls
    assert len(server.requests) == 3


def test_an_error_in_stop_leaves_nothing_behind(serve: Serve) -> None:
    def failing() -> bool:
        raise RuntimeError("supervisord is gone")

    server, api = serve(stream(*[": still here\n", 0.02] * 500))
    with pytest.raises(RuntimeError, match="supervisord is gone"):
        api.chat([REQUEST], failing)
    assert server.hung_up.wait(3)
    assert isinstance(api.health(timeout_s=0.2), Answer)  # and it still works


def test_each_request_has_a_connection_of_its_own(serve: Serve) -> None:
    server, api = serve(plain("", kind="text/plain"))
    for _ in range(3):
        assert api.health().status == 200
    assert len(server.requests) == 3
    assert all(b"connection: close" in request.lower() for request in server.requests)


# -------------------------------------------------------------------------------- the other calls


def test_health_version_models(serve: Serve) -> None:
    models = {"data": [{"id": "m", "max_model_len": 4096}, {"id": "lora"}, {"no": 1}, 3]}

    def handler(connection: socket.socket) -> None:
        path = server.requests[-1].split(b" ")[1]
        bodies = {
            b"/health": "",
            b"/version": '{"version": "0.27.1\\u001b"}',
            b"/v1/models": json.dumps(models),
        }
        plain(bodies[path])(connection)

    server, api = serve(handler)
    assert api.health() == Answer(200)
    assert api.version() == "0.27.1\\x1b"
    assert api.models() == [Model("m", 4096), Model("lora", None)]


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"data": 3}', '{"version": 3}', "<html>"])
def test_answers_that_make_no_sense(serve: Serve, body: str) -> None:
    _, api = serve(plain(body))
    assert api.version() is None
    models = api.models()
    assert isinstance(models, Answer)
    assert (models.status, models.error) == (200, "no list of models")
    assert api.metrics() is None


def test_the_key_is_sent_and_never_shown(serve: Serve, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret-key\n")
    server, api = serve(plain('{"error": "no"}', "401 Unauthorized"), api_key_file=str(key))
    reply = ask(api)
    models = api.models()
    assert all(b"Authorization: Bearer s3cret-key\r\n" in request for request in server.requests)
    assert "s3cret" not in f"{reply} {models} {vars(api)['_api_key_file']} {judge(reply, REQUEST)}"


@pytest.mark.parametrize("text", [None, "", "two\nlines", "naïve"])
def test_a_key_file_that_is_none(tmp_path: Path, text: str | None) -> None:
    key = tmp_path / "key"
    if text is not None:
        key.write_text(text, encoding="utf-8")
    api = HttpLane("http://127.0.0.1:1/v1", api_key_file=str(key))
    with pytest.raises(ConfigError, match="api_key_file") as caught:
        api.health()
    assert "two" not in str(caught.value) or text is None
    api.close()


# --------------------------------------------------------------------------------------- metrics

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\""} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_queries_total{engine="1"} 1e2
vllm:prefix_cache_queries_created{engine="1"} 1.7e9
vllm:prefix_cache_hits_total{engine="0"} 32.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 5.0
vllm:iteration_tokens_total_sum{engine="0"} 50.0
vllm:iteration_tokens_total_count{engine="0"} 7.0
vllm:request_success_total{engine="0",finished_reason="stop"} 3.0
vllm:request_success_total{engine="1",finished_reason="stop"} 2.0
vllm:request_success_total{engine="0",finished_reason="repetition"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0
http_requests_total{handler="/v1/models"} 9.0
"""
SPECULATION = """\
vllm:spec_decode_num_draft_tokens_total{engine="0"} 60.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 40.0
"""


def test_metrics(serve: Serve) -> None:
    _, api = serve(plain(METRICS, kind="text/plain; version=0.0.4"))
    told = api.metrics()
    assert told is not None
    assert (told.running, told.waiting, told.load) == (3.0, 4.0, 7.0)
    assert told.kv_cache_usage == 0.5
    assert (told.prefix_cache_queries, told.prefix_cache_hits) == (200.0, 32.0)
    assert told.iteration_tokens == 7.0
    assert told.requests_finished == {"stop": 5.0, "repetition": 1.0}
    assert told.cache_config["block_size"] == "16"
    assert told.speculative is False
    assert told.spec_draft_tokens is None


def test_metrics_of_speculation_and_of_older_servers() -> None:
    told = read_metrics(METRICS + SPECULATION)
    assert told is not None
    assert (told.speculative, told.spec_draft_tokens, told.spec_accepted_tokens) == (True, 60, 40)
    old = read_metrics(
        "vllm:gpu_cache_usage_perc 0.1\nvllm:gpu_prefix_cache_hits_total 5\n"
        "vllm:gpu_prefix_cache_queries 9\nvllm:num_requests_running NaN\n"
    )
    assert old is not None
    assert (old.kv_cache_usage, old.prefix_cache_hits, old.prefix_cache_queries) == (0.1, 5, 9)
    # Absent, or no number, means unknown and never 0.
    assert (old.running, old.waiting, old.load) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("", None),
        ("up 1\n", None),
        ("<html>vllm:num_requests_running 1", None),
        ("vllm:num_requests_running{engine=\n", None),
        ("vllm:num_requests_running many\n", None),
        ("vllm:num_requests_running 1\nvllm:num_requests_waiting{\n", 1.0),
    ],
)
def test_metrics_that_cannot_be_read(text: str, running: float | None) -> None:
    told = read_metrics(text)
    assert (told and told.running) == running


def test_metrics_beyond_their_bound_count_as_unknown(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_http, "METRICS_BYTES_MAX", 100)
    _, api = serve(plain(METRICS, kind="text/plain"))
    assert api.metrics() is None


# ------------------------------------------------------------------------------------ the splitter


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_splitter(end: str, size: int) -> None:
    lines = [
        "data: a",
        "",
        ": no",
        "",
        "data:b",
        "data:  c é",
        "id: 3",
        "",
        "data",
        "",
        "data: left",
    ]
    text = end.join(lines).encode()
    splitter = EventSplitter()
    events = [e for at in range(0, len(text), size) for e in splitter.feed(text[at : at + size])]
    assert events == ["a", "b\n c é", ""]


def test_splitter_bounds() -> None:
    with pytest.raises(TooLong):
        EventSplitter().feed(b"data: " + b"x" * LINE_CHARS_MAX)
    splitter = EventSplitter()
    with pytest.raises(TooLong):
        for _ in range(LINE_CHARS_MAX):
            splitter.feed(b"data: " + b"x" * 2**20 + b"\n")
