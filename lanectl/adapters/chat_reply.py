"""A `Reply` put together from the pieces of a chat completion, whatever shape they come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lanectl.core.repetition import RepetitionDetector
from lanectl.core.smoke import Reply, ToolCall

OUTPUT_CHARS_MAX = 4 * 2**20
"""Characters of output that a reply may have; more than any token cap of ours lets through."""
CALLS_MAX = 64
EXCERPT_CHARS = 2048


class ReplyBuilder:
    """Takes events one by one. `over` turns true when nothing more is wanted; `fault` says why.

    cancel_after: be over, cancelled, after so many characters of output.
    """

    def __init__(self, cancel_after: int | None = None) -> None:
        self.status: int | None = None
        self.fault = ""
        self.excerpt = ""
        self.events = 0
        """Events that were part of a chat completion."""
        self.first_token_s: float | None = None
        self.over = False
        self.output_chars = 0
        self._cancel_after = cancel_after
        self._texts: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._calls: dict[int, _Call] = {}
        self._detectors: dict[str, RepetitionDetector] = {}
        self._repetition = ""
        self._finish_reason: str | None = None
        self._stop_reason: str | None = None
        self._usage: dict[str, int] = {}

    def end(self, fault: str, excerpt: str = "") -> None:
        """Nothing more will come, and this is why; the first reason stands."""
        if not self.over:
            self.over = True
            self.fault = fault
        self.excerpt = self.excerpt or excerpt[:EXCERPT_CHARS]

    def take_event(self, data: str) -> None:
        """One event of the stream, `[DONE]` included."""
        if data.strip() == "[DONE]":
            self.end("")
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        self._take(event, data)

    def take_whole(self, body: bytes) -> None:
        """A reply that was not streamed although we asked for it."""
        text = body.decode("utf-8", "replace")
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            event = None
        self._take(event, text)
        if self.events:
            self.end("")
        self.end("garbled", text)

    def reply(self, elapsed_s: float) -> Reply:
        return Reply(
            status=self.status,
            content="".join(self._texts["content"]),
            reasoning="".join(self._texts["reasoning"]),
            tool_calls=tuple(call.whole() for _, call in sorted(self._calls.items())),
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            fault=self.fault,
            repetition=self._repetition,
            body_excerpt=self.excerpt,
            elapsed_s=elapsed_s,
            first_token_s=self.first_token_s,
            usage=self._usage,
        )

    def _take(self, event: object, raw: str) -> None:
        if not isinstance(event, dict):
            self.end("garbled", raw)
            return
        if event.get("error") or event.get("object") == "error":
            self.end("error", error_text(raw))
            return
        choices = event.get("choices")
        if not isinstance(choices, list):
            self.end("garbled", raw)
            return
        self.events += 1
        if isinstance(usage := event.get("usage"), dict):
            self._usage |= {k: v for k, v in usage.items() if type(v) is int}
        for choice in choices:
            # We ask for one choice; another would be none of ours.
            if isinstance(choice, dict) and not choice.get("index"):
                self._take_choice(choice)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            # Servers between the two names send both, with the same text (field note 3).
            thought = _text(delta.get("reasoning")) or _text(delta.get("reasoning_content"))
            self._add("reasoning", thought)
            self._add("content", _text(delta.get("content")))
            calls = delta.get("tool_calls")
            for call in calls if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    self._take_call(call)
        if isinstance(reason := choice.get("finish_reason"), str):
            self._finish_reason = reason
        if (stop := choice.get("stop_reason")) is not None:
            self._stop_reason = str(stop)
        if self.output_chars > OUTPUT_CHARS_MAX:
            self.end("oversized")
        if self._cancel_after is not None and self.output_chars >= self._cancel_after:
            self.end("cancelled")

    def _take_call(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function")
        if not isinstance(function, dict):
            return
        name, arguments = function.get("name"), function.get("arguments")
        index = delta.get("index")
        if type(index) is not int:
            last = max(self._calls, default=-1)
            index = last + 1 if name or last < 0 else last
        call = self._calls.setdefault(index, _Call())
        if len(self._calls) > CALLS_MAX:
            self._repeated(f"more than {CALLS_MAX} tool calls in one reply")
            return
        if isinstance(name, str):
            call.add_name(name)
            self.output_chars += len(name)
        if arguments is not None:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call.arguments.append(text)
            call.has_arguments = True
            self._watch(f"arguments of call {index + 1}", text)

    def _add(self, field: str, text: str) -> None:
        if text:
            self._texts[field].append(text)
            self._watch(field, text)

    def _watch(self, where: str, text: str) -> None:
        self.output_chars += len(text)
        detector = self._detectors.setdefault(where, RepetitionDetector())
        if flood := detector.feed(text):
            self._repeated(f"{flood} in {where}")

    def _repeated(self, proof: str) -> None:
        self._repetition = self._repetition or proof
        self.end("")


class _Call:
    """One tool call as its fragments come in."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[str] = []
        self.has_arguments = False

    def add_name(self, part: str) -> None:
        # Most servers send the name whole and once, some again with each fragment.
        if part != self.name:
            self.name += part

    def whole(self) -> ToolCall:
        return ToolCall(self.name, "".join(self.arguments) if self.has_arguments else None)


def _text(value: object) -> str:
    """A text field: a string, or the list of parts that some servers make of it."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def error_text(body: str) -> str:
    """What an error body says: its message where it is JSON, else its beginning."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return body[:EXCERPT_CHARS]
    if isinstance(told, dict) and isinstance(told.get("error"), dict):
        told = told["error"]
    if isinstance(told, dict):
        for key in ("message", "detail", "error"):
            if isinstance(told.get(key), str):
                return str(told[key])[:EXCERPT_CHARS]
    return body[:EXCERPT_CHARS]
