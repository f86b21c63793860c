"""The use cases that are no change of a lane: adopt, look, judge, repair, and standing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, TypeVar

from lanectl.app.change import (
    adopt_text,
    adopted_row,
    deployed_file,
    held_by,
    recover,
    rendered,
    unified,
)
from lanectl.app.documents import Document, history_entry, iso, verdict_json
from lanectl.app.engine import Say
from lanectl.app.gate import GateRun, ignore, never, run_gate
from lanectl.app.process import Lookout, Proof, is_alive, same
from lanectl.config import Config
from lanectl.core.flags import Asked
from lanectl.core.lane import ADOPTED, Lane, Profile
from lanectl.core.render import view_of
from lanectl.core.text import mask_document
from lanectl.core.verdict import ProbeResult, ReplyClass, Result, combine
from lanectl.errors import (
    CheckFailed,
    ConfigError,
    LanectlError,
    Quarantined,
    Refused,
    StoreUnusable,
    Unreachable,
)
from lanectl.ports import Ports, Probation, Sighting, SmokeRow, SwitchRow

PROVING_GATE = "switch"
ALERT_SHOWN = timedelta(days=7)
"""So long `status` shows a lane's newest alert."""
T = TypeVar("T")


def adopt(
    ports: Ports, config: Config, lane: Lane, *, who: str, unproven: bool, say: Say
) -> Document:
    """Make the deployed launcher the lane's base, and prove it against the running lane.

    Raises Refused for a launcher that cannot be supervised (a container, a script bash refuses).
    """
    deployed_file(ports, lane, config)
    with ports.host.lock(lane.launcher, held_by(ports, who)):
        recover(ports, lane, say)
        deployed = deployed_file(ports, lane, config)
        view = view_of(deployed.text, lane.port)
        if view.container:
            raise CheckFailed(
                f"the launcher of {lane.name} runs the server in a container: its process tree "
                "cannot be proven, so it is shown and not adopted",
                next_step=f"lanectl launcher show {lane.launcher}",
            )
        check = ports.host.check_script(deployed.text)
        if not check.ok:
            raise CheckFailed(f"`{check.interpreter} -n` refuses it: {check.stderr.strip()[:500]}")
        lookout = Lookout(ports, lane)
        main = lookout.main_process(lookout.program())
        before = ports.store.lane(lane.name)
        revision = adopt_text(ports, lane, deployed)
        if main is not None:
            lookout.record(main, None)
        if before is not None and before.current_sha256 != deployed.sha256:
            ports.store.end_probation(lane.name, "ended by adopt")
    # The gate holds no lock: a rollback must not wait for it.
    verdict, why = None, ""
    if unproven:
        why = "--unproven: no gate was run"
    elif main is None:
        why = f"{lane.program} is not running, so no gate could be run"
    else:
        proof = lookout.prove(lookout.asked_of(deployed.text, None))
        why = _unproven(proof, deployed.changed_at)
        run = run_gate(ports.api, ports.clock, lane, PROVING_GATE, progress=say)
        why = why or _changed(lookout, proof) or _moved(ports, lane, deployed.sha256)
        verdict = verdict_json(run.verdict)
        ports.store.record_smoke(
            lane.name, SmokeRow(ports.clock.now(), PROVING_GATE, deployed.sha256, verdict)
        )
        if run.verdict.passed and not why:
            ports.store.set_stable(lane.name, deployed.sha256, True)
        elif not run.verdict.passed:
            why = f"the {PROVING_GATE} gate says {run.verdict.outcome} ({run.verdict.cls})"
    known = ports.store.revision(lane.name, revision.sha256)
    return {
        "lane": lane.name,
        "profile": ADOPTED,
        "sha256": revision.sha256,
        "stable": bool(known and known.stable),
        "reason": why,
        "verdict": verdict,
        "launcher": deployed.path,
        "followed_link": deployed.path != deployed.asked,
        "program": {"pid": main.pid, "started": iso(main.started)} if main else None,
        "speculative": view.speculative,
        "max_num_seqs": view.max_num_seqs,
        "findings": [asdict(finding) for finding in view.findings],
    }


