"""The stand-in behaves as its modes say: seen from outside, over HTTP and in /proc."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lanectl.demo import sessions
from lanectl.demo.rig import ROOT, reserve_port

STATUS = {
    "type": "function",
    "function": {
        "name": "get_status",
        "parameters": {
            "type": "object",
            "properties": {"service": {"type": "string"}},
            "required": ["service"],
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
MTP = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":3}')
LONG = 8000


class Server:
    """One stand-in of its own session, and what a client needs to talk to it."""

    def __init__(self, port: int, *words: str, mode: str = "") -> None:
        self.port = port
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "lanectl.demo.standin", "serve", "m/x"),
                *("--host", "127.0.0.1", "--port", str(port), *words),
            ],
            cwd=ROOT,
            env={**os.environ, "STANDIN_MODE": mode},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started = sessions.started(self.process.pid)

    def close(self) -> None:
        assert sessions.end(self.process.pid, self._started) == []
        self.process.communicate(timeout=5)

    def log(self) -> list[str]:
        """All lines it wrote; waits for its end."""
        output, _ = self.process.communicate(timeout=5)
        return output.decode().splitlines()

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        return self.send("GET", path, None, headers)

    def send(
        self, method: str, path: str, body: Any, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float | None:
        status, text = self.get("/metrics")
        assert status == 200
        values = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)]
        return sum(values) if values else None

    def chat(self, prompt: str = "How is the lane?", **body: Any) -> Reply:
        status, text = self.send("POST", "/v1/chat/completions", asked(prompt, **body))
        return Reply(status, text)


class Reply:
    """A streamed reply put together again."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        self.reasoning = self.content = self.name = ""
        self.arguments: str | None = ""
        self.finish: str | None = None
        self.usage: dict[str, Any] = {}
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        self.done = status == 200 and events[-1:] == ["[DONE]"]
        for event in events if status == 200 else []:
            if event == "[DONE]":
                continue
            chunk = json.loads(event)
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk["choices"]:
                self.finish = choice["finish_reason"] or self.finish
                self._add(choice["delta"])

    def _add(self, delta: dict[str, Any]) -> None:
        self.reasoning += delta.get("reasoning") or ""
        self.content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            self.name += call["function"].get("name") or ""
            if "arguments" in call["function"]:
                text = call["function"]["arguments"]
                self.arguments = None if text is None else (self.arguments or "") + text

    @property
    def good(self) -> bool:
        called = (self.name, self.arguments) == ("get_status", '{"service": "lane"}')
        return called and self.finish == "tool_calls" and self.done and "!" not in self.reasoning


def asked(prompt: str, **body: Any) -> dict[str, Any]:
    about = {"messages": [{"role": "user", "content": prompt}], "tools": [STATUS]}
    return {**about, "max_tokens": 300, "stream": True, **body}


def wait_for(what: Callable[[], bool], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.01)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def port() -> Iterator[int]:
    with reserve_port() as holder:
        yield holder.getsockname()[1]


@pytest.fixture
def serve(port: int) -> Iterator[Callable[..., Server]]:
    """Start a stand-in and wait until it listens; all are ended after the test."""
    servers: list[Server] = []

    def start(*words: str, mode: str = "", wait: bool = True) -> Server:
        server = Server(port, *words, mode=mode)
        servers.append(server)
        if wait:
            wait_for(lambda: listens(port))
        return server

    yield start
    for server in servers:
        server.close()


# ------------------------------------------------------------------------------------ good replies


def test_says_first_what_it_is_and_then_logs_like_vllm(serve: Callable[..., Server]) -> None:
    server = serve(*MTP)
    server.process.terminate()
    lines = server.log()
    assert server.process.returncode == 0
    assert lines[0].startswith("STAND-IN, not vLLM")
    text = "\n".join(lines)
    assert "Maximum concurrency for 32,768 tokens per request: 8.00x" in text
    assert "speculative_config=SpeculativeConfig(method='mtp'" in text


def test_good_reply_thinks_and_calls_the_tool(serve: Callable[..., Server]) -> None:
    server = serve()
    reply = server.chat(stream_options={"include_usage": True})
    assert reply.good and reply.reasoning and not reply.content
    assert reply.usage["completion_tokens"] == 17
    silent = server.chat(chat_template_kwargs={"enable_thinking": False})
    assert silent.good and not silent.reasoning
    assert server.chat(tools=[PING]).arguments == "{}"
    assert server.chat(tools=[]).content == "The lane is up and answers."
    assert server.chat(max_tokens=3).finish == "length"


