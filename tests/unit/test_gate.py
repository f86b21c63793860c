"""Gates against a scripted lane: what is sent, when it ends, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lanectl.app.gate import GateRun, one_token, run_gate
from lanectl.core import probes
from lanectl.core.lane import Lane, SmokeSettings
from lanectl.core.smoke import PING, STATUS, ProbeRequest, Reply, ToolCall
from lanectl.core.verdict import ReplyClass, Result
from lanectl.ports import Answer, Metrics, Model

SWITCH_STEPS = [
    "cold",
    "hot",
    "prefix-a",
    "prefix-b",
    "prefix-a-again",
    "thinking-on",
    "thinking-off",
    "after-result",
    "no-arguments",
    "long-1",
    "long-2",
    "cancelled",
    "settled",
]


class FakeClock:
    """Time that passes only when somebody sleeps, or a reply takes long."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def good(request: ProbeRequest) -> Reply:
    """What a healthy lane answers; a token a character, as a lane of bytes would count."""
    prompt = probes.text_chars(request.body["messages"]) + 900
    usage = {"prompt_tokens": prompt, "completion_tokens": 20}
    whole = Reply(status=200, finish_reason="tool_calls", elapsed_s=0.5, usage=usage)
    if request.cancel_after:
        return replace(whole, fault="cancelled", finish_reason=None, content="Well, I")
    arguments = '{"service": "lane"}' if request.tool != PING else "{}"
    return replace(whole, tool_calls=(ToolCall(request.tool or STATUS, arguments),))


@dataclass
class FakeLane:
    """A lane whose replies a test scripts by the probe's name, and whose gauges it holds.

    load: what the gauges show while nothing of ours is there, one reading after the other, the
    last for ever; None for a lane without metrics.
    """

    clock: FakeClock
    answers: dict[str, Callable[[ProbeRequest], Reply]] = field(default_factory=dict)
    load: list[float] | None = field(default_factory=lambda: [0.0])
    listed: list[Model] | Answer = field(default_factory=lambda: [Model("m", 32768)])
    hits_move: bool = True
    metrics_fields: dict[str, Any] = field(default_factory=dict)
    iterations: float = 0.0
    sent: list[list[ProbeRequest]] = field(default_factory=list)
    hits: float = 0.0

    def health(self, *, timeout_s: float = 2.0) -> Answer:
        return Answer(200)

    def version(self, *, timeout_s: float = 2.0) -> str | None:
        return "0.27.1"

    def models(self, *, timeout_s: float = 2.0) -> list[Model] | Answer:
        return self.listed

    def metrics(self, *, timeout_s: float = 2.0) -> Metrics | None:
        if self.load is None:
            return None
        self.iterations += 1
        running = self.load.pop(0) if len(self.load) > 1 else self.load[0]
        told = Metrics(
            running=running,
            waiting=0.0,
            prefix_cache_queries=self.hits * 2,
            prefix_cache_hits=self.hits,
            iteration_tokens=self.iterations,
        )
        return replace(told, **self.metrics_fields)

    def chat(self, requests: Sequence[ProbeRequest], stop: Callable[[], bool]) -> list[Reply]:
        self.sent.append(list(requests))
        stopped = stop()
        replies = []
        for request in requests:
            reply = self.answers.get(request.name, good)(request)
            replies.append(replace(reply, fault="stopped") if stopped else reply)
        self.clock.at += max(reply.elapsed_s for reply in replies)
        self.hits += 16 * self.hits_move
        return replies

    def close(self) -> None: ...

    def names(self) -> list[str]:
        return [request.name for batch in self.sent for request in batch]

    def request(self, name: str) -> ProbeRequest:
        return next(r for batch in self.sent for r in batch if r.name == name)


