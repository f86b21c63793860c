"""Probation: a committed revision is watched before it may be called stable.

A quick gate each minute, the switch gate at the end. One failed gate rolls back; "could not tell"
extends it, and four in a row tell the owner. It holds no lock: a new change ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from lanectl.app.documents import verdict_json
from lanectl.app.process import Lookout, same
from lanectl.app.service import run_gate_of_program
from lanectl.app.verify import said
from lanectl.core.lane import Lane
from lanectl.core.verdict import ReplyClass, Result, Verdict
from lanectl.errors import Unreachable
from lanectl.ports import Ports, Probation, Process, Sighting, SmokeRow, SwitchRow

EVERY_S = 60.0
LOOK_S = 0.5
ALERT_AFTER = 4
PROVING = "switch"
"""Only this gate (or soak) can make a revision stable, never a quick one."""


def watch(
    ports: Ports, lane: Lane, row: SwitchRow, me: Process, roll_back: Callable[[str], None]
) -> str:
    """Go through the probation of a committed change; returns how it ended.

    me: this very process, recorded so that others can see whether the watch still lives.
    roll_back: called with the reason after a failed gate, with the probation ended.
    """
    clock, store = ports.clock, ports.store
    every = min(EVERY_S, lane.probation_s / 3)
    ends = clock.now() + timedelta(seconds=lane.probation_s)
    left = lane.probation_s
    store.start_probation(lane.name, Probation(row.id, ends, me.pid, me.started, None))
    sha256 = row.plan.to_sha256
    could_not_tell = 0
    while True:
        nap = min(every, left)
        if not _sleep(ports, lane, row, nap):
            return "ended by another change"
        left -= nap
        deployed = ports.host.read(lane.launcher)
        if deployed is None or deployed.sha256 != sha256:
            return _end(ports, lane, row, "the launcher drifted")
        gate = PROVING if left <= 0 else "quick"
        verdict = _judge(ports, lane, row, gate)
        if not _mine(ports, lane, row):
            return "ended by another change"
        store.record_smoke(lane.name, SmokeRow(clock.now(), gate, sha256, verdict_json(verdict)))
        if verdict.outcome is Result.FAILED:
            why = f"probation of {row.id}: the {gate} gate failed ({verdict.cls})"
            _end(ports, lane, row, why)
            roll_back(why)
            return why
        if verdict.passed:
            could_not_tell = 0
            if gate == PROVING:
                store.set_stable(lane.name, sha256, True)
                return _end(ports, lane, row, "passed")
            continue
        could_not_tell += 1
        left = max(left, 0.0) + every
        ends = clock.now() + timedelta(seconds=left)
        store.extend_probation(row.id, ends)
        if could_not_tell == ALERT_AFTER:
            could_not_tell = 0
            _alert(ports, lane, verdict)


def _judge(ports: Ports, lane: Lane, row: SwitchRow, gate: str) -> Verdict:
    """A gate's verdict on the process that the change started.

    Another one is no proof, whether it crashed or was restarted by hand: "could not tell".
    """
    try:
        run = run_gate_of_program(ports, lane, gate, stop=lambda: not _mine(ports, lane, row))
        lookout = Lookout(ports, lane)
        now = lookout.main_process(lookout.program())
    except Unreachable as error:
        return said(Result.ERROR, ReplyClass.UNREACHABLE, "supervisord", error.message)
    started = row.receipt["program"]["after"]
    expect = Sighting(started["pid"], started["started"], "", None)
    if run.verdict.passed and (now is None or not same(now, expect)):
        told = f"{lane.program} is pid {now.pid if now else '-'}, not pid {started['pid']}"
        return said(Result.INCONCLUSIVE, ReplyClass.WRONG_PROCESS, "process", told)
    return run.verdict


def _mine(ports: Ports, lane: Lane, row: SwitchRow) -> bool:
    running = ports.store.probation(lane.name)
    return running is not None and running.switch_id == row.id


def _sleep(ports: Ports, lane: Lane, row: SwitchRow, seconds: float) -> bool:
    deadline = ports.clock.monotonic() + seconds
    while (left := deadline - ports.clock.monotonic()) > 0:
        ports.clock.sleep(min(left, LOOK_S))
        if not _mine(ports, lane, row):
            return False
    return _mine(ports, lane, row)


def _end(ports: Ports, lane: Lane, row: SwitchRow, how: str) -> str:
    if _mine(ports, lane, row):
        ports.store.end_probation(lane.name, how)
    return how


def _alert(ports: Ports, lane: Lane, verdict: Verdict) -> None:
    detail = "; ".join(p.detail for p in verdict.probes if p.outcome is not Result.PASSED)
    ports.notifier.tell(
        lane.name, f"lane {lane.name}: {ALERT_AFTER} gates in a row could not tell", detail
    )