def test_reply_in_one_piece(serve: Callable[..., Server]) -> None:
    status, text = serve().send("POST", "/v1/chat/completions", asked("Hello", stream=False))
    choice = json.loads(text)["choices"][0]
    assert status == 200 and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_status"


def test_other_endpoints(serve: Callable[..., Server]) -> None:
    server = serve("--served-model-name", "one", "two", "--max-model-len", "4096")
    assert server.get("/health") == (200, "")
    assert json.loads(server.get("/version")[1]) == {"version": "0.27.1+standin"}
    models = json.loads(server.get("/v1/models")[1])["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [("one", 4096), ("two", 4096)]
    status, text = server.send("POST", "/tokenize", {"model": "one", "prompt": "x" * 40})
    assert status == 200 and json.loads(text)["count"] == 10
    assert server.get("/nothing")[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "other"}, 404, "NotFoundError"),
        ({"messages": []}, 400, "BadRequestError"),
        ({"max_tokens": 40000}, 400, "BadRequestError"),
    ],
)
def test_refuses_as_vllm_does(
    serve: Callable[..., Server], body: dict[str, Any], status: int, kind: str
) -> None:
    reply = serve().chat(**body)
    assert reply.status == status
    assert json.loads(reply.text)["error"]["type"] == kind


def test_api_key(serve: Callable[..., Server]) -> None:
    server = serve("--api-key", "secret")
    assert server.get("/v1/models")[0] == 401
    assert server.get("/v1/models", Authorization="Bearer secret")[0] == 200
    assert server.get("/health")[0] == 200


# ------------------------------------------------------------------------------- queue and metrics


def test_queue_is_real_and_a_client_that_leaves_frees_its_slot(
    serve: Callable[..., Server],
) -> None:
    server = serve("--max-num-seqs", "2")
    hold = json.dumps(asked("Go on.", ignore_eos=True, max_tokens=20000)).encode()
    clients = []
    for _ in range(3):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(hold), hold)
        )
        clients.append(client)
    running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
    wait_for(lambda: (server.metric(running), server.metric(waiting)) == (2, 1))
    steps = server.metric("vllm:iteration_tokens_total_count")
    wait_for(lambda: server.metric("vllm:iteration_tokens_total_count") != steps)
    for client in clients:
        client.close()
    wait_for(lambda: (server.metric(running), server.metric(waiting)) == (0, 0))
    assert server.metric('vllm:request_success_total{engine="0",model_name="m/x",f') == 3
    assert server.chat().good


def test_prefix_cache_counters_move_as_prefixes_repeat(serve: Callable[..., Server]) -> None:
    server = serve()
    hits = "vllm:prefix_cache_hits_total"
    server.chat("a" * 640)
    assert server.metric(hits) == 0
    server.chat("a" * 640)
    assert server.metric(hits) == 16 * 9
    server.chat("b" + "a" * 640)
    assert server.metric(hits) == 16 * 9
    assert server.metric("vllm:prefix_cache_queries_total") == server.metric("vllm:prompt_tokens")


def test_prefix_caching_off(serve: Callable[..., Server]) -> None:
    server = serve("--no-enable-prefix-caching")
    for _ in range(2):
        server.chat("a" * 640)
    assert server.metric("vllm:prefix_cache_hits_total") == 0
    assert 'enable_prefix_caching="False"' in server.get("/metrics")[1]


def test_speculation_metrics_exist_only_with_speculation(serve: Callable[..., Server]) -> None:
    server = serve(*MTP)
    server.chat()
    assert server.metric("vllm:spec_decode_num_draft_tokens_total") == 17 * 3
    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert accepted == server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") == 30
    server.close()
    assert "spec_decode" not in serve().get("/metrics")[1]


@pytest.mark.parametrize(
    ("mode", "absent"), [("no-metrics", "vllm:"), ("no-cache-counter", "prefix_cache_")]
)
def test_missing_metrics(serve: Callable[..., Server], mode: str, absent: str) -> None:
    server = serve(mode=mode)
    status, text = server.get("/metrics")
    assert status == (404 if mode == "no-metrics" else 200)
    assert absent not in text.replace("enable_prefix_caching", "")
    assert server.chat().good