def _unproven(proof: Proof, changed_at: float) -> str:
    """Why a passed gate would not speak for the deployed text; empty when it would."""
    if proof.problems:
        return "; ".join(proof.problems)
    if proof.mismatches:
        return "the running command line is not what the launcher says: " + "; ".join(
            proof.mismatches
        )
    if not proof.listening:
        return "nothing of the program listens on the lane's port"
    if proof.main is not None and proof.main.started < changed_at - 1.0:
        return "the launcher was changed after the program had started"
    return ""


def _changed(lookout: Lookout, proof: Proof) -> str:
    now = lookout.main_process(lookout.program())
    if proof.main is None or now is None or not same(now, proof.main):
        return "the program was restarted while the gate ran"
    return ""


def _moved(ports: Ports, lane: Lane, sha256: str) -> str:
    row, deployed = ports.store.lane(lane.name), ports.host.read(lane.launcher)
    here = deployed is not None and deployed.sha256 == sha256
    if row is None or row.current_sha256 != sha256 or not here or ports.store.unfinished(lane.name):
        return "the lane was changed while the gate ran"
    return ""


# ------------------------------------------------------------------------------------- looking


def profiles(ports: Ports, config: Config, lane: Lane) -> list[Document]:
    """Every profile with what it asks for, secrets masked, and the revision it renders to."""
    row = ports.store.lane(lane.name)
    found: list[Document] = []
    for name in [ADOPTED, *lane.profiles]:
        profile = lane.profiles.get(name) or Profile(ADOPTED)
        entry: Document = {
            "profile": name,
            "speculative": mask_document(profile.speculative),
            "max_num_seqs": profile.max_num_seqs,
            "model": profile.model,
            "flags": mask_document(profile.flags),
            "env": mask_document(profile.env),
            "script": profile.script,
            "note": profile.note,
            "sha256": None,
            "current": False,
            "stable": False,
            "barred": False,
            "refused": None,
        }
        try:
            config.profile(lane, name)  # Says what is wrong with it, adopted or not.
            revision = rendered(ports, config, lane, row, name) if row else None
        except StoreUnusable:
            raise
        except (Refused, ConfigError) as error:
            entry["refused"] = error.message
        else:
            if row is not None and revision is not None:
                entry |= {
                    "sha256": revision.sha256,
                    "current": revision.sha256 == row.current_sha256,
                    "stable": revision.stable,
                    "barred": revision.barred,
                }
        found.append(entry)
    return found


def diff(ports: Ports, config: Config, lane: Lane, name: str) -> Document:
    """Deployed against rendered, as a unified diff with secrets masked."""
    row = adopted_row(ports, lane)
    deployed = deployed_file(ports, lane, config)
    revision = rendered(ports, config, lane, row, name)
    return {
        "lane": lane.name,
        "profile": name,
        "from": deployed.sha256,
        "to": revision.sha256,
        "same": deployed.sha256 == revision.sha256,
        "diff": unified(lane, deployed.text, revision.text, name),
    }


def smoke(ports: Ports, lane: Lane, gate: str, *, say: Say) -> tuple[Document, GateRun]:
    """Run a gate against the lane as it runs now, and record what it says.

    The right process must answer before and after: an orphan's good reply says nothing.
    """
    row, deployed = ports.store.lane(lane.name), ports.host.read(lane.launcher)
    try:
        run = run_gate_of_program(ports, lane, gate, say=say)
        sha256 = deployed.sha256 if deployed else None
    except Unreachable:
        # supervisord is away: the lane can still be judged, but not whose reply it is.
        run, sha256 = run_gate(ports.api, ports.clock, lane, gate, progress=say), None
    body = verdict_json(run.verdict)
    if row is not None:
        ports.store.record_smoke(lane.name, SmokeRow(ports.clock.now(), gate, sha256, body))
    return {"gate": gate, "lane": lane.name, **body, "foreign_load": run.foreign_load}, run


