"""The switch engine: the only loop that walks the table of `core.switch`.

Each turn writes the record of the phase, then does its effect, then asks the table what follows.
Every effect converges, so the loop can be entered anew at any phase after a crash. Nothing here
decides what follows a phase; nothing in `core.switch` touches a lane.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lanectl import __version__
from lanectl.app.documents import verdict_json
from lanectl.app.drain import drain
from lanectl.app.gate import run_gate
from lanectl.app.process import Lookout, NeedsReboot, same
from lanectl.app.verify import StepFailed, Verifier, said
from lanectl.core.flags import Asked
from lanectl.core.lane import ADOPTED, Kind, Lane, Plan, Profile, digest
from lanectl.core.render import view_of
from lanectl.core.switch import TERMINAL, UNDOING, UNTOUCHED, Facts, Outcome, Phase, after
from lanectl.core.text import mask, mask_argv
from lanectl.core.verdict import PROBE_AT_FAULT, ReplyClass, Result, Verdict
from lanectl.errors import (
    CheckFailed,
    Drift,
    JournalLost,
    LanectlError,
    Refused,
    StoreUnusable,
    Unreachable,
)
from lanectl.ports import UP, LauncherFile, Ports, Process, Sighting, SmokeRow, SwitchRow

PREEMPTED = "pre-empted by a rollback"
"""Why a change undoes itself when a rollback goes first."""
UNDO_LOOK_S = 0.1
CONFIRM_TRIES = 3

NO_REPLY = frozenset(
    {
        ReplyClass.HTTP_ERROR,
        ReplyClass.STREAM_ABORTED,
        ReplyClass.STALLED,
        ReplyClass.TIMED_OUT,
        ReplyClass.WRONG_PROCESS,
    }
)
"""A baseline of these gave no whole reply: its restored revision is not asked to be ready."""

Say = Callable[[str], None]


class Undo(Exception):
    """The change was told to undo itself: an operator's Ctrl-C, or a rollback that goes first."""