def test_busy_shows_foreign_load(serve: Callable[..., Server]) -> None:
    server = serve(mode="busy")
    assert server.metric("vllm:num_requests_running") == 2
    assert server.metric("vllm:num_requests_waiting") == 1
    steps = server.metric("vllm:iteration_tokens_total_count")
    wait_for(lambda: server.metric("vllm:iteration_tokens_total_count") != steps)


# ---------------------------------------------------------------------------------- flooded replies


def flooded(reply: Reply) -> bool:
    text = reply.reasoning + reply.content
    return reply.finish == "length" and set(text) == {"!"} and not reply.name


def test_flood(serve: Callable[..., Server]) -> None:
    server = serve(*MTP, mode="flood")
    reply = server.chat(max_tokens=300)
    assert flooded(reply) and len(reply.reasoning) == 300
    assert flooded(server.chat(chat_template_kwargs={"enable_thinking": False}))
    drafted = server.metric("vllm:spec_decode_num_draft_tokens_total") or 0
    assert (server.metric("vllm:spec_decode_num_accepted_tokens_total") or 0) / drafted < 0.02
    stopped = server.chat(repetition_detection={"max_pattern_size": 4, "min_count": 8})
    assert stopped.finish == "repetition"


def test_a_healthy_server_floods_when_only_token_0_is_allowed(
    serve: Callable[..., Server],
) -> None:
    assert flooded(serve().chat(allowed_token_ids=[0]))


def both(server: Server, length: int) -> list[Reply]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(server.chat, (letter * length for letter in "ab")))


def test_flood_spec_concurrent(serve: Callable[..., Server]) -> None:
    mode = "flood-spec-concurrent"
    server = serve(*MTP, mode=mode)
    assert server.chat("a" * LONG).good
    assert all(reply.good for reply in both(server, 100))
    assert all(flooded(reply) for reply in both(server, LONG))
    server.close()
    assert all(reply.good for reply in both(serve(mode=mode), LONG))


def test_flood_spec_concurrent_needs_two_slots(serve: Callable[..., Server]) -> None:
    server = serve(*MTP, "--max-num-seqs", "1", mode="flood-spec-concurrent")
    assert all(reply.good for reply in both(server, LONG))


def test_flood_hot(serve: Callable[..., Server]) -> None:
    server = serve(mode="flood-hot")
    assert server.chat("a" * 1000).good
    assert flooded(server.chat("a" * 1000))
    assert server.chat("b" * 1000).good


def test_flood_aba(serve: Callable[..., Server]) -> None:
    server = serve(mode="flood-aba")
    shared = "".join(f"line {number}\n" for number in range(100))
    assert server.chat(shared + "A").good
    assert server.chat(shared + "A").good, "a hot repeat is no A-B-A"
    assert server.chat("something else" * 50).good
    assert server.chat(shared + "A").good, "B shares no prefix"
    assert server.chat(shared + "B" * 100).good
    assert flooded(server.chat(shared + "A"))


# ------------------------------------------------------------------------------------ wrong replies


def test_empty_calls(serve: Callable[..., Server]) -> None:
    server = serve(mode="empty-calls")
    reply = server.chat()
    assert reply.finish == "tool_calls" and not reply.name and not reply.content
    _, text = server.send("POST", "/v1/chat/completions", asked("Hello", stream=False))
    assert json.loads(text)["choices"][0]["message"]["tool_calls"] == []


@pytest.mark.parametrize(
    ("mode", "name", "arguments"),
    [
        ("wrong-tool", "get_weather", '{"service": "lane"}'),
        ("bad-arguments", "get_status", '{"command=ls": ""}'),
    ],
)
def test_wrong_calls(serve: Callable[..., Server], mode: str, name: str, arguments: str) -> None:
    reply = serve(mode=mode).chat()
    assert (reply.name, reply.arguments, reply.finish) == (name, arguments, "tool_calls")


def test_null_args(serve: Callable[..., Server]) -> None:
    server = serve(mode="null-args")
    assert server.chat(tools=[PING]).arguments is None
    assert server.chat().good, "a tool with a required argument gets it"


