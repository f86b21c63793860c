"""The stand-in's bad modes: how a lane can be wrong, each by the name a test asks for.

Chosen with `--standin-mode a,b=2` (so that a profile can carry it) or else `$STANDIN_MODE`.
A mode with a number takes `name=SECONDS` (`budget`: tokens).
"""

from __future__ import annotations

MODES: dict[str, str] = {
    "good": "nothing wrong; the same as no mode",
    # what a reply holds
    "flood": "every reply is `!` without end",
    "flood-spec-concurrent": "`!` when speculation is on and two long prompts run at once",
    "flood-hot": "`!` when half of the prompt or more came from the prefix cache",
    "flood-aba": "`!` when a prompt returns after another one with the same beginning",
    "empty-calls": "`finish_reason: tool_calls` and no call",
    "wrong-tool": "calls a tool that nobody offered",
    "bad-arguments": "arguments that do not fit the tool's schema",
    "null-args": "`null` for the arguments of a tool that takes none",
    "leak-content": "the call stays as text in the content",
    "leak-reasoning": "the call stays as text in the reasoning",
    "old-reasoning-field": "`reasoning_content`, as older servers say",
    "budget": "thinks, sensibly, until the cap is spent; =N: calls the tool after N tokens",
    # how a reply arrives
    "cut-stream": "the connection is torn in the middle of a reply",
    "cut-clean": "the stream ends as HTTP should, without a last event",
    "stall": "a few tokens, then silence",
    "frozen": "health and models answer, a generation never does",
    "html-error": "502 with an HTML page for every generation",
    "http-500-thinking": "500 for every request that thinks",
    "unauthorized": "401 for everything under /v1",
    "slow-tokens": "so many seconds between two tokens (0.05)",
    # what the metrics say
    "no-metrics": "/metrics is 404",
    "no-cache-counter": "no prefix-cache counters among the metrics",
    "busy": "other people's requests run and wait, for ever",
    # how the process behaves
    "crash-start": "exit 1 with a traceback, the cause one line above the last",
    "crash-after": "serves, then exits 1 after so many seconds (2)",
    "crash-2s": "crash-after=2",
    "slow-start": "so many seconds until it listens (2); the port is bound at once",
    "lost-sigterm": "slow-start, and a SIGTERM meanwhile is lost: it comes up and serves",
    "fatal-log": "prints a fatal line about GPU memory and hangs",
    "sigterm-ignored": "only SIGKILL ends it",
    "orphans": "an engine child that ignores SIGTERM and outlives the server",
    "orphans-port": "orphans, and the child listens on the port too and answers",
}

NUMBERS: dict[str, float] = {
    "budget": float("inf"),
    "slow-tokens": 0.05,
    "crash-after": 2.0,
    "slow-start": 2.0,
    "lost-sigterm": 2.0,
}
"""Modes that take a number, and what they mean without one."""

FLOODS = ("flood", "flood-spec-concurrent", "flood-hot", "flood-aba")


class Modes:
    """The modes that are on. `"stall" in modes` asks, `modes["slow-start"]` gives the number."""

    def __init__(self, text: str) -> None:
        """Raises ValueError naming a mode that does not exist or a number that is none."""
        self._on: dict[str, float] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, equals, number = word.partition("=")
            if name not in MODES or (equals and name not in NUMBERS):
                raise ValueError(f"unknown stand-in mode {word!r}; known: {', '.join(MODES)}")
            self._on[name] = float(number) if equals else NUMBERS.get(name, 1.0)
        if "crash-2s" in self._on:
            self._on["crash-after"] = 2.0
        if "lost-sigterm" in self._on:
            self._on.setdefault("slow-start", self._on["lost-sigterm"])
        if "orphans-port" in self._on:
            self._on["orphans"] = 1.0

    def __contains__(self, name: str) -> bool:
        return name in self._on

    def __getitem__(self, name: str) -> float:
        """The number of a mode; 0 when it is off."""
        return self._on.get(name, 0.0)

    def __str__(self) -> str:
        return ",".join(self._on) or "good"
