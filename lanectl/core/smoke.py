"""What a reply of a lane is worth: `judge(reply, request)`.

`finish_reason` is no oracle (field notes 1, 2, 7): the message is judged. The rules, in order:

1. a unit repeated without end is `degenerate`, however the reply came to its end;
2. a reply that did not arrive whole is told by the way it broke off;
3. a status other than 200 is `client_error` (4xx: our request, key, model name or pace) or
   `http_error`;
4. a reply that was cut by its token cap is `truncated` inside a call, else `budget_exhausted`
   (or `empty`): the cap speaks against itself, not against the lane;
5. otherwise: no call markup in content or reasoning, then a call, with the exact name, with
   arguments that are an object and fit the tool's schema.

Pure, but for `jsonschema`, which is slow to import and is loaded when first needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from lanectl.core.repetition import find_flood
from lanectl.core.text import mask, printable
from lanectl.core.verdict import COULD_NOT_TELL, ReplyClass, Result

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

STATUS = "get_status"
"""The smoke tool: one required argument, the string `service`."""
PING = "ping"
"""The tool without arguments."""

CALLS_MAX = 8
"""More calls than this to one question are a loop."""
DETAIL_CHARS = 300
QUOTE_CHARS = 80


@dataclass(frozen=True)
class ProbeRequest:
    """One bounded, streamed chat completion.

    body: the JSON request body without `stream`; timeout_s: for the whole reply;
    stall_s: the longest silence between two events; cancel_after: cut it ourselves after so many
    characters of output; tool: the tool that must be called, None where words will do as well.
    """

    name: str
    body: Mapping[str, Any]
    timeout_s: float
    stall_s: float
    cancel_after: int | None = None
    tool: str | None = STATUS


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
    """"", "unreachable", "timed_out", "stalled", "aborted" (torn stream, no last event),
    "error" (an error object in the stream), "garbled" (no chat completion at all),
    "oversized" (more than any cap allows), "cancelled", "stopped" (both our own doing)."""
    repetition: str = ""
    """What the streaming detector saw, e.g. `'!' x 256 in content`; empty when nothing."""
    body_excerpt: str = ""
    """The beginning of a body that was no reply, or the reason why nothing came. Not masked."""
    elapsed_s: float = 0.0
    first_token_s: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


class Judgement(NamedTuple):
    """detail: one printable line for the operator, masked, at most DETAIL_CHARS long."""

    cls: ReplyClass
    outcome: Result
    detail: str


def judged(cls: ReplyClass, detail: str, outcome: Result | None = None) -> Judgement:
    """A judgement with the outcome that its class stands for, unless another is given."""
    if outcome is None:
        outcome = Result.FAILED
        if cls is ReplyClass.OK:
            outcome = Result.PASSED
        elif cls in COULD_NOT_TELL:
            outcome = Result.ERROR
    return Judgement(cls, outcome, printable(mask(detail), DETAIL_CHARS))


def judge(reply: Reply, request: ProbeRequest) -> Judgement:
    """Say what `reply` to `request` is worth. See the rules above."""
    return (
        _repeated(reply)
        or _broken_off(reply, request)
        or _refused(reply)
        or _ended_early(reply)
        or _leaked(reply)
        or _called(reply, request)
    )


# --------------------------------------------------------------------------- how the reply ended


def _repeated(reply: Reply) -> Judgement | None:
    """Rule 1. The detector ran while the reply came in; a reply from elsewhere is read again."""
    if seen := reply.repetition or _flood_in(reply):
        return judged(ReplyClass.DEGENERATE, seen)
    if reply.finish_reason == "repetition" or reply.stop_reason == "repetition_detected":
        return judged(ReplyClass.DEGENERATE, "the lane's own detector saw a repetition")
    if len(reply.tool_calls) > CALLS_MAX:
        return judged(ReplyClass.DEGENERATE, f"{len(reply.tool_calls)} tool calls in one reply")
    return None


def _flood_in(reply: Reply) -> str:
    texts = [("reasoning", reply.reasoning), ("content", reply.content)]
    for call in reply.tool_calls:
        texts += [("the name of a call", call.name), ("arguments", call.arguments or "")]
    for where, text in texts:
        if flood := find_flood(text):
            return f"{flood} in {where}"
    return ""


_FAULTS = {
    "unreachable": (ReplyClass.UNREACHABLE, "nothing answered"),
    "timed_out": (ReplyClass.TIMED_OUT, "no end within {request.timeout_s:.1f} s"),
    "stalled": (ReplyClass.STALLED, "silent for {request.stall_s:.1f} s in mid-reply"),
    "aborted": (ReplyClass.STREAM_ABORTED, "the stream broke off without its last event"),
    "error": (ReplyClass.HTTP_ERROR, "an error inside the stream"),
    "garbled": (ReplyClass.HTTP_ERROR, "what came is no chat completion"),
    "oversized": (ReplyClass.HTTP_ERROR, "more came than any cap allows"),
    "cancelled": (ReplyClass.OK, "cut by us in mid-stream, as intended"),
    "stopped": (ReplyClass.STREAM_ABORTED, "cut by us: the gate was told to stop"),
}


def _broken_off(reply: Reply, request: ProbeRequest) -> Judgement | None:
    """Rule 2. Where an HTTP status says more than the way the body broke off, rule 3 tells."""
    if not reply.fault or (reply.status not in (None, 200) and reply.fault != "stopped"):
        return None
    cls, why = _FAULTS[reply.fault]
    why = why.format(request=request)
    told = (reply.body_excerpt if cls is not ReplyClass.OK else "") or _received(reply)
    outcome = Result.INCONCLUSIVE if reply.fault == "stopped" else None
    return judged(cls, f"{why} ({told})" if told else why, outcome)


def _refused(reply: Reply) -> Judgement | None:
    """Rule 3."""
    if reply.status == 200:
        return None
    if reply.status is None:
        return judged(ReplyClass.UNREACHABLE, reply.body_excerpt or "nothing answered")
    told = f"HTTP {reply.status}: {reply.body_excerpt or 'no body'}"
    if reply.status == 429:
        return judged(ReplyClass.CLIENT_ERROR, f"the lane is overloaded, {told}")
    if 400 <= reply.status < 500:
        return judged(ReplyClass.CLIENT_ERROR, told)
    return judged(ReplyClass.HTTP_ERROR, told)


def _ended_early(reply: Reply) -> Judgement | None:
    """Rule 4, and the finish reasons that say the reply is not whole."""
    reason = reply.finish_reason
    if reason == "abort":
        return judged(ReplyClass.STREAM_ABORTED, "the lane aborted the request")
    if reason == "error":
        return judged(ReplyClass.HTTP_ERROR, "the lane ended the reply with an error")
    if reason is None:
        return judged(ReplyClass.STREAM_ABORTED, "the reply ended without a finish reason")
    if reason != "length":
        return None
    if _open_markup(reply.content) or _open_markup(reply.reasoning):
        return judged(ReplyClass.TRUNCATED, f"cut inside a call left in the text {_spent(reply)}")
    if reply.tool_calls:
        return None  # Whole calls stand, cut ones are told by their arguments.
    if not (reply.content or reply.reasoning).strip():
        return judged(ReplyClass.EMPTY, f"the cap was spent on nothing visible {_spent(reply)}")
    if _MARKUP.search(reply.content) or _MARKUP.search(reply.reasoning):
        return None
    return judged(ReplyClass.BUDGET_EXHAUSTED, f"the cap was spent before a call {_spent(reply)}")


def _spent(reply: Reply) -> str:
    tokens = reply.usage.get("completion_tokens")
    return f"({tokens} tokens, {_received(reply)})" if tokens else f"({_received(reply)})"


def _received(reply: Reply) -> str:
    """How much came, in characters; empty when nothing came."""
    calls = sum(len(call.name) + len(call.arguments or "") for call in reply.tool_calls)
    parts = (("reasoning", len(reply.reasoning)), ("content", len(reply.content)), ("calls", calls))
    return ", ".join(f"{length} characters of {what}" for what, length in parts if length)


# ------------------------------------------------------------------------ calls left in the text

# Call markup of the chat formats that vLLM parses: Hermes and Qwen, Qwen-Coder and MiniMax, Llama,
# Mistral, DeepSeek (with wide bars and a low line of its own), GLM, Kimi, Phi, Granite, Cohere,
# gpt-oss.
_MARKUP = re.compile(
    r"""</?tool_calls?> | <\|/?tool_(?:call|calls|call_begin|calls_section|response)[a-z_]*\|>
      | <function[=_\s] | </function> | <parameter= | <invoke\b | <minimax:tool_call>
      | \[/?TOOL_CALLS?\] | \[ARGS\] | <\|python_tag\|> | <functioncall> | functools\[
      | <[|\uff5c]tool[\u2581_](?:calls?|sep|outputs?)[^>]{0,40}>
      | <\|START_ACTION\|> | <\|(?:channel|message|call)\|> | <arg_key>
      | <\|tool_call>| <tool_call\|>""",
    re.VERBOSE,
)
_CLOSED = re.compile(
    r"</tool_calls?>|</function>|\[/TOOL_CALLS?\]|<\|/?tool_calls?(?:_section)?_end\|>"
    r"|<[|\uff5c]tool[\u2581_]calls?[\u2581_]end[|\uff5c]>|<\|END_ACTION\|>|<tool_call\|>"
)
_BARE_CALL = re.compile(
    r"""["'](?:name|function)["']\s*:\s*["'](?:get_status|ping)["']\s*,\s*
        ["'](?:arguments|parameters)["']\s*:
      | \[(?:get_status|ping)\(""",
    re.VERBOSE,
)
_THINK = re.compile(r"</?think(?:ing)?>")


def _open_markup(text: str) -> bool:
    """Whether a call was begun in the text and not ended."""
    last = max((found.start() for found in _MARKUP.finditer(text)), default=None)
    return last is not None and not _CLOSED.search(text, last)


def _leaked(reply: Reply) -> Judgement | None:
    """Rule 5, first half: a call, or a tag of thinking, that the lane's parsers let through."""
    for where, text in (("content", reply.content), ("reasoning", reply.reasoning)):
        found = _MARKUP.search(text)
        # A model may draft its call while it thinks, as long as it then makes the call.
        if not found and (where == "content" or not reply.tool_calls):
            found = _BARE_CALL.search(text)
        if found:
            return judged(
                ReplyClass.TOOL_TEXT_LEAK, f"{_quoted(text[found.start() :])} left in the {where}"
            )
    # Without a reasoning parser the tags belong to the content; with one they are its failure.
    if reply.reasoning and (found := _THINK.search(reply.content)):
        return judged(ReplyClass.TOOL_TEXT_LEAK, f"{found[0]} left in the content")
    return None


# ------------------------------------------------------------------------------- the call itself


def _called(reply: Reply, request: ProbeRequest) -> Judgement:
    """Rule 5, second half."""
    tools = {
        tool["function"]["name"]: tool["function"]["parameters"]
        for tool in request.body.get("tools", ())
    }
    if not reply.tool_calls:
        if not (reply.content + reply.reasoning).strip():
            return judged(ReplyClass.EMPTY, f"no text and no call (finish {reply.finish_reason})")
        if request.tool is not None:
            told = f"finish {reply.finish_reason}, {_received(reply)}: {_quoted(reply.content)}"
            return judged(ReplyClass.NO_TOOL_CALL, told)
        if not reply.content.strip():
            return judged(ReplyClass.EMPTY, f"no answer ({_received(reply)})")
        return judged(ReplyClass.OK, f"answered in words: {_quoted(reply.content)}")
    wanted = {request.tool} if request.tool else set(tools)
    for call in reply.tool_calls:
        if call.name not in wanted:
            told = f"{_quoted(call.name)} instead of {' or '.join(sorted(wanted))}"
            return judged(ReplyClass.WRONG_TOOL, told)
        if bad := _bad_arguments(call, tools.get(call.name, {}), reply):
            return bad
    first = reply.tool_calls[0]
    return judged(ReplyClass.OK, f"{first.name}({_quoted(first.arguments or '')})")


def _bad_arguments(call: ToolCall, schema: Mapping[str, Any], reply: Reply) -> Judgement | None:
    text = (call.arguments or "").strip()
    if not schema.get("properties") and text in ("", "null"):
        return None  # Nothing for a tool that takes nothing (field note 6).
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        cut = reply.finish_reason == "length" or _is_cut(text, error)
        cls = ReplyClass.TRUNCATED if text and cut else ReplyClass.INVALID_ARGUMENTS
        return judged(cls, f"arguments are no JSON: {_quoted(text)}")
    if not isinstance(value, dict):
        return judged(ReplyClass.INVALID_ARGUMENTS, f"arguments are no object: {_quoted(text)}")
    try:
        misfit = next(_validator(json.dumps(schema)).iter_errors(value), None)
    except RecursionError:
        return judged(ReplyClass.INVALID_ARGUMENTS, f"arguments too deep: {_quoted(text)}")
    if misfit is None:
        return None
    told = f"{_quoted(text)} does not fit the schema: {_quoted(misfit.message)}"
    return judged(ReplyClass.INVALID_ARGUMENTS, told)


def _is_cut(text: str, error: ValueError | RecursionError) -> bool:
    """Whether the text stops being JSON only because it stops (field note 7)."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text)


@cache
def _validator(schema: str) -> Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def preload() -> None:
    """Import what judging needs, so that it costs nothing once a lane is up."""
    _validator("{}")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= QUOTE_CHARS else text[:QUOTE_CHARS] + "…")