@pytest.mark.parametrize("field", ["content", "reasoning"])
def test_leaks(serve: Callable[..., Server], field: str) -> None:
    reply = serve(mode=f"leak-{field}").chat()
    assert '<tool_call>\n{"name": "get_status"' in getattr(reply, field)
    assert reply.finish == "stop" and not reply.name


def test_old_reasoning_field(serve: Callable[..., Server]) -> None:
    reply = serve(mode="old-reasoning-field").chat()
    assert reply.good and not reply.reasoning and '"reasoning_content": "The"' in reply.text


def test_budget(serve: Callable[..., Server]) -> None:
    server = serve(mode="budget")
    reply = server.chat(max_tokens=2000)
    assert reply.finish == "length" and not reply.name
    assert len(set(reply.reasoning.split())) > 40
    server.close()
    server = serve(mode="budget=500")
    assert server.chat(max_tokens=400).finish == "length"
    assert server.chat(max_tokens=1600).good


# --------------------------------------------------------------------------------- broken transport


def test_cut_stream_is_torn(serve: Callable[..., Server]) -> None:
    with pytest.raises(http.client.IncompleteRead):
        serve(mode="cut-stream").chat()


def test_cut_clean_ends_without_a_last_event(serve: Callable[..., Server]) -> None:
    reply = serve(mode="cut-clean").chat()
    assert reply.reasoning == "The user asks" and reply.finish is None and not reply.done


@pytest.mark.parametrize("mode", ["stall", "frozen"])
def test_silence(serve: Callable[..., Server], mode: str) -> None:
    server = serve(mode=mode)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.4)
    connection.request("POST", "/v1/chat/completions", json.dumps(asked("Hello")))
    response = connection.getresponse()
    assert response.status == 200
    received = b""
    with pytest.raises(TimeoutError):
        while True:
            received += response.read1(65536)
    assert (b'"The"' in received) == (mode == "stall")
    assert server.get("/health")[0] == server.get("/v1/models")[0] == 200
    response.close()
    connection.close()
    wait_for(lambda: server.metric("vllm:num_requests_running") == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_frozen_never_answers(serve: Callable[..., Server], stream: bool) -> None:
    server = serve(mode="frozen")
    before = server.metric("vllm:iteration_tokens_total_count")
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = json.dumps(asked("Hello", stream=stream)).encode()
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        client.settimeout(0.3)
        if stream:
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert server.metric("vllm:iteration_tokens_total_count") == before


def test_error_statuses(serve: Callable[..., Server]) -> None:
    server = serve(mode="html-error")
    reply = server.chat()
    assert reply.status == 502 and reply.text.startswith("<html>")
    server.close()
    server = serve(mode="unauthorized")
    assert server.chat().status == server.get("/v1/models")[0] == 401
    assert server.get("/health")[0] == 200
    server.close()
    server = serve(mode="http-500-thinking")
    assert server.chat().status == 500
    assert server.chat(chat_template_kwargs={"enable_thinking": False}).good


# ---------------------------------------------------------------------------------------- processes


def test_crash_start_names_the_cause_above_the_last_line(serve: Callable[..., Server]) -> None:
    server = serve("--max-num-seqs", "1024", mode="crash-start", wait=False)
    lines = server.log()
    assert server.process.returncode == 1
    assert "max_num_seqs (1024) exceeds available" in lines[-2]
    assert lines[-1].strip().startswith("For further information")


def test_crash_after(serve: Callable[..., Server]) -> None:
    server = serve(mode="crash-after=0.3")
    assert server.chat().good
    assert server.process.wait(timeout=5) == 1


def test_slow_start_is_bound_and_refuses(serve: Callable[..., Server]) -> None:
    begun = time.monotonic()
    server = serve(mode="slow-start=0.6")
    assert time.monotonic() - begun > 0.6
    server.close()
    server = serve(mode="slow-start=20", wait=False)
    wait_for(lambda: "slow-start" in Path(f"/proc/{server.process.pid}/environ").read_text())
    time.sleep(0.3)
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", server.port))
    assert not listens(server.port)
    server.process.terminate()
    assert server.process.wait(timeout=2) == 0


def test_lost_sigterm_comes_up_and_serves(serve: Callable[..., Server]) -> None:
    server = serve(mode="lost-sigterm=0.6", wait=False)
    time.sleep(0.3)
    server.process.terminate()
    wait_for(lambda: listens(server.port))
    assert server.chat().good
    server.process.terminate()
    assert server.process.wait(timeout=2) == 0


def test_sigterm_ignored(serve: Callable[..., Server]) -> None:
    server = serve(mode="sigterm-ignored")
    server.process.terminate()
    time.sleep(0.1)
    assert server.chat().good and server.process.poll() is None


def test_fatal_log_hangs_and_never_listens(serve: Callable[..., Server]) -> None:
    server = serve(mode="fatal-log", wait=False)
    time.sleep(0.4)
    assert server.process.poll() is None and not listens(server.port)
    server.process.terminate()
    assert any("ValueError: Free memory on device" in line for line in server.log())


def test_stop_tells_requests_under_way_that_they_are_cut(serve: Callable[..., Server]) -> None:
    server = serve()
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(server.chat(ignore_eos=True, max_tokens=20000))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: server.metric("vllm:num_requests_running") == 1)
    server.process.terminate()
    thread.join(5)
    assert replies[0].status == 200 and replies[0].finish == "abort"