def run_gate_of_program(
    ports: Ports, lane: Lane, gate: str, *, stop: Callable[[], bool] = never, say: Say = ignore
) -> GateRun:
    """Run a gate, and see that it was the program's own process that answered, all the time.

    Raises Unreachable when supervisord does not answer.
    """
    lookout = Lookout(ports, lane)
    proof = lookout.prove(Asked())
    wrong = "; ".join(proof.problems)
    run = run_gate(ports.api, ports.clock, lane, gate, stop=stop, progress=say)
    if not wrong and run.verdict.passed:
        wrong = _changed(lookout, proof)
    if not wrong or run.verdict.cls is ReplyClass.UNREACHABLE:
        return run
    probe = ProbeResult("process", ReplyClass.WRONG_PROCESS, Result.FAILED, detail=wrong)
    return replace(run, verdict=combine([probe, *run.verdict.probes]))


def status(ports: Ports, config: Config, lane: Lane) -> Document:
    """One lane as it is now. What cannot be known is null, and `problem` says why.

    Raises StoreUnusable and nothing else: a sick lane must not hide the others.
    """
    store = ports.store
    problems: list[str] = []

    def look(what: Callable[[], T]) -> T | None:
        try:
            return what()
        except StoreUnusable:
            raise
        except LanectlError as error:
            problems.append(error.message)
            return None

    row = store.lane(lane.name)
    deployed = look(lambda: ports.host.read(lane.launcher))
    if deployed is None and not problems:
        problems.append(f"there is no launcher {lane.launcher}")
    current = store.revision(lane.name, row.current_sha256) if row else None
    unfinished = store.unfinished(lane.name) if row else None
    probation = store.probation(lane.name) if row else None
    last = store.last_smoke(lane.name) if row else None
    program, metrics, ready = None, None, None
    told = look(lambda: ports.supervisor.program(lane.program))
    if told is not None:
        program = {"state": told.state, "pid": told.pid, "started": iso(told.started)}
    health = look(lambda: ports.api.health(timeout_s=1.0))
    if health is not None and health.status is not None:
        ready = health.status == 200
        metrics = look(lambda: ports.api.metrics(timeout_s=1.0))
    elif told is not None and health is not None:
        ready = False
    profile = current.profile if current else None
    boards = look(ports.gpu.readings)
    watched = probation is not None and look(lambda: is_watched(ports, probation))
    alert = ports.notifier.last(lane.name)
    if alert is not None and ports.clock.now() - alert.at > ALERT_SHOWN:
        alert = None
    holder = look(lambda: ports.host.lock_holder(lane.launcher)) if unfinished else None
    return {
        "lane": lane.name,
        "profile": profile,
        "note": lane.profiles[profile].note if profile and profile in lane.profiles else "",
        "sha256": current.sha256 if current else None,
        "stable": current.stable if current else None,
        "drift": None
        if deployed is None or row is None
        else deployed.sha256 not in _expected(row.current_sha256, unfinished),
        "program": program,
        "ready": ready,
        "running": metrics.running if metrics else None,
        "waiting": metrics.waiting if metrics else None,
        "gpu": None
        if boards is None
        else [{**asdict(b), "pids": None if b.pids is None else sorted(b.pids)} for b in boards],
        "quarantined": row.quarantined if row else None,
        "unfinished": unfinished.id if unfinished else None,
        "unfinished_phase": str(unfinished.phase) if unfinished else None,
        "unfinished_holder": dict(holder or {}) or None,
        "probation": iso(probation.ends_at) if probation and watched else None,
        "probation_lost": bool(probation and not watched),
        "last_smoke": {"at": iso(last.at), "gate": last.gate, **last.verdict} if last else None,
        "adopted": row is not None,
        "last_alert": {"at": iso(alert.at), "title": alert.title, "body": alert.body}
        if alert
        else None,
        "problem": "; ".join(dict.fromkeys(problems)) or None,
    }


def _expected(current: str, unfinished: SwitchRow | None) -> set[str]:
    if unfinished is None:
        return {current}
    return {current, unfinished.plan.from_sha256, unfinished.plan.to_sha256}