SMOKE = SmokeSettings(concurrency=2, prompt_chars=20000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def api(clock: FakeClock) -> FakeLane:
    return FakeLane(clock)


def lane(**fields: Any) -> Lane:
    settings = replace(SMOKE, **fields)
    return Lane("q", "local", "/l.sh", "unix:///s", "p", "http://127.0.0.1:1/v1", smoke=settings)


def run(api: FakeLane, gate: str = "switch", **fields: Any) -> GateRun:
    keys = {"stop", "progress", "nonce"}
    options = {key: fields.pop(key) for key in keys & set(fields)}
    return run_gate(api, api.clock, lane(**fields), gate, **{"nonce": "n0", **options})


def told(found: GateRun, name: str) -> str:
    return next(p.detail for p in found.verdict.probes if p.name == name)


def faulty(**fields: Any) -> Callable[[ProbeRequest], Reply]:
    return lambda request: replace(good(request), tool_calls=(), **fields)


# ------------------------------------------------------------------------------- what is sent


def test_the_quick_gate_is_one_call_with_thinking_as_it_is(api: FakeLane) -> None:
    found = run(api, "quick")
    assert found.verdict.passed
    assert (found.requests, found.cut, found.foreign_load) == (1, False, 0.0)
    (request,) = api.sent[0]
    assert request.body["model"] == "m"
    assert request.body["tool_choice"] == "auto"
    assert request.body["temperature"] == 0
    assert request.body["max_tokens"] == SMOKE.thinking_max_tokens
    assert request.body["stream_options"] == {"include_usage": True}
    assert "chat_template_kwargs" not in request.body
    assert 'Call the tool get_status with service "lane"' in request.body["messages"][-1]["content"]
    tools = {
        tool["function"]["name"]: tool["function"]["parameters"] for tool in request.body["tools"]
    }
    assert tools[STATUS]["required"] == ["service"]
    assert tools[PING]["properties"] == {}


def test_the_switch_gate_sends_every_probe_of_the_design(api: FakeLane) -> None:
    found = run(api)
    assert [probe.name for probe in found.verdict.probes] == SWITCH_STEPS
    assert found.verdict.passed, found.verdict
    assert found.requests == len(SWITCH_STEPS) - 1
    assert api.request("hot").body == api.request("cold").body
    assert api.request("prefix-a").body == api.request("prefix-a-again").body
    a, b = (api.request(name).body["messages"] for name in ("prefix-a", "prefix-b"))
    assert a[0] == b[0] == api.request("cold").body["messages"][0]
    assert a[1] != b[1]
    on, off = api.request("thinking-on").body, api.request("thinking-off").body
    assert on["chat_template_kwargs"] == {"enable_thinking": True}
    assert off["chat_template_kwargs"] == {"enable_thinking": False}
    assert (on["max_tokens"], off["max_tokens"]) == (SMOKE.thinking_max_tokens, SMOKE.max_tokens)
    roles = [message["role"] for message in api.request("after-result").body["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    assert "Call the tool ping" in api.request("no-arguments").body["messages"][-1]["content"]
    assert [[r.name for r in batch] for batch in api.sent if len(batch) > 1] == [
        ["long-1", "long-2"]
    ]
    assert probes.text_chars(api.request("long-1").body["messages"]) >= 20000
    assert api.request("cancelled").cancel_after
    assert found.cache["before"]["hits"] == 0.0
    assert found.cache["after"]["hits"] == 16.0 * len(api.sent)


def test_no_cache_can_have_seen_a_cold_prompt(api: FakeLane) -> None:
    run(api, "quick", nonce=None)
    run(api, "quick", nonce=None)
    run(api, "switch")
    firsts = [batch[0].body["messages"][0]["content"][:40] for batch in api.sent[:3]]
    assert len(set(firsts)) == 3
    new = {
        api.request(n).body["messages"][0]["content"][:40]
        for n in ("long-1", "long-2", "cancelled")
    }
    assert len(new | set(firsts)) == 6


@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192, 40000])
def test_every_request_fits_a_lane_of_bytes(api: FakeLane, length: int) -> None:
    """900 tokens of tools and template, and each character a token: nothing may go beyond."""
    api.listed = [Model("m", length)]
    found = run(api, prompt_chars=40000)
    assert found.verdict.passed
    for batch in api.sent:
        for request in batch:
            prompt = probes.text_chars(request.body["messages"]) + 900
            assert request.body["max_tokens"] >= probes.LEAST_TOKENS
            if length > 1024:  # there not even the template leaves room to speak of
                assert prompt + request.body["max_tokens"] <= length, request.name
    if length >= 4096:
        long = probes.text_chars(api.request("long-1").body["messages"])
        assert long > probes.text_chars(api.request("cold").body["messages"])


@pytest.mark.parametrize("length", [32768, 262144])
def test_a_lane_of_words_is_not_cut(api: FakeLane, length: int) -> None:
    def words(request: ProbeRequest) -> Reply:
        tokens = probes.text_chars(request.body["messages"]) // 4 + 250
        return replace(good(request), usage={"prompt_tokens": tokens})

    api.listed = [Model("m", length)]
    api.answers = {"cold": words}
    assert run(api, prompt_chars=40000).verdict.passed
    long = api.request("long-1").body
    assert probes.text_chars(long["messages"]) >= 40000
    assert long["max_tokens"] == SMOKE.thinking_max_tokens


def test_prompts_fill_the_blocks_of_a_large_cache_block(api: FakeLane) -> None:
    api.metrics_fields = {"cache_config": {"block_size": "784"}}
    run(api, "quick")
    assert probes.text_chars(api.sent[0][0].body["messages"]) > 2 * 784 * 4


def test_long_prompts_that_do_not_fit_are_tried_once_more_much_shorter(api: FakeLane) -> None:
    def refused(request: ProbeRequest) -> Reply:
        if probes.text_chars(request.body["messages"]) > 10000:
            return Reply(status=400, body_excerpt="maximum context length")
        return good(request)

    api.answers = {"long-1": refused, "long-2": refused}
    found = run(api)
    assert found.verdict.passed
    assert api.names().count("long-1") == 2
    assert "2 at once" in told(found, "long-1")


@pytest.mark.parametrize("text", ["a" * 8, "b-1-2"])
def test_filler_is_plain_and_its_own(text: str) -> None:
    assert probes.filler(text, 3000) == probes.filler(text, 3000)
    assert len(probes.filler(text, 3000)) == 3000
    assert probes.filler(text, 3000).isascii()
    assert probes.filler(text + "x", 3000)[:20] != probes.filler(text, 3000)[:20]


# ------------------------------------------------------------------------------ when it ends


def test_a_failed_probe_ends_the_gate_and_it_still_settles(api: FakeLane) -> None:
    api.answers = {"prefix-b": faulty(content="!" * 300, finish_reason="length")}
    found = run(api)
    assert (found.verdict.outcome, found.verdict.cls) == (Result.FAILED, ReplyClass.DEGENERATE)
    assert [p.name for p in found.verdict.probes] == [
        "cold",
        "hot",
        "prefix-a",
        "prefix-b",
        "settled",
    ]


@pytest.mark.parametrize(
    ("listed", "cls"),
    [
        (Answer(401, "no"), ReplyClass.CLIENT_ERROR),
        (Answer(404, "no"), ReplyClass.CLIENT_ERROR),
        (Answer(500, "no"), ReplyClass.HTTP_ERROR),
        (Answer(200, "<html>", "no list of models"), ReplyClass.HTTP_ERROR),
        (Answer(None, error="refused"), ReplyClass.UNREACHABLE),
        ([], ReplyClass.CLIENT_ERROR),
    ],
)
def test_without_a_model_nothing_is_sent(
    api: FakeLane, listed: list[Model] | Answer, cls: ReplyClass
) -> None:
    api.listed = listed
    found = run(api)
    assert found.verdict.cls is cls
    assert (found.requests, api.sent) == (0, [])


def test_a_configured_model_is_asked_for_whatever_is_listed(api: FakeLane) -> None:
    api.listed = Answer(404, "no such page")
    named = replace(lane(), model="q")
    assert run_gate(api, api.clock, named, "quick").verdict.passed
    assert api.sent[0][0].body["model"] == "q"
    api.listed = [Model("other", 1), Model("q", 4096)]
    assert run_gate(api, api.clock, named, "quick").verdict.passed
    assert api.sent[1][0].body["max_tokens"] < 4096


def test_told_to_stop_it_cuts_and_says_so(api: FakeLane) -> None:
    found = run(api, stop=lambda: len(api.sent) >= 3)
    assert found.cut
    assert found.verdict.outcome is Result.INCONCLUSIVE
    assert api.names() == ["cold", "hot", "prefix-a"]
    assert "settled" not in [p.name for p in found.verdict.probes]


def test_the_deadline_ends_it_without_a_word_against_the_lane(api: FakeLane) -> None:
    def slow(request: ProbeRequest) -> Reply:
        return replace(good(request), elapsed_s=20.0)

    api.answers = dict.fromkeys(SWITCH_STEPS, slow)
    found = run(api, deadline_s=70.0)
    assert found.verdict.outcome is Result.INCONCLUSIVE
    assert api.names() == ["cold", "hot", "prefix-a", "prefix-b"]
    # The last one had only what was left, and would have been excused for it.
    assert api.sent[-1][0].timeout_s == pytest.approx(10.0, abs=1)


def test_a_time_limit_that_the_gate_cut_short_is_inconclusive(api: FakeLane) -> None:
    def late(request: ProbeRequest) -> Reply:
        return replace(good(request), fault="timed_out", elapsed_s=request.timeout_s)

    api.answers = {"cold": late}
    assert run(api, deadline_s=300.0).verdict.outcome is Result.FAILED
    assert run(api, deadline_s=30.0).verdict.outcome is Result.INCONCLUSIVE


# ----------------------------------------------------------------------------------- the cap


def test_a_spent_cap_is_tried_once_more_with_four_times_as_much(api: FakeLane) -> None:
    def thinks(request: ProbeRequest) -> Reply:
        if request.body["max_tokens"] > 2048:
            return good(request)
        return replace(good(request), tool_calls=(), reasoning="Hm.", finish_reason="length")

    api.answers = {"tool-call": thinks}
    found = run(api, "quick", thinking_max_tokens=1024)
    assert found.verdict.passed
    assert [batch[0].body["max_tokens"] for batch in api.sent] == [1024, 4096]


def test_a_cap_spent_twice_is_reported_as_such(api: FakeLane) -> None:
    api.answers = {"tool-call": faulty(reasoning="Hm.", finish_reason="length")}
    found = run(api, "quick")
    assert (found.verdict.outcome, found.verdict.cls) == (
        Result.ERROR,
        ReplyClass.BUDGET_EXHAUSTED,
    )
    assert found.requests == 2


def test_a_flood_that_shows_only_with_the_larger_cap_is_degenerate(api: FakeLane) -> None:
    def flood(request: ProbeRequest) -> Reply:
        text = "think" * (request.body["max_tokens"] // 5)
        return replace(good(request), tool_calls=(), reasoning=text, finish_reason="length")

    api.answers = {"tool-call": flood}
    found = run(api, "quick", thinking_max_tokens=512)
    assert found.verdict.cls is ReplyClass.DEGENERATE


def test_a_retry_that_runs_out_of_time_leaves_the_first_word_standing(api: FakeLane) -> None:
    def thinks(request: ProbeRequest) -> Reply:
        fault = "timed_out" if request.body["max_tokens"] > 4096 else ""
        finish = None if fault else "length"
        return replace(
            good(request), tool_calls=(), reasoning="Hm.", finish_reason=finish, fault=fault
        )

    api.answers = {"tool-call": thinks}
    assert run(api, "quick").verdict.cls is ReplyClass.BUDGET_EXHAUSTED


def test_a_call_cut_by_the_cap_is_tried_again_whatever_its_finish_says(api: FakeLane) -> None:
    def cut(request: ProbeRequest) -> Reply:
        cap = request.body["max_tokens"]
        if cap > 4096:
            return good(request)
        call = ToolCall(STATUS, '{"service": "la')
        return replace(good(request), tool_calls=(call,), usage={"completion_tokens": cap})

    api.answers = {"tool-call": cut}
    assert run(api, "quick").verdict.passed
    assert len(api.sent) == 2


# --------------------------------------------------------------------------- hot, busy, settled


def test_a_hot_probe_that_hit_no_cache_is_inconclusive(api: FakeLane) -> None:
    api.hits_move = False
    found = run(api)
    assert found.verdict.outcome is Result.INCONCLUSIVE
    assert [p.name for p in found.verdict.probes if p.outcome is not Result.PASSED] == ["hot"]
    assert "did not move" in told(found, "hot")
    assert len(found.verdict.probes) == len(SWITCH_STEPS)  # it does not end the gate


def test_the_hit_counter_may_lag_behind_the_reply(api: FakeLane) -> None:
    late = [0.0, 0.0, 0.0, 0.0, 0.0]  # before the gate, cold and hot twice, and right after hot

    def hits() -> float:
        return late.pop(0) if late else 32.0

    metrics = api.metrics
    api.metrics = lambda **_: replace(metrics(), prefix_cache_hits=hits())  # type: ignore[type-var, method-assign]
    assert run(api).verdict.passed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prefix_cache_hits": None, "prefix_cache_queries": None}, "no prefix-cache hit counter"),
        ({"cache_config": {"enable_prefix_caching": "False"}}, "prefix caching is off"),
    ],
)
def test_without_a_cache_to_hit_the_reply_alone_is_judged(
    api: FakeLane, fields: dict[str, Any], words: str
) -> None:
    api.hits_move = False
    api.metrics_fields = fields
    found = run(api)
    assert found.verdict.passed
    assert words in told(found, "hot")


