"""doctor: does the process that supervisord started hold the port, and nobody else?"""

from __future__ import annotations

from collections.abc import Iterator

from lanectl.app.diagnosis import Diagnosis, NotKnown, error, info, need, ok, unknown, warning
from lanectl.app.doctor_facts import Facts
from lanectl.app.process import Proof
from lanectl.core.text import mask_argv
from lanectl.ports import Process

Found = Iterator[Diagnosis]


def _words(process: Process) -> str:
    return " ".join(mask_argv(process.argv))[:200] or process.name


def _live(facts: Facts) -> Proof:
    """The proof of a program that runs; for one that does not, there is nothing to tell."""
    proof = need(facts.proof)
    return need(NotKnown("; ".join(proof.problems))) if proof.main is None else proof


def port_owner(facts: Facts) -> Found:
    lane = facts.lane
    listeners = need(facts.listeners)
    proof = need(facts.proof)
    if proof.main is None:
        if listeners:
            pids = sorted({pid for one in listeners for pid in one.pids or ()})
            who = f"pid {', '.join(map(str, pids))}" if pids else "a process that cannot be seen"
            yield error(
                f"{lane.program} does not run, yet port {lane.port} is held by {who}: the next "
                "start fails or stands beside it",
                f"lanectl repair {lane.name} reap-orphans; if that ends nothing, look with "
                f"`ss -ltnp 'sport = :{lane.port}'` and end it by hand",
            )
        else:
            yield ok(f"port {lane.port} is free, as {lane.program} does not run")
        return
    for problem in proof.problems:
        yield error(
            problem,
            f"lanectl repair {lane.name} reap-orphans, then lanectl restart {lane.name}",
            "vllm#55510",
        )
    if proof.problems:
        return
    if proof.listening:
        yield ok(f"port {lane.port} is held by {lane.program} alone")
        return
    age = facts.now - proof.main.started
    if age < lane.ready_timeout_s:
        yield info(f"{lane.program} is up for {age:.0f} s and does not listen yet")
    else:
        yield error(
            f"{lane.program} is up for {age:.0f} s and nothing of it listens on port {lane.port}",
            f"look at its log, then lanectl restart {lane.name}",
        )


def several_listeners(facts: Facts) -> Found:
    holders = {pid for one in need(facts.listeners) for pid in one.pids or ()}
    if len(holders) > 1:
        pids = ", ".join(map(str, sorted(holders)))
        yield info(
            f"several processes listen on port {facts.lane.port}: {pids}",
            "expected with --api-server-count only; each must be of the program (see port-owner)",
            "vllm#55510",
        )
    else:
        yield ok("at most one process listens on the port")


def running_command(facts: Facts) -> Found:
    """The live command line against the launcher's text; an environment may override it."""
    proof, lane = _live(facts), facts.lane.name
    if proof.server is None:
        need(NotKnown("no command line of a vLLM server is to be seen in the program's tree"))
    if isinstance(facts.view, NotKnown):
        need(facts.view)
    for mismatch in proof.mismatches:
        yield error(
            f"what runs is not what the launcher says: {mismatch}",
            f"lanectl restart {lane}; if it stays, supervisord's environment or arguments "
            "override the launcher",
        )
    if not proof.mismatches:
        yield ok("the running command line is what the launcher says")


def orphans(facts: Facts) -> Found:
    """Left of earlier starts. What is not proven to be ours is named and never ended."""
    found, lane = need(facts.strays), facts.lane.name
    if isinstance(facts.standing, NotKnown):
        why = facts.standing.why
        yield info(f"orphans cannot be proven without the store ({why}); what looks like one is")
    if found and isinstance(facts.program, NotKnown):
        pids = ", ".join(str(stray.process.pid) for stray in found)
        yield unknown(
            f"without supervisord an orphan cannot be told from the server ({facts.program.why}); "
            f"it could be one of: {pids}",
            "bring supervisord back, then: lanectl doctor " + lane,
        )
        return
    for stray in found:
        process = stray.process
        what = f"pid {process.pid} ({_words(process)})"
        if stray.proven:
            yield error(
                f"{what} is left of an earlier start of this lane; it may hold GPU memory or port",
                f"lanectl repair {lane} reap-orphans",
                "vllm#55510",
            )
        else:
            yield warning(
                f"{what} looks like a vLLM server and belongs to no program of this supervisord; "
                "it is not proven to be of this lane, so lanectl will not end it",
                f"look with `ps -o pid,ppid,lstart,cmd -p {process.pid}`; if it is nobody's: "
                f"kill {process.pid}",
                "vllm#55510",
            )
    if not found:
        yield ok("no process is left of an earlier start")