def is_watched(ports: Ports, probation: Probation) -> bool:
    """Whether a probation's worker still lives: by pid and start, since a pid is given anew."""
    process = ports.host.process(probation.worker_pid)
    worker = Sighting(probation.worker_pid, probation.worker_started, "", None)
    return process is not None and is_alive(process) and same(process, worker)


def history(ports: Ports, lane: Lane, limit: int) -> list[Document]:
    return [history_entry(ports, row) for row in ports.store.history(lane.name, limit=limit)]


# ------------------------------------------------------------------------------------ standing


def quarantine(
    ports: Ports, lane: Lane, reason: str, *, who: str, stop: bool, say: Say
) -> Document:
    """No switch and no automatic action until a release; with `stop`, the program is stopped."""
    adopted_row(ports, lane)
    stopped: dict[str, Any] | None = None
    # The lock first: refused, nothing at all has been done.
    with ports.host.lock(lane.launcher, held_by(ports, who)) if stop else nullcontext():
        ports.store.set_quarantine(lane.name, reason)
        # A probation can roll back by itself, and nothing does that to a quarantined lane.
        ports.store.end_probation(lane.name, "ended by a quarantine")
        if stop:
            recover(ports, lane, say)
            stopped = Lookout(ports, lane).stop_all(say)
    return {"lane": lane.name, "quarantined": reason, "stopped": stopped}


def release(ports: Ports, lane: Lane, *, force: bool, say: Say) -> Document:
    """End a quarantine and lift every bar; asks for a passed quick gate or `force`."""
    row = adopted_row(ports, lane)
    verdict = None
    if not force:
        document, run = smoke(ports, lane, "quick", say=say)
        verdict = {k: document[k] for k in ("outcome", "class", "probes")}
        if not run.verdict.passed:
            raise Quarantined(
                f"lane {lane.name} stays as it is: its quick gate says {run.verdict.outcome} "
                f"({run.verdict.cls})",
                next_step=f"lanectl rollback {lane.name}, or lanectl release {lane.name} --force",
            )
    ports.store.set_quarantine(lane.name, None)
    lifted = [r.sha256 for r in ports.store.revisions(lane.name) if r.barred]
    for sha256 in lifted:
        ports.store.set_barred(lane.name, sha256, False)
    return {
        "lane": lane.name,
        "was_quarantined": row.quarantined,
        "unbarred": lifted,
        "verdict": verdict,
    }


# -------------------------------------------------------------------------------------- repair


def reap_orphans(ports: Ports, lane: Lane, *, who: str, say: Say) -> Document:
    """End the proven orphans of earlier starts; today's tree is left alone."""
    with ports.host.lock(lane.launcher, held_by(ports, who)):
        recover(ports, lane, say)
        lookout = Lookout(ports, lane)
        main = lookout.main_process(lookout.program())
        if main is not None:
            lookout.record(main, None)
        pids = lookout.reap(say)
    return {"lane": lane.name, "repair": "reap-orphans", "done": bool(pids), "pids": pids}


def reopen_log(ports: Ports, lane: Lane) -> Document:
    """Make supervisord write to the named log again where that path is unlinked (note 25).

    supervisord clears both logs of a program at once, so what it holds of each, deleted or not, is
    saved first. Where every log is there nothing is done: clearing would only erase them.
    """
    host, program = ports.host, ports.supervisor.program(lane.program)
    paths = [path for path in (program.stdout_log, program.stderr_log) if path.startswith("/")]
    unlinked = [path for path in paths if not host.exists(path)]
    document: Document = {"lane": lane.name, "repair": "reopen-log", "done": False, "saved": []}
    if not unlinked:
        return document | {"reason": "every log path is there; nothing was unlinked"}
    pid, now = ports.supervisor.pid(), ports.clock.now()
    saved = [host.save_log(pid, path, now) for path in paths]
    ports.supervisor.clear_logs(program.full_name)
    if still := [path for path in unlinked if not host.exists(path)]:
        raise CheckFailed(f"supervisord did not make {', '.join(still)} anew")
    return document | {"done": True, "saved": [path for path in saved if path], "reason": ""}