def test_a_lane_without_metrics_is_judged_by_its_replies(api: FakeLane) -> None:
    api.load = None
    found = run(api)
    assert found.verdict.passed
    assert found.foreign_load is None
    assert "not judged" in told(found, "settled")
    assert found.cache["after"] == {"queries": None, "hits": None}


def test_busy_is_not_dead(api: FakeLane) -> None:
    api.load = [3.0]
    api.answers = {"tool-call": faulty(fault="timed_out", finish_reason=None, elapsed_s=60.0)}
    found = run(api, "quick")
    assert (found.verdict.outcome, found.verdict.cls) == (
        Result.INCONCLUSIVE,
        ReplyClass.TIMED_OUT,
    )
    assert found.foreign_load == 3.0


@pytest.mark.parametrize(
    ("load", "fields"),
    [([0.0], {}), ([3.0], {"iteration_tokens": 7.0}), ([3.0], {"iteration_tokens": None})],
)
def test_too_slow_is_a_failure_unless_the_engine_works_for_others(
    api: FakeLane, load: list[float], fields: dict[str, Any]
) -> None:
    api.load, api.metrics_fields = load, fields
    api.answers = {"tool-call": faulty(fault="stalled", finish_reason=None)}
    assert run(api, "quick").verdict.outcome is Result.FAILED