def engine_of(server: Server) -> int:
    members = sessions.members(server.process.pid)
    engines = [pid for pid in members if pid != server.process.pid]
    assert len(engines) == 1
    return engines[0]


@pytest.mark.parametrize("mode", ["orphans", "orphans-port"])
def test_orphans_outlive_the_server(serve: Callable[..., Server], mode: str) -> None:
    server = serve(mode=mode)
    engine = engine_of(server)
    proc = Path(f"/proc/{engine}")
    assert (proc / "comm").read_text() == "VLLM::EngineCor\n"
    assert (proc / "cmdline").read_bytes().strip(b"\0") == b"VLLM::EngineCore"
    assert (proc / "environ").read_bytes().strip(b"\0") == b""
    assert os.getpgid(engine) == os.getpgid(server.process.pid)
    server.process.kill()
    server.process.wait()
    os.kill(engine, signal.SIGTERM)
    time.sleep(0.2)
    assert engine in sessions.members(server.process.pid)
    assert listens(server.port) == (mode == "orphans-port")
    if mode == "orphans-port":
        assert server.chat().good


def test_orphan_on_the_port_shares_it_with_a_server_of_many_processes(
    serve: Callable[..., Server],
) -> None:
    old = serve(mode="orphans-port")
    old.process.kill()
    new = serve(wait=False)
    assert any("Address already in use" in line for line in new.log())
    assert new.process.returncode == 1
    both = serve("--api-server-count", "2", wait=False)
    time.sleep(0.3)
    assert both.process.poll() is None


# ------------------------------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (["--disable-log-requests"], "unrecognized arguments: --disable-log-requests"),
        (["--no-such", "--port", "1", "stray"], "unrecognized arguments: --no-such stray"),
        (["--speculative-config", "{method:mtp}"], "argument --speculative-config/-sc: Value {"),
        (["--max-num-seqs", "many"], "argument --max-num-seqs: invalid int value: 'many'"),
        (["--max-num-seqs"], "argument --max-num-seqs: expected one argument"),
        (["--standin-mode", "odd"], "argument --standin-mode: unknown stand-in mode 'odd'"),
    ],
)
def test_bad_command_lines(serve: Callable[..., Server], words: list[str], last: str) -> None:
    server = serve(*words, wait=False)
    assert server.log()[-1].startswith(f"vllm serve: error: {last}")
    assert server.process.returncode == 2


@pytest.mark.parametrize(
    ("words", "drafted"),
    [
        (["-sc", '{"method":"mtp","num_speculative_tokens":2}'], 2),
        (['--speculative_config={"method":"mtp","num_speculative_tokens":2}'], 2),
        ([*MTP, "--speculative-config.num_speculative_tokens", "5"], 5),
        (["--spec-method", "mtp", "--spec-tokens", "4"], 4),
        ([*MTP, "-sc", '{"method":"mtp","num_speculative_tokens":1}'], 1),
    ],
)
def test_ways_to_switch_speculation_on(
    serve: Callable[..., Server], words: list[str], drafted: int
) -> None:
    server = serve(*words)
    server.chat(max_tokens=1)
    assert server.metric("vllm:spec_decode_num_draft_tokens_total") == drafted


def test_mode_flag_outranks_the_environment(serve: Callable[..., Server]) -> None:
    assert serve("--standin-mode", "good", mode="flood").chat().good
