"""Runs a gate against a lane: the probes of design section 5, in order, each bounded.

`run_gate` sends and judges; it does not look at processes (`wrong_process` is its caller's word).
The first step that does not come back right ends the gate, so that a bad switch is undone
quickly; only `settled` still runs, so that nothing of ours is left on the lane. A step that is
merely inconclusive does not end it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lanectl.core import probes
from lanectl.core.lane import Lane
from lanectl.core.probes import CANCEL_AFTER, ProbeMaker
from lanectl.core.smoke import PING, Judgement, ProbeRequest, Reply, judge, judged
from lanectl.core.verdict import ProbeResult, ReplyClass, Result, Verdict, combine
from lanectl.ports import Answer, Clock, LaneApi, Metrics, Model

MODELS_S = 10.0
"""Seconds that the list of models may take."""
SETTLE_S = 10.0
"""Seconds that our requests may take to leave the gauges; after a failure SETTLE_FAILED_S."""
SETTLE_FAILED_S = 2.0
CACHE_COUNT_S = 2.0
"""Seconds that the cache counters may lag behind the reply they count."""
POLL_S = 0.1
ONE_TOKEN_S = 30.0

_ENDS_GATE = frozenset({Result.FAILED, Result.ERROR})
_CAP_AT_FAULT = frozenset({ReplyClass.BUDGET_EXHAUSTED, ReplyClass.TRUNCATED, ReplyClass.EMPTY})
_TOO_SLOW = frozenset({ReplyClass.TIMED_OUT, ReplyClass.STALLED})
_WORST_FIRST = (Result.FAILED, Result.ERROR, Result.INCONCLUSIVE, Result.PASSED)


def never() -> bool:
    return False


def ignore(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class GateRun:
    """What a gate found.

    foreign_load: the most requests of other people seen, None where the lane does not tell;
    cache: `before` and `after`, each with `queries` and `hits` of the prefix cache (or None);
    requests: how many were sent; cut: it was told to stop, so its verdict is not a whole one.
    """

    verdict: Verdict
    foreign_load: float | None
    cache: dict[str, dict[str, float | None]] = field(default_factory=dict)
    requests: int = 0
    cut: bool = False


def run_gate(
    api: LaneApi,
    clock: Clock,
    lane: Lane,
    gate: str,
    *,
    stop: Callable[[], bool] = never,
    progress: Callable[[str], None] = ignore,
    nonce: str | None = None,
) -> GateRun:
    """Run `quick`, `switch` or `soak`; takes at most `deadline_s` (soak: `soak_s` and a request).

    stop: asked several times a second; once true, everything of ours is cut.
    nonce: what makes the prompts of this run new to every cache; random when None.
    """
    return _Run(api, clock, lane, gate, stop, progress, nonce or uuid.uuid4().hex[:12]).whole()


def one_token(
    api: LaneApi,
    clock: Clock,
    lane: Lane,
    *,
    timeout_s: float | None = None,
    stop: Callable[[], bool] = never,
) -> str:
    """Have one token generated: "" when it was, else why not (for a person to read)."""
    fault = token_fault(api, clock, lane, timeout_s=timeout_s, stop=stop)
    return fault.detail if fault else ""


def token_fault(
    api: LaneApi,
    clock: Clock,
    lane: Lane,
    *,
    timeout_s: float | None = None,
    stop: Callable[[], bool] = never,
) -> Judgement | None:
    """Have one token generated: None when it was, else what came instead.

    Health is a real generation: all else answers while the engine is frozen (field note 12).
    timeout_s: for everything together; ONE_TOKEN_S or the lane's request limit when None.
    """
    limit = timeout_s or min(ONE_TOKEN_S, lane.smoke.request_timeout_s)
    began = clock.monotonic()
    model = _find_model(api, lane, min(limit, MODELS_S))
    if isinstance(model, Judgement):
        return model
    left = max(limit - (clock.monotonic() - began), POLL_S)
    request = probes.one_token(model.id, left)
    (reply,) = api.chat([request], stop)
    if reply.status == 200 and not reply.fault and reply.finish_reason in ("length", "stop"):
        return None
    fault = judge(reply, request)
    return fault._replace(detail=f"no token generated: {fault.detail}")


def _find_model(api: LaneApi, lane: Lane, timeout_s: float) -> Model | Judgement:
    """The model to ask for, or why there is none."""
    listed = api.models(timeout_s=timeout_s)
    if isinstance(listed, list):
        for model in listed:
            if lane.model in (None, model.id):
                return model
        listed = Answer(404, error="the lane lists no model")
    if listed.status is None:
        return judged(ReplyClass.UNREACHABLE, f"/models: {listed.error or 'no answer'}")
    if lane.model is not None:
        return Model(lane.model, None)  # The reply will tell what is wrong with it.
    fault = "garbled" if listed.status == 200 else ""
    reply = Reply(listed.status, fault=fault, body_excerpt=listed.body or listed.error)
    return judge(reply, ProbeRequest("models", {}, timeout_s, timeout_s))


def _cache(metrics: Metrics | None) -> dict[str, float | None]:
    return {
        "queries": metrics.prefix_cache_queries if metrics else None,
        "hits": metrics.prefix_cache_hits if metrics else None,
    }


class _Over(Exception):
    """The gate ends here."""


class _Run:
    """One run of one gate: what was sent, seen and judged so far."""

    def __init__(
        self,
        api: LaneApi,
        clock: Clock,
        lane: Lane,
        gate: str,
        stop: Callable[[], bool],
        progress: Callable[[str], None],
        nonce: str,
    ) -> None:
        self.api, self.clock, self.lane, self.gate = api, clock, lane, gate
        self.settings = lane.smoke
        self.stop, self.progress, self.nonce = stop, progress, nonce
        limit = self.settings.deadline_s
        if gate == "soak":
            limit = self.settings.soak_s + self.settings.request_timeout_s
        self.began = clock.monotonic()
        self.ends = self.began + limit
        self.results: list[ProbeResult] = []
        self.requests = 0
        self.foreign: float | None = None
        self.maker = ProbeMaker("", self.settings)
        self.rounds = 0
        """Rounds of a soak that are complete."""
        self.cut = False

    def whole(self) -> GateRun:
        before = self._look()
        try:
            self._prepare(before)
            if self.gate == "quick":
                self._one(self.maker.call("tool-call", self.nonce))
            elif self.gate == "soak":
                self._soak()
            else:
                self._switch(self.nonce, copies=1)
        except _Over:
            pass
        if self.gate != "quick" and self.requests and not self.cut:
            self._settle()
        after = self.api.metrics() if not self.cut else None
        return GateRun(
            combine(self.results),
            self.foreign,
            {"before": _cache(before), "after": _cache(after)},
            self.requests,
            self.cut,
        )

    def _prepare(self, metrics: Metrics | None) -> None:
        model = _find_model(self.api, self.lane, min(MODELS_S, self.settings.request_timeout_s))
        if isinstance(model, Judgement):
            self._add(ProbeResult("models", model.cls, model.outcome, 0.0, model.detail))
            raise _Over
        block = metrics.cache_config.get("block_size", "") if metrics else ""
        self.maker = replace(
            self.maker,
            model=model.id,
            max_model_len=model.max_model_len,
            block_tokens=int(block) if block.isdecimal() else self.maker.block_tokens,
        )

    # ----------------------------------------------------------------------------------- the steps

    def _switch(self, nonce: str, copies: int) -> None:
        """The switch gate once; `copies` of each single request at the same time."""
        nonces = [f"{nonce}-{copy}" for copy in range(copies)] if copies > 1 else [nonce]

        def each(build: Callable[[str], ProbeRequest]) -> list[Reply]:
            return self._step([build(own) for own in nonces])

        cold = self.maker.call("cold", nonces[0])
        tokens = each(partial(self.maker.call, "cold"))[0].usage.get("prompt_tokens")
        if isinstance(tokens, int) and tokens > 0:
            self.maker = self.maker.measured(cold, tokens)
        make = self.maker
        self._hot([make.call("hot", own) for own in nonces])
        each(partial(make.branch, "prefix-a", "a"))
        each(partial(make.branch, "prefix-b", "b"))
        each(partial(make.branch, "prefix-a-again", "a"))
        each(partial(make.call, "thinking-on", thinking=True))
        each(partial(make.call, "thinking-off", thinking=False))
        each(partial(make.after_result, "after-result"))
        each(partial(make.call, "no-arguments", tool=PING))
        self._long(nonce)
        each(lambda own: make.call("cancelled", f"{own}-x", cancel_after=CANCEL_AFTER))

    def _hot(self, requests: Sequence[ProbeRequest]) -> None:
        """The same prompts again: the cache has to have hit, or the probe proves nothing."""
        before = self.api.metrics()
        results = self._ask(requests)[1]
        caching = before is not None and before.prefix_cache_hits is not None
        if not caching:
            remark = "no prefix-cache hit counter: judged by the reply alone"
        elif before and before.cache_config.get("enable_prefix_caching") == "False":
            remark = "prefix caching is off: judged by the reply alone"
        else:
            hits = self._hits_since(before)
            remark = f"{hits:g} tokens from the prefix cache"
            if not hits:
                remark = "the prefix-cache hit counter did not move: not proven hot"
                results = [
                    replace(each, outcome=Result.INCONCLUSIVE)
                    if each.outcome is Result.PASSED
                    else each
                    for each in results
                ]
        self._finish([replace(each, detail=f"{each.detail}; {remark}") for each in results])

    def _hits_since(self, before: Metrics | None) -> float:
        """How far the hit counter moved; it may lag a moment behind the reply."""
        was = (before.prefix_cache_hits if before else None) or 0.0
        until = self.clock.monotonic() + CACHE_COUNT_S
        while True:
            now = self.api.metrics()
            hits = ((now.prefix_cache_hits if now else None) or 0.0) - was
            # A counter that went back belongs to a server that was restarted meanwhile.
            if hits > 0 or self.clock.monotonic() >= until or self.stop():
                return max(hits, 0.0)
            self.clock.sleep(POLL_S)

    def _long(self, nonce: str) -> None:
        """Long prompts at the same time; cut once more where the lane says they do not fit."""
        count = self.settings.concurrency
        share = 1.0
        while True:
            requests = [
                self.maker.long(f"long-{number}", f"{nonce}-long-{number}", share=share)
                for number in range(1, count + 1)
            ]
            replies, results = self._ask(requests)
            if share < 1 or not any(reply.status == 400 for reply in replies):
                break
            share = 0.25
        length = probes.text_chars(requests[0].body["messages"])
        told = f"{count} at once, {length} characters each"
        self._finish([replace(each, detail=f"{each.detail}; {told}") for each in results])

    def _soak(self) -> None:
        """The switch gate over and over, each request as often as the concurrency says.

        Results are folded by name, so that hours of it stay a short list.
        """
        folded: dict[str, tuple[int, int, ProbeResult]] = {}
        try:
            while True:
                self.progress(f"soak: round {self.rounds + 1}")
                try:
                    self._switch(f"{self.nonce}-{self.rounds}", self.settings.concurrency)
                finally:
                    for result in self.results:
                        _fold(folded, result)
                    self.results = []
                self.rounds += 1
        finally:
            self.results = [
                replace(worst, detail=f"{passed} of {count} passed; {worst.detail}")
                for count, passed, worst in folded.values()
            ]

    def _settle(self) -> None:
        """Wait until nothing of ours is in the gauges; other people's load is only recorded.

        Ours are gone as soon as the load is not above what was seen while we had nothing there.
        """
        floor = self.foreign or 0.0
        failed = any(result.outcome in _ENDS_GATE for result in self.results)
        began = self.clock.monotonic()
        until = began + (SETTLE_FAILED_S if failed else SETTLE_S)
        while True:
            metrics = self.api.metrics()
            load = metrics.load if metrics else None
            waited = self.clock.monotonic() - began
            if load is None or load <= floor or self.clock.monotonic() >= until:
                break
            if self._told_to_stop():
                return
            self.clock.sleep(POLL_S)
        judgement = judged(ReplyClass.OK, "our requests are gone from the gauges")
        if load is None:
            judgement = judged(ReplyClass.OK, "the lane tells no load, so this was not judged")
        elif load > floor:
            told = f"{load:g} requests still on the lane after {waited:.1f} s"
            outcome = None
            if floor:
                told += f", more than the {floor:g} that others had there"
                outcome = Result.INCONCLUSIVE
            judgement = judged(ReplyClass.STALLED, told, outcome)
        elif load:
            judgement = judged(
                ReplyClass.OK, f"{load:g} requests of others are there, none of ours"
            )
        self._add(
            ProbeResult("settled", judgement.cls, judgement.outcome, waited, judgement.detail)
        )

    # ----------------------------------------------------------------------------- asking, judging

    def _one(self, request: ProbeRequest) -> Reply:
        return self._step([request])[0]

    def _step(self, requests: Sequence[ProbeRequest]) -> list[Reply]:
        """Ask, judge, and end the gate where that was not right."""
        replies, results = self._ask(requests)
        self._finish(results)
        return replies

    def _finish(self, results: Sequence[ProbeResult]) -> None:
        for result in results:
            self._add(result)
        if self.cut or any(result.outcome in _ENDS_GATE for result in results):
            raise _Over

    def _ask(self, requests: Sequence[ProbeRequest]) -> tuple[list[Reply], list[ProbeResult]]:
        """Send all at once, judge each, and try those again whose cap was too small."""
        self._heed_stop(requests[0].name)
        before = self._look()
        replies, judgements = self._send(requests)
        wider = {
            number: wide
            for number, (request, judgement) in enumerate(zip(requests, judgements, strict=True))
            if (judgement.cls in _CAP_AT_FAULT and _met_cap(replies[number], request))
            and (wide := self.maker.wider(request))
        }
        if wider and not self._told_to_stop() and self._time_left() > 0:
            caps = {wide.body["max_tokens"] for wide in wider.values()}
            self.progress(f"{requests[0].name}: cap spent, once more with {max(caps)} tokens")
            again, judged_again = self._send(list(wider.values()))
            for number, reply, judgement in zip(wider, again, judged_again, strict=True):
                if judgement.cls is ReplyClass.TIMED_OUT:
                    continue  # The larger cap asked for more time than there is: the first stands.
                replies[number], judgements[number] = reply, judgement
        if any(judgement.cls in _TOO_SLOW for judgement in judgements):
            judgements = self._excuse(judgements, before)
        return replies, [
            ProbeResult(
                request.name,
                judgement.cls,
                judgement.outcome,
                reply.elapsed_s,
                judgement.detail,
                reply.first_token_s,
            )
            for request, reply, judgement in zip(requests, replies, judgements, strict=True)
        ]

    def _send(self, requests: Sequence[ProbeRequest]) -> tuple[list[Reply], list[Judgement]]:
        """Send within the gate's own deadline; a limit that it cut short speaks against nobody."""
        left = max(self._time_left(), POLL_S)
        bounded = [
            replace(each, timeout_s=min(each.timeout_s, left), stall_s=min(each.stall_s, left))
            for each in requests
        ]
        self.requests += len(requests)
        replies = self.api.chat(bounded, self._told_to_stop)
        judgements = [judge(*pair) for pair in zip(replies, bounded, strict=True)]
        for number, judgement in enumerate(judgements):
            if judgement.cls is ReplyClass.TIMED_OUT and left < requests[number].timeout_s:
                told = f"{judgement.detail}: the gate's own deadline came first"
                judgements[number] = judged(judgement.cls, told, Result.INCONCLUSIVE)
        return replies, judgements

    def _excuse(self, judgements: Sequence[Judgement], before: Metrics | None) -> list[Judgement]:
        """Busy is not dead (field note 12): too slow under other people's load proves nothing."""
        after = self.api.metrics()
        if not before or not after or not self.foreign:
            return list(judgements)
        was, now = before.iteration_tokens, after.iteration_tokens
        if was is None or now is None or now <= was:
            return list(judgements)
        return [
            judged(each.cls, f"{each.detail}; the engine is busy for others", Result.INCONCLUSIVE)
            if each.cls in _TOO_SLOW
            else each
            for each in judgements
        ]

    def _look(self) -> Metrics | None:
        """The metrics while nothing of ours is under way: all load there is is other people's."""
        metrics = self.api.metrics()
        if metrics and (metrics.load or 0.0) > (self.foreign or 0.0) and self.requests:
            # The gauges may still show what has just ended: only what stays is other people's.
            self.clock.sleep(POLL_S)
            metrics = self.api.metrics()
        if metrics and metrics.load is not None:
            self.foreign = max(self.foreign or 0.0, metrics.load)
        return metrics

    def _heed_stop(self, name: str) -> None:
        """End the gate before `name` when it was told to stop, or its time is up."""
        if self._told_to_stop():
            told = f"told to stop before {name}"
        elif self.rounds and self._time_left() <= self.settings.request_timeout_s:
            raise _Over  # How a soak ends: `soak_s` is over.
        elif self._time_left() <= 0:
            told = f"the gate's deadline came before {name}"
        else:
            return
        self._add(ProbeResult(name, ReplyClass.TIMED_OUT, Result.INCONCLUSIVE, 0.0, told))
        raise _Over

    def _told_to_stop(self) -> bool:
        self.cut = self.cut or self.stop()
        return self.cut

    def _time_left(self) -> float:
        return self.ends - self.clock.monotonic()

    def _add(self, result: ProbeResult) -> None:
        self.results.append(result)
        self.progress(
            f"{result.name}: {result.outcome}, {result.detail} ({result.elapsed_s:.1f} s)"
        )


def _met_cap(reply: Reply, request: ProbeRequest) -> bool:
    """Whether the token cap ended it; some servers then still say `tool_calls` (field note 7)."""
    tokens = reply.usage.get("completion_tokens", 0)
    return reply.finish_reason == "length" or tokens >= request.body["max_tokens"]


def _fold(folded: dict[str, tuple[int, int, ProbeResult]], result: ProbeResult) -> None:
    """Count `result` under its name and keep the worst of them, the first of equals."""
    count, passed, worst = folded.get(result.name, (0, 0, result))
    if _WORST_FIRST.index(result.outcome) < _WORST_FIRST.index(worst.outcome):
        worst = result
    passed += result.outcome is Result.PASSED
    folded[result.name] = (count + 1, passed, worst)