def test_other_peoples_load_is_recorded_and_not_judged(api: FakeLane) -> None:
    api.load = [2.0, 5.0, 2.0, 5.0, 1.0]
    found = run(api)
    assert found.verdict.passed
    assert found.foreign_load == 5.0
    assert "1 requests of others" in told(found, "settled")


class Lingering(FakeLane):
    """Its gauges show `left` requests from the cancelled probe on, for so many readings."""

    left = 1.0
    readings = 10**9

    def metrics(self, *, timeout_s: float = 2.0) -> Metrics | None:
        seen = super().metrics()
        if "cancelled" in self.names() and self.readings and seen:
            self.readings -= 1
            return replace(seen, running=(seen.running or 0) + self.left)
        return seen


def test_a_cancelled_request_that_stays_in_the_gauges_fails(clock: FakeClock) -> None:
    found = run(Lingering(clock))
    assert (found.verdict.outcome, found.verdict.cls) == (Result.FAILED, ReplyClass.STALLED)
    assert "1 requests still on the lane" in told(found, "settled")


def test_a_cancelled_request_may_take_a_moment_to_leave(clock: FakeClock) -> None:
    api = Lingering(clock)
    api.readings = 20
    assert run(api).verdict.passed


def test_more_load_than_others_had_is_inconclusive(clock: FakeClock) -> None:
    api = Lingering(clock, load=[2.0])
    assert run(api).verdict.outcome is Result.INCONCLUSIVE


