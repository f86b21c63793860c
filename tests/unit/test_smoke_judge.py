"""The judge against a corpus of replies, good and bad: `tests/corpus/replies/`.

A file holds `about`, the `class` and `outcome` (where it is not the class's own) that are right,
`tool` (what was asked for; get_status when absent, null for "words will do"), and the `reply`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanectl.core.lane import SmokeSettings
from lanectl.core.probes import ProbeMaker
from lanectl.core.smoke import DETAIL_CHARS, PING, STATUS, ProbeRequest, Reply, ToolCall, judge
from lanectl.core.verdict import COULD_NOT_TELL, ReplyClass, Result

REPLIES = Path(__file__).parents[1] / "corpus" / "replies"
CASES = sorted(REPLIES.glob("*.json"), key=lambda path: path.name)
MAKER = ProbeMaker("m", SmokeSettings())


def request(tool: str | None = STATUS) -> ProbeRequest:
    if tool is None:
        return MAKER.after_result("after-result", "n")
    return MAKER.call("call", "n", tool=tool)


def reply(**fields: Any) -> Reply:
    calls = [ToolCall(call["name"], call["arguments"]) for call in fields.pop("tool_calls", ())]
    return Reply(tool_calls=tuple(calls), **fields)


def own_outcome(cls: ReplyClass) -> Result:
    if cls is ReplyClass.OK:
        return Result.PASSED
    return Result.ERROR if cls in COULD_NOT_TELL else Result.FAILED


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    case: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wanted = ReplyClass(case["class"])
    said = judge(reply(**case["reply"]), request(case.get("tool", STATUS)))
    assert (said.cls, said.outcome) == (
        wanted,
        Result(case.get("outcome", own_outcome(wanted))),
    ), said.detail
    assert said.detail.isprintable()
    assert 0 < len(said.detail) <= DETAIL_CHARS


def test_the_corpus_holds_every_class_that_the_judge_can_give() -> None:
    seen = {json.loads(path.read_text(encoding="utf-8"))["class"] for path in CASES}
    # What process answers is for the caller of a gate to say, not for the judge.
    assert seen == {cls.value for cls in ReplyClass} - {ReplyClass.WRONG_PROCESS.value}


def test_text_of_the_lane_cannot_steer_a_terminal_or_show_a_secret() -> None:
    text = "\x1b[2J\x1b]0;owned\x07\u202e --api-key hunter2 " + "x" * 500
    for bad in (
        Reply(status=200, content=text, finish_reason="stop"),
        Reply(status=502, body_excerpt=text),
        Reply(status=200, finish_reason="stop", tool_calls=(ToolCall(text, "{}"),)),
        Reply(status=200, finish_reason="stop", tool_calls=(ToolCall(STATUS, text),)),
        Reply(status=200, fault="garbled", body_excerpt=text),
    ):
        detail = judge(bad, request()).detail
        assert detail.isprintable()
        assert len(detail) <= DETAIL_CHARS
        assert "hunter2" not in detail


def test_what_is_asked_for_is_what_was_sent() -> None:
    ping = reply(
        status=200, finish_reason="tool_calls", tool_calls=[{"name": PING, "arguments": ""}]
    )
    assert judge(ping, request(PING)).outcome is Result.PASSED
    assert judge(ping, request(STATUS)).cls is ReplyClass.WRONG_TOOL
    assert judge(ping, request(None)).outcome is Result.PASSED
    bare = replace(request(None), body={"messages": []})
    assert judge(ping, bare).cls is ReplyClass.WRONG_TOOL


def test_importing_the_judge_loads_nothing_slow() -> None:
    slow = ["jsonschema", "aiohttp", "prometheus_client", "asyncio"]
    code = (
        "import sys, lanectl.core.probes, lanectl.core.smoke, lanectl.core.repetition\n"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
