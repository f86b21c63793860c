"""What the stand-in answers: a request read from its body, and a reply as a run of tokens."""

from __future__ import annotations

import itertools
import json

from lanectl.demo.standin_modes import Modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FLOOD_PACE_S = 0.0005
"""Seconds between two tokens of a reply without end: quick, yet visible in the gauges."""
_VOCABULARY = """
    the lane server request state queue model cache token answer tool result user wants needs
    first then because maybe check again whether before after other still looks ready slow quick
    memory worker engine prompt length limit restart launcher program process signal port
"""
WORDS = _VOCABULARY.split()


class BadRequest(Exception):
    """A request that vLLM would refuse. status: the HTTP status; kind: its name for the error."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Chat:
    """A chat completion request, checked as vLLM checks it."""

    def __init__(self, body: object, names: list[str], max_model_len: int) -> None:
        """Raises BadRequest."""
        if not isinstance(body, dict):
            raise BadRequest("the request body must be a JSON object")
        self.model = body.get("model") or names[0]
        if self.model not in names:
            message = f"The model `{self.model}` does not exist."
            raise BadRequest(message, 404, "NotFoundError")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages: a list with at least one message is needed")
        tools = body.get("tools") or []
        self.tools = [tool["function"] for tool in tools if "function" in tool]
        choice = body.get("tool_choice", "auto")
        if isinstance(choice, dict):
            wanted = choice.get("function", {}).get("name")
            self.tools = [tool for tool in self.tools if tool.get("name") == wanted]
        elif choice == "none":
            self.tools = []
        template = body.get("chat_template_kwargs") or {}
        self.thinks = bool(template.get("enable_thinking", True))
        self.prompt = "".join(_rendered(message) for message in messages)
        self.prompt_tokens = (len(self.prompt) + len(json.dumps(tools))) // 4 + 4
        cap = body.get("max_completion_tokens") or body.get("max_tokens")
        asked = int(cap or 1)
        if self.prompt_tokens + asked > max_model_len:
            raise BadRequest(
                f"This model's maximum context length is {max_model_len} tokens. However, you "
                f"requested {asked} output tokens and your prompt contains {self.prompt_tokens} "
                f"input tokens, for a total of {self.prompt_tokens + asked} tokens. Please reduce "
                "the length of the input prompt or the number of requested output tokens."
            )
        self.cap = asked if cap else max_model_len - self.prompt_tokens
        self.stream = bool(body.get("stream"))
        self.usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.only_token_0 = body.get("allowed_token_ids") == [0]
        self.endless = bool(body.get("ignore_eos"))
        self.detect_repetition = bool(body.get("repetition_detection"))


class Reply:
    """tokens: (field, text) one by one, the fields `reasoning`, `content`, `name`, `arguments`.

    finish: the finish reason if the tokens run out before the cap; pace: seconds between tokens;
    end: "" for a reply that ends as it should, or how it does not: "torn", "clean" or "stall".
    """

    def __init__(
        self,
        tokens: Iterator[tuple[str, str | None]],
        finish: str = "stop",
        *,
        pace: float = 0.0,
        end: str = "",
        flood: bool = False,
    ) -> None:
        self.tokens = tokens
        self.finish = finish
        self.pace = pace
        self.end = end
        self.flood = flood


def compose(chat: Chat, modes: Modes, floods: bool) -> Reply:
    """The reply to `chat`. floods: the engine found that one of the flood modes strikes now."""
    if floods or chat.only_token_0:
        field = "reasoning" if chat.thinks else "content"
        flood = itertools.repeat((field, "!"))
        if chat.detect_repetition:
            return Reply(itertools.islice(flood, 8), "repetition", flood=True)
        return Reply(flood, pace=FLOOD_PACE_S, flood=True)
    reply = _orderly(chat, modes)
    if "slow-tokens" in modes:
        reply.pace = modes["slow-tokens"]
    for mode, end in (("cut-stream", "torn"), ("cut-clean", "clean"), ("stall", "stall")):
        if mode in modes:
            reply.tokens = itertools.islice(reply.tokens, 3)
            reply.end = end
    return reply


def _orderly(chat: Chat, modes: Modes) -> Reply:
    """A reply that ends, or that thinks on; each mode of its own field changes what it holds."""
    if chat.endless:
        return Reply(_thoughts(), "length", pace=FLOOD_PACE_S)
    if modes["budget"] == float("inf"):
        return Reply(_thoughts(), "length")
    thinking: Iterator[tuple[str, str | None]] = iter(())
    if chat.thinks:
        thinking = _text("reasoning", "The user asks for the state of the lane, so I look it up.")
    if "budget" in modes:
        thinking = itertools.islice(_thoughts(), int(modes["budget"]))
    if not chat.tools:
        return Reply(itertools.chain(thinking, _text("content", "The lane is up and answers.")))
    tool = chat.tools[0]
    name, arguments = str(tool.get("name")), _arguments(tool.get("parameters") or {})
    if "empty-calls" in modes:
        return Reply(thinking, "tool_calls")
    if "leak-content" in modes or "leak-reasoning" in modes:
        # One brace too many is what makes the real parser leave a call where it stands.
        leak = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}}}\n</tool_call>'
        field = "content" if "leak-content" in modes else "reasoning"
        return Reply(itertools.chain(thinking, _text(field, leak)))
    if "wrong-tool" in modes:
        name = "get_weather"
    call: Iterator[tuple[str, str | None]] = _text("arguments", arguments)
    if "bad-arguments" in modes:
        call = _text("arguments", '{"command=ls": ""}')
    elif "null-args" in modes and arguments == "{}":
        call = iter([("arguments", None)])
    return Reply(itertools.chain(thinking, [("name", name)], call), "tool_calls")


def _text(field: str, text: str) -> Iterator[tuple[str, str | None]]:
    """`text` in tokens of a word each, spaces kept."""
    words = text.split(" ")
    return ((field, word if i == 0 else f" {word}") for i, word in enumerate(words))


def _thoughts() -> Iterator[tuple[str, str | None]]:
    """Reasoning without end that repeats no unit: a fixed walk through WORDS, numbered."""
    state = 1
    for number in itertools.count(1):
        state = (state * 1103515245 + 12345) % 2**31
        word = WORDS[(state >> 8) % len(WORDS)]
        yield "reasoning", f" {word}" if number % 12 else f" {word} ({number // 12}).\n"


def _arguments(schema: Mapping[str, object]) -> str:
    """Arguments that fit a simple object schema: something for each required property."""
    required = schema.get("required") or []
    properties = schema.get("properties") or {}
    values: dict[str, object] = {}
    if isinstance(required, list) and isinstance(properties, dict):
        for name in required:
            about = properties.get(name, {})
            samples = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
            values[name] = (about.get("enum") or [samples.get(about.get("type"), "lane")])[0]
    return json.dumps(values)


def _rendered(message: object) -> str:
    """A message as the prompt has it: role, text, and the calls it carries."""
    if not isinstance(message, dict):
        raise BadRequest("messages: each message must be an object")
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else ""
    return f"{message.get('role')}\n{content}{calls}\n"