def test_what_just_ended_is_not_taken_for_other_peoples(clock: FakeClock) -> None:
    """A gauge that lags one reading behind our own requests must not excuse a lingering one."""

    class Lagging(Lingering):
        seen = 0

        def metrics(self, *, timeout_s: float = 2.0) -> Metrics | None:
            told = super().metrics()
            fresh, self.seen = len(self.sent) > self.seen, len(self.sent)
            return replace(told, running=1.0) if fresh and told else told

    found = run(Lagging(clock))
    assert found.foreign_load == 0.0
    assert found.verdict.outcome is Result.FAILED


# ---------------------------------------------------------------------------------------- soak


def test_soak_goes_on_for_its_time_and_folds_what_it_saw(api: FakeLane) -> None:
    began = api.clock.monotonic()
    found = run(api, "soak", soak_s=60.0)
    assert found.verdict.passed
    assert 60.0 <= api.clock.monotonic() - began <= 60.0 + SMOKE.request_timeout_s
    assert sorted(p.name for p in found.verdict.probes) == sorted(SWITCH_STEPS)
    assert len({batch[0].body["messages"][0]["content"] for batch in api.sent}) > 8
    assert all(len(batch) == 2 for batch in api.sent)
    count = api.names().count("cold")
    assert count > 4
    assert told(found, "cold").startswith(f"{count} of {count} passed; ")


