"""Which probes a gate holds, and what a reply is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ProbeRequest:
    """One bounded, streamed chat completion.

    body: the JSON request body without `stream`; timeout_s: for the whole reply;
    stall_s: the longest silence between two events; cancel_after: cut it ourselves after so many
    characters of output.
    """

    name: str
    body: Mapping[str, Any]
    timeout_s: float
    stall_s: float
    cancel_after: int | None = None


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str | None


@dataclass(frozen=True)
class Reply:
    """What came back. `fault` is empty when the stream ended as a stream should."""

    status: int | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    fault: str = ""
    """"", "unreachable", "timed_out", "stalled", "aborted" (torn stream), "cancelled", "stopped"."""
    repetition: str = ""
    """What the streaming detector saw, e.g. `'!' x 256 in content`; empty when nothing."""
    body_excerpt: str = ""
    elapsed_s: float = 0.0
    first_token_s: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
