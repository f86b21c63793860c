"""What a probe and a gate may say: passed, failed, error (could not tell) or inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    INCONCLUSIVE = "inconclusive"


class ReplyClass(StrEnum):
    """Design section 5. `ok` also stands for a probe that is inconclusive by its setting alone."""

    OK = "ok"
    DEGENERATE = "degenerate"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TRUNCATED = "truncated"
    NO_TOOL_CALL = "no_tool_call"
    WRONG_TOOL = "wrong_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    TOOL_TEXT_LEAK = "tool_text_leak"
    EMPTY = "empty"
    HTTP_ERROR = "http_error"
    STREAM_ABORTED = "stream_aborted"
    STALLED = "stalled"
    TIMED_OUT = "timed_out"
    CLIENT_ERROR = "client_error"
    UNREACHABLE = "unreachable"
    WRONG_PROCESS = "wrong_process"


COULD_NOT_TELL = frozenset(
    {ReplyClass.CLIENT_ERROR, ReplyClass.UNREACHABLE, ReplyClass.BUDGET_EXHAUSTED}
)
"""Classes that speak against our probe or the way to the lane, not against its profile."""

PROBE_AT_FAULT = frozenset({ReplyClass.CLIENT_ERROR, ReplyClass.BUDGET_EXHAUSTED})
"""A baseline with one of these aborts the switch: the same probe could judge nothing later."""


@dataclass(frozen=True)
class ProbeResult:
    """One judged probe. elapsed_s: seconds; detail: one line for the operator, already masked."""

    name: str
    cls: ReplyClass
    outcome: Result
    elapsed_s: float = 0.0
    detail: str = ""
    first_token_s: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What a gate says as a whole: the outcome and class of its worst probe."""

    outcome: Result
    cls: ReplyClass
    probes: tuple[ProbeResult, ...] = ()

    @property
    def passed(self) -> bool:
        return self.outcome is Result.PASSED


_WORST_FIRST = (Result.FAILED, Result.ERROR, Result.INCONCLUSIVE, Result.PASSED)


def combine(probes: Sequence[ProbeResult]) -> Verdict:
    """The verdict of a gate: a failure outranks `error`, which outranks `inconclusive`.

    A gate that ran no probe is an error: it proves nothing.
    """
    for outcome in _WORST_FIRST:
        for probe in probes:
            if probe.outcome is outcome:
                return Verdict(outcome, probe.cls, tuple(probes))
    return Verdict(Result.ERROR, ReplyClass.UNREACHABLE)