def test_soak_ends_at_the_first_failure_and_names_it(api: FakeLane) -> None:
    def later(request: ProbeRequest) -> Reply:
        if api.names().count("thinking-on") > 4:
            return faulty(content="!" * 300)(request)
        return good(request)

    api.answers = {"thinking-on": later}
    found = run(api, "soak", soak_s=600.0)
    assert found.verdict.cls is ReplyClass.DEGENERATE
    assert told(found, "thinking-on").startswith("4 of 6 passed; '!' x 256")


def test_a_soak_too_short_for_one_round_proves_nothing(api: FakeLane) -> None:
    def slow(request: ProbeRequest) -> Reply:
        return replace(good(request), elapsed_s=30.0)

    api.answers = dict.fromkeys(SWITCH_STEPS, slow)
    assert run(api, "soak", soak_s=10.0).verdict.outcome is Result.INCONCLUSIVE


# ----------------------------------------------------------------------------------- one token


def test_one_token(api: FakeLane) -> None:
    api.answers = {"one-token": lambda _: Reply(status=200, finish_reason="length")}
    assert one_token(api, api.clock, lane()) == ""
    body = api.sent[0][0].body
    assert (body["max_tokens"], "tools" in body) == (1, False)
    assert api.sent[0][0].timeout_s <= 30


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=200, fault="timed_out"),
        Reply(status=503, body_excerpt="starting"),
        Reply(status=200, finish_reason="abort"),
        Reply(fault="unreachable"),
    ],
)
def test_no_token_says_why(api: FakeLane, reply: Reply) -> None:
    api.answers = {"one-token": lambda _: reply}
    assert one_token(api, api.clock, lane()).startswith("no token generated: ")


def test_no_model_no_token(api: FakeLane) -> None:
    api.listed = Answer(None, error="refused")
    assert "refused" in one_token(api, api.clock, lane())


def test_progress_tells_each_probe(api: FakeLane) -> None:
    said: list[str] = []
    run(api, progress=said.append)
    assert [line.split(":")[0] for line in said] == SWITCH_STEPS