class Engine:
    """Drives one journaled change of one lane to its end."""

    def __init__(self, ports: Ports, row: SwitchRow, say: Say = lambda _text: None) -> None:
        self.ports, self.say = ports, say
        self.id = row.id
        self.plan: Plan = row.plan
        self.lane: Lane = row.plan.lane
        self.receipt: dict[str, Any] = dict(row.receipt)
        self.verdict = row.verdict
        self.entered: list[Phase] = [event.phase for event in row.events]
        self.reason = row.reason
        self._undo_look = 0.0
        self._not_renamed = False
        self.lookout = Lookout(ports, self.lane)
        self.effects: Mapping[Phase, Callable[[], Mapping[str, Any]]] = {
            Phase.PREPARING: self._prepare,
            Phase.DRAINING: self._drain,
            Phase.INSTALLING: lambda: self._put(self.plan.to_sha256),
            Phase.RESTARTING: self._restart,
            Phase.VERIFYING: self._verify,
            Phase.REVERTING: lambda: self._put(self.plan.from_sha256),
            Phase.RESTORING: self._restore,
            Phase.CONFIRMING: self._confirm,
        }

    # ------------------------------------------------------------------------------------ the loop

    def run(self) -> Phase:
        """From the record that the journal holds already (`preparing`) to a terminal phase."""
        return self._walk(self.entered[-1], recorded=True)

    def recover(self, *, preempted: bool = False) -> Phase:
        """Close a change whose process died: a crash is just a third outcome.

        preempted: a rollback goes first, so a change not yet undoing is taken as failed.
        Raises Unreachable, with the journal as it was, when the lane cannot be observed.
        """
        dead = self.entered[-1]
        self.reason = self.reason or f"the process that ran it died in {dead}"
        outcome = Outcome.CRASHED
        if preempted and dead not in UNDOING:
            outcome, self.reason = Outcome.FAILED, PREEMPTED
        facts = self._facts()
        self._finish(dead, outcome, 0.0, {"detail": self.reason})
        return self._walk(after(self.plan.kind, dead, outcome, facts, self.entered))

    def _walk(self, phase: Phase, *, recorded: bool = False) -> Phase:
        try:
            return self._steps(phase, recorded)
        except StoreUnusable as error:
            raise self._lost(error) from error

    def _steps(self, phase: Phase, recorded: bool) -> Phase:
        while phase not in TERMINAL:
            if not recorded:
                self.ports.store.enter(self.id, phase, self.ports.clock.now())
                self.entered.append(phase)
            recorded = False
            self.say(str(phase))
            began = self.ports.clock.monotonic()
            outcome, detail = self._attempt(phase)
            self._finish(phase, outcome, self.ports.clock.monotonic() - began, detail)
            facts = Facts()
            if phase is Phase.INSTALLING and outcome is not Outcome.OK:
                # supervisord away: the program counts as touched, and the change is undone.
                with suppress(Unreachable):
                    facts = self._facts()
            phase = after(self.plan.kind, phase, outcome, facts, self.entered)
        self._close(phase)
        return phase

    def _lost(self, error: StoreUnusable) -> LanectlError:
        """What the failed store leaves: without a journal nothing more is done to the lane."""
        plan, lane, dead = self.plan, self.lane, self.entered[-1]
        told = f"{error.message}; that was in {dead} of {self.id}"
        if dead in UNTOUCHED:
            return StoreUnusable(
                f"{told}: nothing has been changed", next_step=f"lanectl status {lane.name}"
            )
        deployed = self._found()
        sides = {plan.from_sha256: plan.from_profile, plan.to_sha256: plan.to_profile}
        which = "cannot be read"
        if deployed is not None:
            name = sides.get(deployed.sha256, "neither the old nor the new one")
            which = f"is {deployed.sha256[:12]} ({name})"
        return JournalLost(
            f"{told}. The launcher of lane {lane.name} {which}; {lane.program} was left as it was "
            "then, unverified. When the store is back, the next command that changes the lane "
            "closes it",
            next_step=f"lanectl rollback {lane.name} --backup {self.receipt.get('backup', 'FILE')}",
        )

    def _attempt(self, phase: Phase) -> tuple[Outcome, Mapping[str, Any]]:
        try:
            self._heed_undo()
            return Outcome.OK, self.effects[phase]()
        except StepFailed as failure:
            return self._failed(phase, failure.reason, failure.log, failure.verdict)
        except Undo as undo:
            return self._failed(phase, str(undo))
        except NeedsReboot as error:
            self.receipt["needs_reboot"] = True
            reason = f"needs-reboot: {error.message}"
            return self._failed(phase, reason, self._last_log(phase), next_step=error.next_step)
        except LanectlError as error:
            log = self._last_log(phase)
            return self._failed(phase, error.message, log, next_step=error.next_step)
        except OSError as error:
            return self._failed(phase, f"{type(error).__name__}: {error}", self._last_log(phase))
        except Exception as error:  # noqa: BLE001  (a bug of ours must not leave half a change)
            trace = mask("".join(traceback.format_exception(error)))
            return self._failed(phase, f"a bug in lanectl: {type(error).__name__}: {error}", trace)

    def _last_log(self, phase: Phase) -> str:
        """The log's last lines, where the program has been touched and supervisord can tell."""
        if phase in UNTOUCHED:
            return ""
        try:
            return self._verifier().log()
        except LanectlError:
            return ""

    def _failed(
        self,
        phase: Phase,
        reason: str,
        log: str = "",
        verdict: Verdict | None = None,
        next_step: str = "",
    ) -> tuple[Outcome, Mapping[str, Any]]:
        reason = mask(reason)
        # The first failure is why the change failed; what goes wrong in undoing it comes after.
        self.reason = f"{self.reason}; then in {phase}: {reason}" if self.reason else reason
        if verdict is not None:
            body = verdict_json(verdict)
            if phase in UNDOING:
                self.ports.store.note(self.id, confirmation=body)
            else:
                self.verdict = body
                self.ports.store.note(self.id, verdict=body)
        told = {"detail": reason, "log": log, "next": next_step}
        return Outcome.FAILED, {key: value for key, value in told.items() if value}

    def _finish(
        self, phase: Phase, outcome: Outcome, elapsed: float, detail: Mapping[str, Any]
    ) -> None:
        self.receipt.setdefault("timings", {})[str(phase)] = round(elapsed, 3)
        self.ports.store.note(self.id, receipt=self.receipt, reason=self.reason or None)
        self.ports.store.finish(self.id, phase, str(outcome), elapsed, detail)

    def _facts(self) -> Facts:
        deployed = self.ports.host.read(self.lane.launcher)
        return Facts(
            old_in_place=deployed is not None and deployed.sha256 == self.plan.from_sha256,
            not_renamed=self._not_renamed,
            program_unchanged=self._unchanged(),
        )

    def _unchanged(self) -> bool:
        """The program still runs as the baseline saw it, or is down as it was down then."""
        before = self.receipt.get("program", {}).get("before", {})
        program = self.lookout.program()
        main = self.lookout.main_process(program)
        if not before.get("up"):
            return main is None
        return (
            main is not None
            and program.state in UP
            and same(main, Sighting(before["pid"], before["started"], "", None))
        )

    def _close(self, phase: Phase) -> None:
        """Write standing and current revision, then the terminal record: all of it converges."""
        store, plan, lane = self.ports.store, self.plan, self.lane.name
        moved = plan.from_sha256 != plan.to_sha256
        if phase is Phase.COMMITTED:
            store.set_current(lane, plan.to_sha256, plan.to_profile)
            proven = plan.gate in ("switch", "soak") and self.lane.probation_s == 0
            if proven and plan.kind is not Kind.ROLLBACK:
                store.set_stable(lane, plan.to_sha256, True)
        else:
            known = store.lane(lane)
            if phase is Phase.ROLLED_BACK and known and known.current_sha256 == plan.to_sha256:
                # It died while closing as committed, and was taken back all the same.
                store.set_current(lane, plan.from_sha256)
            failed = (self.verdict or {}).get("outcome") == Result.FAILED
            if failed and moved and plan.kind is Kind.SWITCH:
                store.set_barred(lane, plan.to_sha256, True)
        left = phase is Phase.COMMITTED or Phase.RESTARTING in self.entered
        if plan.kind is Kind.ROLLBACK and moved and left:
            # Rolled away from, also where the target did not come right: never go back to it.
            store.set_barred(lane, plan.from_sha256, True)
            store.set_stable(lane, plan.from_sha256, False)
        try:
            self._clean(phase)
        except StoreUnusable:
            raise
        except (LanectlError, OSError) as error:
            self.receipt["not_cleaned"] = str(error)
        if phase is Phase.DEGRADED:
            deployed = self._found()
            if deployed and store.revision(lane, deployed.sha256):
                store.set_current(lane, deployed.sha256)
            store.set_quarantine(lane, f"degraded by {self.id}: {self.reason}"[:500])
            store.open_incident(
                lane, self.ports.clock.now(), "degraded", {"switch": self.id, "reason": self.reason}
            )
            self.ports.notifier.tell(lane, f"lane {lane} is degraded", self.reason)
        store.note(self.id, receipt=self.receipt, reason=self.reason or None)
        store.enter(self.id, phase, self.ports.clock.now())
        self.entered.append(phase)
        self.say(str(phase))

    def _clean(self, phase: Phase) -> None:
        """Leave no staged file, and no more backups than asked for. Never costs a verdict."""
        self.receipt["staged"] = {}
        self.ports.host.discard_stale(self.lane.launcher)
        if phase is Phase.ABORTED:
            return
        store, lane = self.ports.store, self.lane.name
        needed = {self.plan.from_sha256, self.plan.to_sha256}
        needed |= {r.sha256 for r in store.revisions(lane) if r.stable}
        if current := store.lane(lane):
            needed |= {current.current_sha256, current.base_sha256}
        kept: set[str] = set()
        for number, backup in enumerate(self.ports.host.backups(self.lane.launcher)):
            # Of each revision that is still needed the newest copy stays, beyond the count.
            last = backup.sha256 in needed and backup.sha256 not in kept
            kept.add(backup.sha256)
            if number >= self.lane.keep_backups and not last:
                self.ports.host.remove_backup(backup.path)

    # ------------------------------------------------------------------------------------- waiting

    def _undo(self) -> str:
        """Why the change shall undo itself; empty when nobody asked, or where it goes on anyway."""
        if self.entered[-1] in UNDOING:
            return ""
        if self.plan.kind is Kind.ROLLBACK and self.entered[-1] is not Phase.PREPARING:
            return ""  # It has no revert: told to fail, it would leave the lane degraded.
        return self.ports.store.abort_asked(self.id) or ""

    def _heed_undo(self) -> None:
        self._undo_look = self.ports.clock.monotonic() + UNDO_LOOK_S
        if why := self._undo():
            raise Undo(why)

    def _wait(self, seconds: float) -> None:
        """Sleep, unless the change was told to undo itself."""
        if self.ports.clock.monotonic() >= self._undo_look:
            self._heed_undo()
        self.ports.clock.sleep(seconds)

    def _verifier(self) -> Verifier:
        mark = self.receipt.get("log_mark")
        return Verifier(
            self.ports,
            self.lane,
            self.lookout,
            self._wait,
            self.say,
            lambda: bool(self._undo()),
            (mark[0], mark[1]) if mark else None,
        )

    # ----------------------------------------------------------------------------------- preparing

    def _prepare(self) -> Mapping[str, Any]:
        ports, plan, lane = self.ports, self.plan, self.lane
        self.receipt |= {
            "lanectl": __version__,
            "from_sha256": plan.from_sha256,
            "to_sha256": plan.to_sha256,
            "who": plan.who,
            "approved_by": plan.approved_by or None,
            "why": plan.reason or None,
        }
        deployed = self._deployed()
        self.receipt |= {
            "launcher": deployed.path,
            "followed_link": deployed.path != deployed.asked,
        }
        if deployed.sha256 != plan.from_sha256:
            raise Drift(
                f"the launcher of {lane.name} changed under us: {deployed.sha256[:12]} is there",
                next_step=f"lanectl diff {lane.name} {plan.to_profile}",
            )
        text = self._text(plan.to_sha256)
        check = ports.host.check_script(text)
        if not check.ok:
            raise CheckFailed(
                f"`{check.interpreter} -n` refuses the launcher of {plan.to_profile}: "
                f"{check.stderr.strip()[:500]}"
            )
        supervisor = ports.supervisor
        self.receipt["supervisor"] = supervisor.version()
        self.receipt["others_before"] = self._others()
        self._refuse_strangers()
        self._refuse_wrong_port(deployed)
        self._baseline()
        # Only now, with every check passed, is anything written beside the launcher.
        ports.host.discard_stale(lane.launcher)
        self.receipt["staged"] = staged = {}
        try:
            staged[plan.to_sha256] = ports.host.stage(deployed, text)
            staged[plan.from_sha256] = ports.host.stage(deployed, deployed.text)
            if plan.from_sha256 != plan.to_sha256:
                self.receipt["backup"] = ports.host.back_up(
                    deployed, plan.from_profile, ports.clock.now()
                )
        except LanectlError:
            for path in staged.values():
                ports.host.discard(path)
            self.receipt["staged"] = {}
            raise
        return {"detail": f"staged {plan.to_sha256[:12]}, old text kept"}

    def _found(self) -> LauncherFile | None:
        """What stands at the launcher's path; None when absent or not to be read."""
        try:
            return self.ports.host.read(self.lane.launcher)
        except LanectlError:
            return None

    def _deployed(self) -> LauncherFile:
        deployed = self.ports.host.read(self.lane.launcher)
        if deployed is None:
            raise Drift(f"there is no launcher {self.lane.launcher} any more")
        return deployed

    def _still(self, sha256: str) -> None:
        """What was put in place stands there: somebody else may have edited it since."""
        deployed = self._deployed()
        if deployed.sha256 != sha256:
            raise Drift(f"{deployed.path} is {deployed.sha256[:12]} by now, not {sha256[:12]}")

    def _text(self, sha256: str) -> bytes:
        revision = self.ports.store.revision(self.lane.name, sha256)
        if revision is None or digest(revision.text) != sha256:
            raise Refused(f"the store has no text with the digest {sha256[:12]}")
        return revision.text

    def _others(self) -> dict[str, list[int | None]]:
        """Every other program: pid and start time, to prove afterwards that none was touched."""
        mine = self.lookout.program().full_name
        return {
            p.full_name: [p.pid, p.started]
            for p in self.ports.supervisor.programs()
            if p.full_name != mine
        }

    def _refuse_strangers(self) -> None:
        """A port that somebody else holds is not ours to free: no start could come right there."""
        if self.plan.kind is Kind.ROLLBACK or not (others := self.lookout.strangers()):
            return
        lane = self.lane
        told = ", ".join(f"pid {p.pid} ({' '.join(mask_argv(p.argv))[:120]})" for p in others)
        raise CheckFailed(
            f"port {lane.port} is held by {told}, which is not of {lane.program} nor proven to be "
            "left of it",
            next_step=f"lanectl doctor {lane.name}",
        )

    def _refuse_wrong_port(self, deployed: LauncherFile) -> None:
        """A configured port that the launcher does not serve: what answers there is not it."""
        lane, environment = self.lane, self.lookout.environment()
        view = view_of(deployed.text, lane.port, environment)
        told = view.server.port if view.server and len(view.servers) == 1 else None
        if told is None or told == lane.port or (environment is None and view.findings):
            return
        raise CheckFailed(
            f"the launcher of {lane.name} serves port {told}, lanes.{lane.name}.api names "
            f"{lane.port}: what answers there would not be this lane",
            next_step=f"correct lanes.{lane.name}.api, then: lanectl doctor {lane.name}",
        )

    def _baseline(self) -> None:
        """What the old revision is worth before the change: `confirming` asks for no less."""
        lane, plan = self.lane, self.plan
        program = self.lookout.program()
        main = self.lookout.main_process(program)
        before: dict[str, Any] = {
            "state": program.state,
            "pid": main.pid if main else None,
            "started": main.started if main else None,
            "up": main is not None and program.state in UP,
            "ready": False,
            "down": main is None or program.state not in UP,
            "verdict": None,
            "mismatches": [],
            "listening": False,
        }
        self.receipt["program"] = {"before": before, "after": None}
        if main is None or not before["up"]:
            return
        self.lookout.record(main, None)
        if plan.kind is Kind.ROLLBACK:
            return  # Nothing is ever put back by a rollback, so nothing is measured against this.
        proof = self.lookout.prove(self._asked_of(plan.from_sha256, plan.from_profile))
        before["listening"] = proof.listening
        before["mismatches"] = [*proof.mismatches]
        before["command"] = [*proof.argv]
        if proof.problems:
            # Something else answers on its port: what a smoke would judge is not this revision.
            before["verdict"] = verdict_json(
                said(Result.FAILED, ReplyClass.WRONG_PROCESS, "baseline", "; ".join(proof.problems))
            )
            return
        run = run_gate(
            self.ports.api,
            self.ports.clock,
            lane,
            "quick",
            stop=lambda: bool(self._undo()),
            progress=self.say,
        )
        self._heed_undo()
        verdict = run.verdict
        before["verdict"] = verdict_json(verdict)
        # Design section 4: counted as down, though supervisord calls it RUNNING.
        before["down"] = verdict.cls is ReplyClass.UNREACHABLE
        before["ready"] = not before["down"] and verdict.cls not in NO_REPLY
        if verdict.cls in PROBE_AT_FAULT:
            detail = next((p.detail for p in verdict.probes if p.cls is verdict.cls), "")
            raise CheckFailed(
                f"the probe of lane {lane.name} is at fault before any change "
                f"({verdict.cls.value}): {detail}",
                next_step=f"lanectl smoke {lane.name} --gate quick, and check model, key and caps",
            )

    def _asked_of(self, sha256: str, profile: str) -> Asked:
        text = self._text(sha256)
        known = self.lane.profiles.get(profile) if profile != ADOPTED else Profile(ADOPTED)
        return self.lookout.asked_of(text, known)

    # ------------------------------------------------------------------------------------ draining

    def _drain(self) -> Mapping[str, Any]:
        before = self.receipt["program"]["before"]
        if before["down"]:
            return {"detail": "down before: drained by definition"}
        left = drain(self.ports, self.lane, self._wait, self.say)
        if left.drained:
            return {"detail": "nothing runs or waits"}
        if not self.plan.cut:
            raise StepFailed(f"{left.why}; nothing has been changed (--cut goes on regardless)")
        return {"detail": f"{left.why}; cut as asked"}

    # ---------------------------------------------------------------------- installing, reverting

    def _put(self, sha256: str) -> Mapping[str, Any]:
        """Make the launcher's digest `sha256`: compare-and-swap, re-read, compare."""
        host, plan, lane = self.ports.host, self.plan, self.lane
        deployed = self._deployed()
        if deployed.sha256 != sha256:
            staged = self.receipt.get("staged", {}).pop(sha256, None)
            ready = host.read(staged) if staged else None
            if ready is None or ready.sha256 != sha256:
                staged = host.stage(deployed, self._text(sha256))
            assert staged is not None
            try:
                host.replace(lane.launcher, staged, frozenset({plan.from_sha256, plan.to_sha256}))
            except (Drift, Refused):
                self._not_renamed = True
                raise
        now = self._deployed()
        if now.sha256 != sha256:
            raise Drift(f"{now.path} reads {now.sha256[:12]} after {sha256[:12]} was put there")
        return {"detail": f"{sha256[:12]} in place"}

    # ----------------------------------------------------------------------- restarting, restoring

    def _restart(self) -> Mapping[str, Any]:
        program = self.lookout.program()
        old = self.lookout.main_process(program)
        cut = None
        if old is not None:
            # A rollback has no time to wait for a lane that does not answer any more.
            limit = 0.2 if self.plan.kind is Kind.ROLLBACK else 1.0
            metrics = self.ports.api.metrics(timeout_s=limit)
            cut = metrics.load if metrics else None
        self.receipt["requests_cut"] = cut
        self.receipt["cache_before"] = "warm" if old is not None else "cold"
        self.receipt["stop"] = self.lookout.stop_all(self.say)
        self._heed_undo()
        new = self._start(self.plan.to_sha256, old)
        return {"detail": f"pid {old.pid if old else '-'} stopped, pid {new.pid} started"}

    def _start(self, sha256: str, old: Process | None) -> Process:
        try:
            self.receipt["log_mark"] = list(self.ports.supervisor.log_mark(self.lane.program))
            new = self.lookout.start(sha256, old)
        except NeedsReboot:
            raise
        except LanectlError as error:
            verifier = self._verifier()
            log = verifier.log()
            raise StepFailed(
                error.message, verdict=verifier.death(error.message, log), log=log
            ) from error
        self.receipt["program"]["after"] = {"pid": new.pid, "started": new.started}
        return new

    def _restore(self) -> Mapping[str, Any]:
        before = self.receipt["program"]["before"]
        if self._unchanged() and Phase.RESTARTING not in self.entered:
            return {"detail": "the program was never stopped"}
        old = self.lookout.main_process(self.lookout.program())
        self.lookout.stop_all(self.say)
        if before["down"]:
            self.receipt["program"]["after"] = None
            return {"detail": "stopped; it was down before"}
        new = self._start(self.plan.from_sha256, old)
        return {"detail": f"pid {new.pid} started from the old launcher"}

    # ----------------------------------------------------------------------------------- verifying

    def _verify(self) -> Mapping[str, Any]:
        plan, lane = self.plan, self.lane
        asked = self._asked_of(plan.to_sha256, plan.to_profile)
        expect = self._started()
        verifier = self._verifier()
        self._still(plan.to_sha256)
        verifier.wait_ready(asked, expect, lane.ready_timeout_s)
        self._proven(verifier, asked, expect)
        self.say(f"running the {plan.gate} gate")
        dead = ""

        def stop() -> bool:
            nonlocal dead
            dead = dead or verifier.dead(expect)
            return bool(dead or self._undo())

        run = run_gate(
            self.ports.api, self.ports.clock, lane, plan.gate, stop=stop, progress=self.say
        )
        if dead := dead or verifier.dead(expect):
            verifier.raise_dead(dead)
        self._heed_undo()
        self.receipt |= {"foreign_load": run.foreign_load, "cache": dict(run.cache)}
        self._record_smoke(plan.gate, plan.to_sha256, verdict_json(run.verdict))
        if not run.verdict.passed:
            worst = next((p for p in run.verdict.probes if p.outcome is run.verdict.outcome), None)
            told = f": {worst.name}: {worst.detail}" if worst else ""
            raise StepFailed(
                f"the {plan.gate} gate says {run.verdict.outcome} ({run.verdict.cls}){told}",
                verdict=run.verdict,
                log=verifier.log(),
            )
        verifier.wait_uptime(expect)
        self._proven(verifier, asked, expect)
        self._still(plan.to_sha256)
        self.verdict = verdict_json(run.verdict)
        self.ports.store.note(self.id, verdict=self.verdict)
        self._fill_receipt()
        return {"detail": f"the {plan.gate} gate passed"}

    def _proven(self, verifier: Verifier, asked: Asked, expect: Sighting) -> None:
        proof, speculates = verifier.prove(asked, expect)
        self.receipt |= {"command": list(proof.argv), "speculative_metrics": speculates}

    def _record_smoke(self, gate: str, sha256: str, body: Mapping[str, Any]) -> None:
        """`status` tells the last smoke, whoever ran it."""
        row = SmokeRow(self.ports.clock.now(), gate, sha256, body)
        self.ports.store.record_smoke(self.lane.name, row)

    def _started(self) -> Sighting:
        started = self.receipt["program"]["after"]
        if not started:
            raise StepFailed("no start of the program is recorded")
        return Sighting(started["pid"], started["started"], "", None)

    def _fill_receipt(self) -> None:
        metrics = self.ports.api.metrics()
        readings = self.ports.gpu.readings()
        self.receipt["versions"] = {"vllm": self.ports.api.version()}
        self.receipt["cache_config"] = dict(metrics.cache_config) if metrics else None
        self.receipt["gpu"] = (
            [
                {**asdict(r), "pids": sorted(r.pids) if r.pids is not None else None}
                for r in readings
            ]
            if readings is not None
            else None
        )
        before = self.receipt["others_before"]
        try:
            now = self._others()
        except Unreachable as error:
            # Everything about the lane is proven by now: this alone must not cost it.
            self.receipt |= {"others_untouched": None, "others_unknown": error.message}
            return
        changed = sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))
        self.receipt["others_untouched"] = not changed
        self.receipt["others_changed"] = changed

    # ---------------------------------------------------------------------------------- confirming

    def _confirm(self) -> Mapping[str, Any]:
        """The old revision is as good as its baseline: no more is asked, and no less."""
        plan, lane = self.plan, self.lane
        before = self.receipt["program"]["before"]
        self._still(plan.from_sha256)
        if before["down"]:
            if Phase.RESTARTING in self.entered and self.lookout.program().state in UP:
                raise StepFailed(f"{lane.program} was down before, and runs now")
            self._fill_receipt()
            if Phase.RESTARTING in self.entered and before["up"]:
                # Decision 007: RUNNING, and not to be reached: nothing proves that it ever served.
                return {
                    "detail": "the old launcher is in place; the program is left STOPPED, since it "
                    "could not be reached before either",
                    "next": f"lanectl restart {lane.name}",
                }
            return {"detail": "the old launcher is in place; the program was down before"}
        asked = self._asked_of(plan.from_sha256, plan.from_profile)
        expect, verifier = self._restored(), self._verifier()
        if before["listening"]:
            verifier.wait_ready(
                asked, expect, lane.ready_timeout_s, before["mismatches"], token=before["ready"]
            )
        confirmation = self._confirm_smoke(before, verifier)
        verifier.wait_uptime(expect)
        if dead := verifier.dead(expect):
            verifier.raise_dead(dead)
        proof = self._old_proof(asked, expect, before)
        self.receipt["command"] = list(proof)
        self._record_smoke("quick", plan.from_sha256, confirmation)
        self._fill_receipt()
        self.ports.store.note(self.id, confirmation=confirmation)
        return {"detail": f"the old revision is back: {confirmation['outcome']}"}

    def _restored(self) -> Sighting:
        """The main process of the restored program: started by us, or never stopped."""
        after_, before = (self.receipt["program"][key] for key in ("after", "before"))
        told = after_ or before
        return Sighting(told["pid"], told["started"], "", None)

    def _old_proof(
        self, asked: Asked, expect: Sighting, before: Mapping[str, Any]
    ) -> tuple[str, ...]:
        proof = self.lookout.prove(asked, expect=expect)
        wrong = list(proof.problems)
        if (before["verdict"] or {}).get("class") == ReplyClass.WRONG_PROCESS:
            wrong = []  # It was not the right process before either.
        if not wrong and before["listening"] and not proof.listening:
            wrong = [f"nothing of {self.lane.program} listens on port {self.lane.port}"]
        wrong += [m for m in proof.mismatches if m not in before["mismatches"]]
        if wrong:
            raise StepFailed("; ".join(wrong))
        return proof.argv

    def _confirm_smoke(self, before: Mapping[str, Any], verifier: Verifier) -> dict[str, Any]:
        """One tool call of the restored revision; raises where it is worse than the baseline."""
        was = (before["verdict"] or {}).get("outcome")
        verdict = Verdict(Result.ERROR, ReplyClass.UNREACHABLE)
        for _ in range(CONFIRM_TRIES if was != Result.FAILED else 1):
            run = run_gate(self.ports.api, self.ports.clock, self.lane, "quick", progress=self.say)
            verdict = run.verdict
            if verdict.outcome in (Result.PASSED, Result.FAILED):
                break  # Only "could not tell" is asked again: a verdict stands.
        body = verdict_json(verdict)
        worse = was != Result.FAILED and (
            verdict.outcome is Result.FAILED
            or (was == Result.PASSED and verdict.outcome is not Result.PASSED)
        )
        if worse:
            raise StepFailed(
                f"the old revision was {was} and is {verdict.outcome} ({verdict.cls}) now",
                verdict=verdict,
                log=verifier.log(),
            )
        return body
