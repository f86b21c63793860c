"""Whether what was started is right: alive, ready, the right process with the right words.

"The process that answers must be the process we started": no answer of the lane counts before the
kernel says that every socket on its port belongs to the tree we started (design section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lanectl.app.gate import token_fault
from lanectl.app.process import POLL_S, Lookout, Proof, is_alive, same
from lanectl.core.fatal import fatal_line, is_profile_fault, last_words
from lanectl.core.flags import Asked
from lanectl.core.lane import Lane
from lanectl.core.smoke import Judgement
from lanectl.core.text import mask
from lanectl.core.verdict import ProbeResult, ReplyClass, Result, Verdict, combine
from lanectl.ports import Ports, Sighting

READY_POLL_S = 0.05
LOG_POLL_S = 0.5
UPTIME_POLL_S = 0.1
LOG_LINES = 40
STRANGER_S = 5.0
"""So long may something else hold our port while we start: its last sockets can linger."""
REFUSAL_S = 5.0
"""So long may a lane that is up otherwise refuse or break off the one token of readiness."""
DEFAULT_MIN_UPTIME_S = 10.0

_STILL_COMING = frozenset({ReplyClass.TIMED_OUT, ReplyClass.STALLED, ReplyClass.UNREACHABLE})
"""A first token can take its time; what else is wrong with it does not get better by waiting."""


class StepFailed(Exception):
    """A phase's effect did not come right.

    verdict: what the asked revision is worth, where this says something of it.
    log: the last lines of the program's log, masked.
    """

    def __init__(self, reason: str, *, verdict: Verdict | None = None, log: str = "") -> None:
        super().__init__(reason)
        self.reason, self.verdict, self.log = reason, verdict, log


def said(result: Result, cls: ReplyClass, name: str, detail: str) -> Verdict:
    """A verdict of one finding of our own, not of a probe."""
    return combine([ProbeResult(name, cls, result, detail=detail)])


class Verifier:
    """Looks at one started process until it is right or surely is not.

    wait: sleeps, and raises when the change was told to undo itself; stop: tells whether it was.
    log_mark: where the program's logs ended before the start, or None. Every failure is a
    StepFailed with the log's last lines.
    """

    def __init__(
        self,
        ports: Ports,
        lane: Lane,
        lookout: Lookout,
        wait: Callable[[float], None],
        say: Callable[[str], None],
        stop: Callable[[], bool],
        log_mark: tuple[int, int] | None,
    ) -> None:
        self.ports, self.lane, self.lookout = ports, lane, lookout
        self.wait, self.say, self.stop, self.log_mark = wait, say, stop, log_mark
        self._refusal: Judgement | None = None

    def dead(self, expect: Sighting) -> str:
        """Why the process that we started is no longer the program; empty while it is."""
        process = self.ports.host.process(expect.pid)
        if process is None or not is_alive(process) or not same(process, expect):
            program = self.lookout.program()
            code = f", exit status {program.exit_status}" if program.state == "EXITED" else ""
            return f"pid {expect.pid} of {self.lane.program} ended ({program.state}{code})"
        return ""

    def raise_dead(self, dead: str) -> None:
        log = self.log()
        cause = fatal_line(log) or last_words(log)
        reason = f"{dead}: {cause}" if cause else dead
        raise StepFailed(reason, verdict=self.death(reason, log), log=log)

    def death(self, reason: str, log: str) -> Verdict:
        """A dead server speaks against its profile, unless its log blames somebody else."""
        result = Result.FAILED if is_profile_fault(log) else Result.ERROR
        return said(result, ReplyClass.UNREACHABLE, "start", mask(reason))

    def log(self) -> str:
        """The program's last lines since it was started, masked."""
        text = self.ports.supervisor.log_since(self.lane.program, self.log_mark or (0, 0))
        return mask("\n".join(text.splitlines()[-LOG_LINES:]))

    def wait_ready(
        self,
        asked: Asked,
        expect: Sighting,
        limit_s: float,
        tolerate: Sequence[str] = (),
        *,
        token: bool = True,
    ) -> None:
        """Listening in our tree, `/health`, the model listed, and one token generated.

        Ends early for a dead process, a fatal log line, a wrong command line, a stranger on the
        port, a token that is refused. tolerate: mismatches that the baseline had as well. token:
        False for a revision that generated none at its baseline either.
        """
        clock = self.ports.clock
        began = clock.monotonic()
        next_look, stranger_since, refused_since, missing = began, None, None, ""
        while True:
            if dead := self.dead(expect):
                self.raise_dead(dead)
            now = clock.monotonic()
            listening = bool(self.ports.host.listeners(self.lane.port))
            if listening or now >= next_look:
                next_look = now + LOG_POLL_S
                proof = self.lookout.prove(asked, expect=expect)
                if wrong := [text for text in proof.mismatches if text not in tolerate]:
                    self._raise_wrong(wrong, Result.FAILED)
                stranger_since = (stranger_since or now) if proof.problems else None
                if stranger_since is not None and now - stranger_since > STRANGER_S:
                    self._raise_wrong(proof.problems, Result.ERROR)
                if not listening:
                    self._look_at_log()
                was, missing = missing, self._not_ready(proof, token)
                if not missing:
                    return
                if missing != was:
                    self.say(f"waiting for {missing}")
                now = clock.monotonic()
                refused_since = (refused_since or now) if self._refusal else None
                if self._refusal and refused_since and now - refused_since > REFUSAL_S:
                    self._raise_refused(self._refusal)
            if now - began >= limit_s:
                reason = f"not ready after {limit_s:.0f} s: still waiting for {missing}"
                verdict = said(Result.FAILED, ReplyClass.TIMED_OUT, "ready", reason)
                raise StepFailed(reason, verdict=verdict, log=self.log())
            self.wait(READY_POLL_S if listening else POLL_S)

    def _look_at_log(self) -> None:
        log = self.log()
        if cause := fatal_line(log):
            raise StepFailed(f"the log says: {cause}", verdict=self.death(cause, log), log=log)

    def _not_ready(self, proof: Proof, token: bool) -> str:
        """What is still missing; empty when the lane is ready."""
        api, lane = self.ports.api, self.lane
        self._refusal = None
        if proof.problems:
            # An orphan that shares the port can answer for us: no answer counts before this.
            return "; ".join(proof.problems)
        if not proof.listening:
            return f"port {lane.port}"
        if api.health().status != 200:
            return "/health"
        models = api.models()
        if not isinstance(models, list):
            # 401 means alive (field note 12); the gate will tell it as client_error.
            return "" if models.status in (401, 403) else "/v1/models"
        if not models or (lane.model and lane.model not in {m.id for m in models}):
            names = ", ".join(m.id for m in models) or "none"
            return f"the model {lane.model or ''} (listed: {names})"
        if not token:
            return ""
        fault = token_fault(api, self.ports.clock, lane, stop=self.stop)
        if fault is not None and fault.cls not in _STILL_COMING:
            self._refusal = fault
        return fault.detail if fault else ""

    def _raise_refused(self, refusal: Judgement) -> None:
        verdict = said(refusal.outcome, refusal.cls, "ready", refusal.detail)
        reason = f"up, and still no token after {REFUSAL_S:.0f} s: {refusal.detail}"
        raise StepFailed(reason, verdict=verdict, log=self.log())

    def _raise_wrong(self, wrong: Sequence[str], result: Result) -> None:
        """Wrong words speak against the revision; a stranger on its port, or one unseen, do not."""
        reason = "; ".join(wrong)
        verdict = said(result, ReplyClass.WRONG_PROCESS, "process", reason)
        raise StepFailed(
            f"not the process that was asked for: {reason}", verdict=verdict, log=self.log()
        )

    def prove(self, asked: Asked, expect: Sighting) -> tuple[Proof, bool | None]:
        """The process that answers is the one we started, with the words it was asked to have.

        Returns the proof, and whether the lane shows metrics of speculation (None: unknown).
        """
        proof = self.lookout.prove(asked, expect=expect)
        if proof.problems:
            self._raise_wrong(proof.problems, Result.ERROR)
        wrong = list(proof.mismatches)
        if not wrong and not proof.listening:
            wrong = [f"nothing of {self.lane.program} listens on port {self.lane.port}"]
        metrics = self.ports.api.metrics()
        speculates = metrics.speculative if metrics else None
        if not wrong and asked.speculative is False and speculates:
            # Speculation is proven off at run time only, by its metrics (field note 15).
            wrong = ["speculation metrics are there although speculation was asked off"]
        if wrong:
            self._raise_wrong(wrong, Result.FAILED)
        return proof, speculates

    def wait_uptime(self, expect: Sighting) -> None:
        """Wait until it has been up for `min_uptime_s`: some die after seconds of looking fine."""
        asked = self.lane.min_uptime_s
        if asked is None:
            settings = self.ports.supervisor.settings(self.lane.program)
            asked = max(settings.start_secs, DEFAULT_MIN_UPTIME_S)
        clock = self.ports.clock
        # The kernel's start times can lie up to a second before the truth, never after it.
        up = clock.now().timestamp() - expect.started - 1.0
        # Never longer than asked for: the clock may have been put back since the start.
        deadline = clock.monotonic() + (min(max(0.0, asked - up), asked) if asked else 0.0)
        if clock.monotonic() < deadline:
            self.say(f"waiting until it has been up for {asked:.0f} s")
        while (left := deadline - clock.monotonic()) > 0:
            if dead := self.dead(expect):
                self.raise_dead(dead)
            self.wait(min(UPTIME_POLL_S, left))
