"""The requests that a gate sends: their tools, their text, and how they are cut to fit the lane.

Each probe asks for one tool call in one literal sentence. What varies is everything around it:
the length of the prompt, what a cache may have seen of it, thinking, the turns before.

How a prompt is cut, without knowing the tokenizer
    All text here is ASCII, so a character costs one token at most, also where a token is a byte.
    The first reply tells `prompt_tokens`: from then on a prompt that is `n` characters longer
    costs at most `n` times the tokens a character of that first one, its tools and template
    included, which over-estimates. So a 4096-token lane of bytes and a 262144-token lane of words
    are both cut safely, and the second is not cut at all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanectl.core.lane import SmokeSettings
from lanectl.core.smoke import PING, STATUS, ProbeRequest

ASK = {
    STATUS: 'Call the tool get_status with service "lane".',
    PING: "Call the tool ping.",
}
"""What the user says to have a tool called; a test model may have learnt these sentences."""

TOOLS: Mapping[str, Mapping[str, Any]] = {
    STATUS: {
        "name": STATUS,
        "description": "Tells the state of a service.",
        "parameters": {
            "type": "object",
            "properties": {"service": {"type": "string", "description": "Name of the service."}},
            "required": ["service"],
            "additionalProperties": False,
        },
    },
    PING: {
        "name": PING,
        "description": "Answers when the watch is alive. Takes no arguments.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}

TEMPLATE_TOKENS = 1536
"""Tokens that tools and chat template may add to a prompt, a byte a token, before it is known."""
MARGIN_TOKENS = 32
PREFIX_CHARS = 2000
"""The beginning that the cold, hot and A, B, A prompts share; some dozens of 16-token blocks."""
BRANCH_CHARS = 240
"""What a prompt of A, B, A has for itself."""
CHARS_PER_TOKEN = 6
"""More characters than a token of ordinary text holds: to be sure of filling cache blocks."""
LEAST_TOKENS = 64
LEAST_CHARS = 64
STALL_S = 30.0
"""The longest silence between two events; half of the time limit where that is less."""
CANCEL_AFTER = 8
"""Characters of output after which the cancelled probe is cut."""


@dataclass(frozen=True)
class Yardstick:
    """A prompt of `chars` characters costs `tokens`; each further character at most `rate`."""

    chars: int = 0
    tokens: int = TEMPLATE_TOKENS
    rate: float = 1.0

    @classmethod
    def measured(cls, chars: int, tokens: int) -> Yardstick:
        """From the `prompt_tokens` that a lane told of a prompt with so many characters."""
        return cls(chars, tokens, min(1.0, tokens / max(chars, 1)))

    def tokens_at_most(self, chars: int) -> int:
        return self.tokens + round(max(chars - self.chars, 0) * self.rate) + MARGIN_TOKENS

    def chars_at_most(self, tokens: int) -> int:
        return self.chars + int(max(tokens - self.tokens - MARGIN_TOKENS, 0) / self.rate)


@dataclass(frozen=True)
class ProbeMaker:
    """Builds the probes of one lane.

    max_model_len: tokens of prompt and reply together, None where the lane does not tell.
    block_tokens: tokens of a block of its prefix cache; a shorter prompt could never hit.
    """

    model: str
    settings: SmokeSettings
    max_model_len: int | None = None
    block_tokens: int = 16
    yardstick: Yardstick = Yardstick()

    def call(
        self,
        name: str,
        nonce: str,
        *,
        chars: int | None = None,
        tool: str = STATUS,
        user: str = "",
        thinking: bool | None = None,
        cancel_after: int | None = None,
    ) -> ProbeRequest:
        """One call of `tool` after a text that only this `nonce` has; thinking None: as it is."""
        messages = [
            {"role": "system", "content": filler(nonce, self.prefix_chars(chars))},
            {"role": "user", "content": user + ASK[tool]},
        ]
        # `ping` is offered alone: a lane that would rather call something else is not at fault.
        offered = (STATUS, PING) if tool == STATUS else (tool,)
        return self._request(name, messages, offered, tool, thinking, cancel_after)

    def branch(self, name: str, which: str, nonce: str) -> ProbeRequest:
        """A call whose prompt begins like every other of this `nonce` and then goes its own way."""
        return self.call(name, nonce, user=filler(f"{nonce}-{which}", BRANCH_CHARS) + "\n")

    def after_result(self, name: str, nonce: str) -> ProbeRequest:
        """The turn after the tool's result: words, or another well-formed call."""
        # Some templates want an id of nine letters and digits, and content that is a string.
        call = {"name": STATUS, "arguments": '{"service": "lane"}'}
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": filler(nonce, self.prefix_chars())},
            {"role": "user", "content": ASK[STATUS]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call00001", "content": '{"state": "running"}'},
        ]
        return self._request(name, messages, (STATUS, PING), None, None, None)

    def long(self, name: str, nonce: str, *, share: float = 1.0) -> ProbeRequest:
        """A call after the longest prompt that settings and lane allow; `share` cuts it further."""
        chars = self.settings.prompt_chars
        if self.max_model_len is not None:
            room = self.max_model_len - min(self._cap(None), self.max_model_len // 4)
            chars = min(chars, self.yardstick.chars_at_most(room))
        return self.call(name, nonce, chars=max(int(chars * share), LEAST_CHARS))

    def wider(self, request: ProbeRequest, times: int = 4) -> ProbeRequest | None:
        """The same with so many times the token cap, as far as there is room; None for none."""
        cap = int(request.body["max_tokens"])
        wide = min(cap * times, self._room(request.body["messages"], cap * times))
        if wide <= cap:
            return None
        return replace(request, body={**request.body, "max_tokens": wide})

    def measured(self, request: ProbeRequest, prompt_tokens: int) -> ProbeMaker:
        """The same maker, now that a prompt's tokens are known."""
        chars = text_chars(request.body["messages"])
        return replace(self, yardstick=Yardstick.measured(chars, prompt_tokens))

    def prefix_chars(self, chars: int | None = None) -> int:
        """`chars`, or a beginning that fills some blocks of the cache and leaves room to answer."""
        if chars is None:
            chars = max(PREFIX_CHARS, 2 * self.block_tokens * CHARS_PER_TOKEN)
            if self.max_model_len is not None:
                chars = min(chars, self.max_model_len // 4)
        return chars

    def _cap(self, thinking: bool | None) -> int:
        """Thinking may be on unless it is switched off, and then needs the larger cap."""
        return self.settings.max_tokens if thinking is False else self.settings.thinking_max_tokens

    def _room(self, messages: Sequence[Mapping[str, Any]], wanted: int) -> int:
        """Tokens that a reply to these messages can have."""
        if self.max_model_len is None:
            return wanted
        left = self.max_model_len - self.yardstick.tokens_at_most(text_chars(messages))
        return max(min(wanted, left), LEAST_TOKENS)

    def _request(
        self,
        name: str,
        messages: list[dict[str, Any]],
        offered: Sequence[str],
        tool: str | None,
        thinking: bool | None,
        cancel_after: int | None,
    ) -> ProbeRequest:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "tools": [{"type": "function", "function": TOOLS[each]} for each in offered],
            "tool_choice": "auto",  # "required" breaks healthy servers: field notes 1 and 8b
            "temperature": 0,
            "max_tokens": self._room(messages, self._cap(thinking)),
            "stream_options": {"include_usage": True},
        }
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        limit = self.settings.request_timeout_s
        return ProbeRequest(
            name, body, limit, min(STALL_S, limit / 2), cancel_after=cancel_after, tool=tool
        )


def one_token(model: str, timeout_s: float) -> ProbeRequest:
    """The least that proves an engine alive: one token of anything."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say yes."}],
        "temperature": 0,
        "max_tokens": 1,
    }
    return ProbeRequest("one-token", body, timeout_s, timeout_s, tool=None)


def text_chars(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters that the messages bring into a prompt."""
    return sum(
        len(message["content"])
        + sum(len(json.dumps(call["function"])) for call in message.get("tool_calls", ()))
        for message in messages
    )


_WORDS = """
    alarm backup cable channel clock cooler copper counter desk door engine fan filter floor frame
    gauge hall inlet keeper ladder lamp ledger level lever lock meter mirror module motor notice
    panel pipe plate power pump rack record relay report roof room sensor shelf shift signal socket
    spare stair station storage switch table tank tower tray valve vault vent watch water window
""".split()  # noqa: SIM905
_STATES = "fine quiet warm cold steady open shut clean dusty busy idle full empty".split()  # noqa: SIM905


def filler(nonce: str, chars: int) -> str:
    """`chars` characters of a watch log that begins with `nonce`; the same nonce, the same text.

    ASCII, no markup, and hardly anything twice: what comes back repeated is the lane's own.
    """
    dice = random.Random(nonce)
    parts = [f"Log {nonce}. Read it, then do what the user asks.\n"]
    length = len(parts[0])
    number = 0
    while length < chars:
        number += 1
        words = dice.choices(_WORDS, k=3)
        states = dice.choices(_STATES, k=2)
        hour, minute = dice.randrange(24), dice.randrange(60)
        line = (
            f"{number}. At {hour:02}:{minute:02} the {words[0]} near {words[1]} "
            f"{dice.randrange(1000)} was {states[0]}, the {words[2]} {states[1]}.\n"
        )
        parts.append(line)
        length += len(line)
    return "".join(parts)[:chars]
