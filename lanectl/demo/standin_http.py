"""The stand-in's HTTP side: one thread a connection, the endpoints of a vLLM server, SSE."""

from __future__ import annotations

import json
import select
import socket
import time

from lanectl.demo.standin_engine import Engine
from lanectl.demo.standin_replies import BadRequest, Chat, Reply, compose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = "0.27.1+standin"
HEAD_MAX = 65536
BODY_MAX = 64 * 2**20
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
HTML = """<html>
<head><title>502 Bad Gateway</title></head>
<body><center><h1>502 Bad Gateway</h1></center><hr><center>stand-in</center></body>
</html>
"""


class Gone(Exception):
    """The client has hung up."""


class Connection:
    """One client. `run` answers its requests until either side has had enough."""

    def __init__(self, sock: socket.socket, engine: Engine) -> None:
        self._sock = sock
        self._engine = engine
        self._modes = engine.modes
        self._buffer = b""
        self._hangup = select.poll()
        self._hangup.register(sock, select.POLLRDHUP)

    def run(self) -> None:
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._one_request():
                pass
        except (OSError, Gone):
            pass
        finally:
            self._sock.close()

    def gone(self, wait_s: float) -> bool:
        """Wait so long, or until the client hangs up; True when it has."""
        return bool(self._hangup.poll(wait_s * 1000))

    # ------------------------------------------------------------------------------------ requests

    def _more(self) -> bytes:
        data = self._sock.recv(262144)
        if not data:
            raise Gone
        return data

    def _one_request(self) -> bool:
        """Read and answer one request; False when the connection is to be closed."""
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > HEAD_MAX:
                return False
            self._buffer += self._more()
        head, _, body = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        method, path, *_ = [*first.split(" "), "", ""]
        length = int(headers.get("content-length") or 0)
        if length > BODY_MAX:
            return False
        if headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts, have = [body], len(body)
        while have < length:
            parts.append(self._more())
            have += len(parts[-1])
        body = b"".join(parts)
        self._buffer = body[length:]
        keep = self._answer(method, path.partition("?")[0], headers, body[:length])
        return keep and headers.get("connection", "").lower() != "close"

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bool:
        if path.startswith("/v1") and not self._allowed(headers.get("authorization", "")):
            return self._send(401, {"error": "Unauthorized"}, path)
        settings = self._engine.settings
        if method == "GET":
            if path == "/health":
                return self._send(503 if self._engine.stopping else 200, "", path)
            if path == "/version":
                return self._send(200, {"version": VERSION}, path)
            if path == "/v1/models":
                return self._send(200, self._models(), path)
            if path == "/metrics" and "no-metrics" not in self._modes:
                return self._send(200, self._engine.metrics(), path)
            return self._send(404, {"detail": "Not Found"}, path)
        if method != "POST" or path not in ("/v1/chat/completions", "/tokenize"):
            return self._send(404, {"detail": "Not Found"}, path)
        try:
            try:
                parsed = json.loads(body)
            except ValueError as error:
                raise BadRequest(f"the body is not JSON: {error}") from None
            if path == "/tokenize":
                return self._send(200, self._tokens(parsed), path)
            chat = Chat(parsed, settings.names, settings.max_model_len)
        except BadRequest as refusal:
            return self._refuse(refusal.status, refusal.kind, str(refusal), path)
        return self._chat(chat, path)

    def _allowed(self, authorization: str) -> bool:
        keys = self._engine.settings.api_keys
        if "unauthorized" in self._modes:
            return False
        return not keys or authorization.removeprefix("Bearer ") in keys

    def _models(self) -> dict[str, Any]:
        settings = self._engine.settings
        common = {"object": "model", "owned_by": "stand-in", "root": settings.model, "parent": None}
        about = {"created": int(self._engine.started), "max_model_len": settings.max_model_len}
        return {"object": "list", "data": [{"id": n, **common, **about} for n in settings.names]}

    def _tokens(self, body: Any) -> dict[str, Any]:
        if isinstance(body, dict) and isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            text = Chat(body, self._engine.settings.names, 2**62).prompt
        tokens = [sum(text[i : i + 4].encode()) for i in range(0, len(text), 4)]
        limit = self._engine.settings.max_model_len
        about = {"max_model_len": limit, "tokens": tokens, "token_strs": None}
        return {"count": len(tokens), **about}

    # ------------------------------------------------------------------------------------- replies

    def _send(self, status: int, body: dict[str, Any] | str, path: str) -> bool:
        if isinstance(body, dict):
            kind, data = "application/json", json.dumps(body).encode()
        else:
            kind = "text/html" if body.startswith("<") else "text/plain; charset=utf-8"
            data = body.encode()
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: {kind}\r\n"
        head += f"content-length: {len(data)}\r\n\r\n"
        self._sock.sendall(head.encode() + data)
        self._log(status, path)
        return True

    def _refuse(self, status: int, kind: str, message: str, path: str) -> bool:
        error = {"message": message, "type": kind, "param": None, "code": status}
        return self._send(status, {"error": error}, path)

    def _log(self, status: int, path: str) -> None:
        if path.startswith("/v1"):
            print(f'(APIServer) INFO:     "{path} HTTP/1.1" {status} {REASONS[status]}', flush=True)

    def _chat(self, chat: Chat, path: str) -> bool:
        if "html-error" in self._modes:
            return self._send(502, HTML, path)
        if "http-500-thinking" in self._modes and chat.thinks:
            message = "EngineCore encountered an issue: Failed to advance FSM for request"
            return self._refuse(500, "InternalServerError", message, path)
        if chat.stream:
            # vLLM sends the head at once, before the engine has done anything.
            self._sock.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
        if "frozen" in self._modes:
            self._silence()
        seen = self._engine.enter(chat.prompt, chat.prompt_tokens, self.gone)
        if seen is None:
            self._engine.finished["abort"] += 1
            raise Gone
        try:
            talk = Talk(self, chat, seen.cached)
            finish = self._generate(chat, compose(chat, self._modes, seen.floods), talk)
        except (OSError, Gone):
            self._engine.finished["abort"] += 1
            raise
        finally:
            self._engine.leave(chat.prompt_tokens)
        if finish is None:
            return False
        counted = finish if finish in ("length", "abort", "repetition") else "stop"
        self._engine.finished[counted] += 1
        if not chat.stream:
            return self._send(200, talk.whole(finish), path)
        self._log(200, path)
        return True

    def _generate(self, chat: Chat, reply: Reply, talk: Talk) -> str | None:
        """Send the reply; the finish reason, or None when it was broken off on purpose."""
        finish = reply.finish
        for field, text in reply.tokens:
            if talk.count >= chat.cap:
                finish = "length"
                break
            if self.gone(reply.pace):
                raise Gone
            if self._engine.stopping:
                finish = "abort"
                break
            self._engine.step(drafts_accepted=not reply.flood)
            talk.token(field, text)
        if reply.end == "stall":
            self._silence()
        if reply.end == "torn":
            return None
        if reply.end == "clean":
            talk.last()
            return None
        talk.end(finish)
        return finish

    def _silence(self) -> None:
        """Say nothing until the client leaves or the server stops."""
        while not self.gone(0.05) and not self._engine.stopping:
            pass
        raise Gone

    def event(self, text: str) -> None:
        """Send one server-sent event as one HTTP chunk; an empty text ends the body."""
        data = f"data: {text}\n\n".encode() if text else b""
        self._sock.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class Talk:
    """A reply under way, in vLLM's shapes: sent as chunks, or kept for one JSON body."""

    def __init__(self, connection: Connection, chat: Chat, cached: int) -> None:
        self._connection = connection
        self._chat = chat
        self._cached = cached
        self._mark = f"{time.time_ns():x}"
        modes = connection._modes
        self._reasoning = "reasoning_content" if "old-reasoning-field" in modes else "reasoning"
        self._texts: dict[str, list[str]] = {}
        self._call: dict[str, Any] | None = None
        self.count = 0
        if chat.stream:
            self._chunk({"role": "assistant", "content": ""})

    def token(self, field: str, text: str | None) -> None:
        self.count += 1
        if field == "name":
            about = {"id": f"chatcmpl-tool-{self._mark}", "type": "function"}
            self._call = {**about, "function": {"name": text, "arguments": ""}}
            delta: dict[str, Any] = {
                "tool_calls": [{**about, "index": 0, "function": {"name": text}}]
            }
        elif field == "arguments":
            if self._call is not None:
                called = self._call["function"]
                called["arguments"] = None if text is None else called["arguments"] + text
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        else:
            field = self._reasoning if field == "reasoning" else field
            self._texts.setdefault(field, []).append(text or "")
            delta = {field: text}
        if self._chat.stream:
            self._chunk(delta)

    def end(self, finish: str) -> None:
        if self._chat.stream:
            stop = "repetition_detected" if finish == "repetition" else None
            self._chunk({"content": ""}, finish_reason=finish, stop_reason=stop)
            if self._chat.usage:
                self._chunk(None)
            self._connection.event("[DONE]")
            self.last()

    def last(self) -> None:
        """End the HTTP body."""
        if self._chat.stream:
            self._connection.event("")

    def whole(self, finish: str) -> dict[str, Any]:
        texts = {field: "".join(parts) for field, parts in self._texts.items()}
        message: dict[str, Any] = {
            "role": "assistant",
            "content": texts.get("content"),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            self._reasoning: texts.get(self._reasoning),
        }
        if self._call is not None or finish == "tool_calls":
            message["tool_calls"] = [self._call] if self._call is not None else []
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {
            **self._head("chat.completion"),
            "choices": [{**choice, "stop_reason": None, "token_ids": None}],
            "usage": self._usage(),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._mark}",
            "object": kind,
            "created": int(time.time()),
            "model": self._chat.model,
        }

    def _usage(self) -> dict[str, Any]:
        prompt = self._chat.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self.count,
            "completion_tokens": self.count,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def _chunk(self, delta: dict[str, Any] | None, **end: str | None) -> None:
        """One chunk; with no delta the one that carries only the usage."""
        body = self._head("chat.completion.chunk")
        if delta is None:
            body |= {"choices": [], "usage": self._usage()}
        else:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **end}
            body["choices"] = [choice]
        self._connection.event(json.dumps(body))
