"""One change of a lane from asking to end: plan it, hold the lane, close what died, run the engine.

`plan_*` decide and refuse; nothing is written before they return. `run` is what a worker does.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from lanectl.app.documents import iso
from lanectl.app.engine import PREEMPTED, Engine, Say
from lanectl.app.gate import token_fault
from lanectl.app.process import Lookout, same
from lanectl.config import Config
from lanectl.core.lane import ADOPTED, Kind, Lane, Plan, Profile, Revision, digest
from lanectl.core.launcher import Finding
from lanectl.core.render import render, view_of
from lanectl.core.switch import TERMINAL, Phase
from lanectl.core.text import mask
from lanectl.errors import (
    ApprovalMissing,
    Barred,
    CheckFailed,
    ConfigError,
    Drift,
    JournalLost,
    LaneBusy,
    NoTarget,
    Quarantined,
    Refused,
    StoreUnusable,
)
from lanectl.ports import UP, LaneRow, LauncherFile, Ports, Store, SwitchRow

DRIFTED = "drifted"
"""The profile name of a text that nobody recorded and that `--accept-drift` named."""
UNDONE = frozenset({Phase.ROLLED_BACK, Phase.ABORTED})
"""Ends after which the lane is on the revision that the change came from."""
PREEMPT_POLL_S = 0.05
PREEMPT_MARGIN_S = 30.0
UNJOURNALED_S = 5.0
"""So long a holder without a journal of ours is waited for: it plans, or is of another store."""


@dataclass(frozen=True)
class Asking:
    """Who asks for a change, and with which words."""

    who: str
    reason: str = ""
    approved_by: str = ""
    gate: str | None = None
    cut: bool = False
    barred_ok: bool = False
    accept_drift: str | None = None


@dataclass(frozen=True)
class Unchanged:
    """The lane is as asked already: digest, process, command line and readiness agree."""

    revision: Revision


MakePlan = Callable[[SwitchRow | None], "Plan | Unchanged"]
"""Plans; given the switch that a rollback has just undone on its way, if there was one."""


# -------------------------------------------------------------------------------------- the change


def run(
    ports: Ports,
    lane: Lane,
    make_plan: MakePlan,
    *,
    asking: Asking,
    say: Say,
    opened: Callable[[SwitchRow], None] = lambda _row: None,
    preempt: bool = False,
    named: bool = False,
) -> SwitchRow | Unchanged:
    """Hold the lane, close an unfinished change, plan, journal, and drive to the end.

    preempt: a rollback; a live change is told to fail first. named: its target was named; without
    one, a dead rollback is finished and is the answer, never left for a third revision.
    Raises Refused when nothing was done, JournalLost when the store fails in the middle.
    """
    holder = held_by(ports, asking.who)
    told = _preempt(ports, lane, say) if preempt else ""
    with ports.host.lock(lane.launcher, holder):
        # supervisord not there: refused before anything is planned, the journal left as it was.
        ports.supervisor.program(lane.program)
        dead = ports.store.unfinished(lane.name)
        finishes = preempt and not named and dead is not None and dead.plan.kind is Kind.ROLLBACK
        closed = recover(ports, lane, say, preempted=preempt and not finishes)
        if finishes and closed is not None and closed.phase is not Phase.ABORTED:
            return closed
        if closed is None and told:
            closed = ports.store.switch(told)
        plan = make_plan(closed if closed and _is_undone(closed) else None)
        if isinstance(plan, Unchanged):
            ports.store.set_current(lane.name, plan.revision.sha256, plan.revision.profile)
            return plan
        row = ports.store.open_switch(plan, ports.clock.now())
        ports.store.end_probation(lane.name, f"ended by {row.id}")
        opened(row)
        Engine(ports, row, say).run()
    return _reread(ports, row.id)


def held_by(ports: Ports, who: str) -> dict[str, Any]:
    """What the lane's lock says of its holder: this process."""
    return {"who": who, "pid": os.getpid(), "at": iso(ports.clock.now())}


def recover(ports: Ports, lane: Lane, say: Say, *, preempted: bool = False) -> SwitchRow | None:
    """Close the change that a dead process left, if any. Call with the lane's lock held."""
    row = ports.store.unfinished(lane.name)
    if row is None:
        return None
    say(f"closing {row.id}, which died in {row.phase}")
    Engine(ports, row, say).recover(preempted=preempted)
    return _reread(ports, row.id)


def _is_undone(row: SwitchRow) -> bool:
    moved = row.plan.from_sha256 != row.plan.to_sha256
    return moved and row.plan.kind is Kind.SWITCH and row.phase in UNDONE


def _reread(ports: Ports, switch_id: str) -> SwitchRow:
    row = ports.store.switch(switch_id)
    if row is None or row.phase not in TERMINAL:
        raise JournalLost(f"the journal lost {switch_id} while it ran")
    return row


def _preempt(ports: Ports, lane: Lane, say: Say) -> str:
    """Tell a live change to fail, and wait until its process lets go of the lane.

    Returns the id of the change that was told, or the empty string.
    """
    clock = ports.clock
    limit = UNJOURNALED_S
    began, asked = clock.monotonic(), ""
    while (holder := ports.host.lock_holder(lane.launcher)) is not None:
        who = f"pid {holder.get('pid', '?')} ({holder.get('who', 'unknown')})"
        row = ports.store.unfinished(lane.name)
        if row is not None and row.plan.kind is Kind.ROLLBACK:
            raise LaneBusy(
                f"{who} is rolling lane {lane.name} back already: {row.id} is in {row.phase}",
                next_step=f"lanectl status {lane.name} --watch",
            )
        if row is not None and row.id != asked:
            asked = row.id
            limit = lane.stop_timeout_s + 2 * lane.ready_timeout_s + PREEMPT_MARGIN_S
            ports.store.ask_abort(row.id, PREEMPTED)
            say(f"told {row.id} to fail now; waiting for {who} to let go")
        if clock.monotonic() - began >= limit:
            raise LaneBusy(
                f"{who} still holds lane {lane.name} after {limit:.0f} s",
                next_step=f"end that process, then: lanectl rollback {lane.name}",
            )
        clock.sleep(PREEMPT_POLL_S)
    return asked


# --------------------------------------------------------------------------------------- the plans


def adopted_row(ports: Ports, lane: Lane) -> LaneRow:
    row = ports.store.lane(lane.name)
    if row is None:
        raise Refused(
            f"lane {lane.name} has not been adopted: no base to apply profiles to",
            next_step=f"lanectl adopt {lane.name}",
        )
    return row


def adopt_text(ports: Ports, lane: Lane, deployed: LauncherFile) -> Revision:
    """Make what is deployed the lane's base and current revision."""
    revision = Revision(lane.name, deployed.sha256, ADOPTED, deployed.sha256, deployed.text)
    ports.store.adopt(revision, ports.clock.now())
    return revision


def deployed_file(ports: Ports, lane: Lane, config: Config) -> LauncherFile:
    deployed = ports.host.read(lane.launcher)
    if deployed is None:
        raise config.error(f"lanes.{lane.name}.launcher", f"there is no file {lane.launcher}")
    return deployed


def rendered(ports: Ports, config: Config, lane: Lane, row: LaneRow, name: str) -> Revision:
    """The revision of the profile of that name, rendered from the lane's base."""
    profile = config.profile(lane, name)
    base = ports.store.revision(lane.name, row.base_sha256)
    if base is None:
        raise StoreUnusable(f"the store lost the base of lane {lane.name}")
    script = ports.host.read(profile.script) if profile.script else None
    text = render(base.text, profile, port=lane.port, script=script.text if script else None)
    known = ports.store.revision(lane.name, digest(text))
    return known or Revision(lane.name, digest(text), name, row.base_sha256, text)


def plan_switch(
    ports: Ports, config: Config, lane: Lane, name: str, asking: Asking
) -> Plan | Unchanged:
    """Raises ConfigError for an unknown profile, Refused for everything that speaks against it."""
    row = adopted_row(ports, lane)
    revision = rendered(ports, config, lane, row, name)
    if row.quarantined:
        raise Quarantined(
            f"lane {lane.name} is quarantined: {row.quarantined}",
            next_step=f"lanectl rollback {lane.name}, or lanectl release {lane.name}",
        )
    if lane.require_approval and not asking.approved_by:
        raise ApprovalMissing(
            f"lane {lane.name} asks for an approval",
            next_step=f"lanectl switch {lane.name} {name} --approved-by WHO",
        )
    deployed = deployed_file(ports, lane, config)
    if deployed.sha256 != row.current_sha256:
        raise Drift(
            f"the launcher of {lane.name} is {deployed.sha256[:12]}, recorded is "
            f"{row.current_sha256[:12]}: somebody edited it; nothing has been changed",
            next_step=f"lanectl diff {lane.name} {name}; lanectl adopt {lane.name} keeps the edit",
        )
    if revision.barred and not asking.barred_ok and revision.sha256 != deployed.sha256:
        raise Barred(
            f"{revision.sha256[:12]} ({name}) was rolled away from",
            next_step=f"lanectl switch {lane.name} {name} --barred-ok, "
            f"or lanectl release {lane.name}",
        )
    check_findings(view_of(revision.text, lane.port).findings, deployed, lane)
    current = ports.store.revision(lane.name, deployed.sha256)
    profile = config.profile(lane, name)
    if revision.sha256 == deployed.sha256 and is_as_asked(ports, lane, deployed, profile):
        return Unchanged(replace(revision, profile=name))
    ports.store.save_revision(revision)
    return Plan(
        kind=Kind.SWITCH,
        lane=lane,
        from_sha256=deployed.sha256,
        from_profile=current.profile if current else ADOPTED,
        to_sha256=revision.sha256,
        to_profile=name,
        gate=asking.gate or lane.smoke.gate,
        who=asking.who,
        reason=asking.reason,
        approved_by=asking.approved_by,
        cut=asking.cut,
    )


def check_findings(findings: tuple[Finding, ...], deployed: LauncherFile, lane: Lane) -> None:
    """Errors that the deployed launcher does not have already are reasons to refuse."""
    old = {finding.code for finding in view_of(deployed.text, lane.port).findings}
    for finding in findings:
        if finding.severity == "error" and finding.code not in old:
            raise CheckFailed(f"line {finding.line}: {finding.message} ({finding.code})")


def is_as_asked(ports: Ports, lane: Lane, deployed: LauncherFile, profile: Profile | None) -> bool:
    """Digest (the caller's), start after that install, command line and readiness all agree."""
    lookout = Lookout(ports, lane)
    program = lookout.program()
    main = lookout.main_process(program)
    if main is None or program.state not in UP:
        return False
    started_by_us = any(
        same(main, seen) and seen.sha256 == deployed.sha256 for seen in lookout.sightings()
    )
    if not started_by_us and main.started < deployed.changed_at:
        return False
    proof = lookout.prove(lookout.asked_of(deployed.text, profile))
    if proof.problems or proof.mismatches or not proof.listening:
        return False
    if ports.api.health().status != 200:
        return False
    # A frozen engine answers everything but a generation (field note 12).
    return token_fault(ports.api, ports.clock, lane) is None


def plan_restart(ports: Ports, config: Config, lane: Lane, asking: Asking) -> Plan:
    row = adopted_row(ports, lane)
    deployed = deployed_file(ports, lane, config)
    if deployed.sha256 != row.current_sha256:
        raise Drift(
            f"the launcher of {lane.name} is {deployed.sha256[:12]}, recorded is "
            f"{row.current_sha256[:12]}; nothing has been changed",
            next_step=f"lanectl adopt {lane.name}, or lanectl rollback {lane.name} "
            f"--accept-drift {deployed.sha256[:12]}",
        )
    profile = _profile_of(ports, lane, deployed.sha256)
    return Plan(
        kind=Kind.RESTART,
        lane=lane,
        from_sha256=deployed.sha256,
        from_profile=profile,
        to_sha256=deployed.sha256,
        to_profile=profile,
        gate=asking.gate or lane.smoke.gate,
        who=asking.who,
        reason=asking.reason,
        cut=asking.cut,
    )


def plan_rollback(
    ports: Ports,
    config: Config,
    lane: Lane,
    asking: Asking,
    *,
    to: str | None = None,
    backup: str | None = None,
    undone: SwitchRow | None = None,
) -> Plan | Unchanged:
    """Raises NoTarget when there is nothing to go back to, listing the backups.

    undone: the switch that was closed to make way. What is being left then is where it went to,
    so the revision that it came from may be the answer (decision 011).
    """
    deployed = deployed_file(ports, lane, config)
    if backup is not None:
        row = ports.store.lane(lane.name)
        if row is None:
            # Nothing is recorded (a new store beside an old lane): what stands there is the base.
            adopt_text(ports, lane, deployed)
        target = from_backup(ports, lane, backup)
        row = adopted_row(ports, lane)
    else:
        row = adopted_row(ports, lane)
        target = _named(ports, lane, to) if to else _target(ports, lane, row, deployed, undone)
    known = ports.store.revision(lane.name, deployed.sha256)
    _refuse_drift(lane, deployed, {row.current_sha256, target.sha256}, asking, backup)
    if known is None:
        # Kept under a name of its own, so that what was overwritten can be put back.
        known = Revision(lane.name, deployed.sha256, DRIFTED, row.base_sha256, deployed.text)
        ports.store.save_revision(known)
    named = to is not None or backup is not None or undone is not None
    if named and target.sha256 == deployed.sha256:
        profile = lane.profiles.get(target.profile)
        if is_as_asked(ports, lane, deployed, profile):
            return Unchanged(target)
    return Plan(
        kind=Kind.ROLLBACK,
        lane=lane,
        from_sha256=deployed.sha256,
        from_profile=known.profile,
        to_sha256=target.sha256,
        to_profile=target.profile,
        gate="quick",
        who=asking.who,
        reason=asking.reason,
        accept_drift=asking.accept_drift,
    )


def _named(ports: Ports, lane: Lane, prefix: str) -> Revision:
    found = [r for r in ports.store.revisions(lane.name) if r.sha256.startswith(prefix.lower())]
    if len(found) != 1 or not re.fullmatch(r"[0-9a-fA-F]{4,64}", prefix):
        what = "several revisions begin" if len(found) > 1 else "no revision begins"
        raise ConfigError(
            f"{what} with {prefix!r} on lane {lane.name}", next_step=f"lanectl history {lane.name}"
        )
    return found[0]


def _target(
    ports: Ports, lane: Lane, row: LaneRow, deployed: LauncherFile, undone: SwitchRow | None
) -> Revision:
    """Newest stable, not barred, not being left; else the last commit's `from`; else the base.

    Being left is what stands there: a text that drifted, or that a switch had just come to. Then
    the recorded revision is no less a target than any other.
    """
    store = ports.store
    leaving = {undone.plan.to_sha256 if undone else deployed.sha256}
    if undone and not any(r.stable and not r.barred for r in store.revisions(lane.name)):
        before = store.revision(lane.name, undone.plan.from_sha256)
        if before is not None:
            return before
    for revision in store.revisions(lane.name):
        if revision.stable and not revision.barred and revision.sha256 not in leaving:
            return revision
    for past in store.history(lane.name, limit=200):
        if past.phase is Phase.COMMITTED and past.plan.from_sha256 != past.plan.to_sha256:
            before = store.revision(lane.name, past.plan.from_sha256)
            if before and not before.barred and before.sha256 not in leaving:
                return before
            break
    base = store.revision(lane.name, row.base_sha256)
    if base is not None and base.sha256 not in leaving:
        return base
    backups = ports.host.backups(lane.launcher)
    listed = "".join(f"\n  {b.path}  {b.sha256[:12]}" for b in backups[:10])
    raise NoTarget(
        f"lane {lane.name} has no revision to go back to"
        + (f"; its backups:{listed}" if listed else " and no backup"),
        next_step=f"lanectl rollback {lane.name} --backup FILE, or lanectl restart {lane.name}",
    )


def from_backup(ports: Ports, lane: Lane, path: str) -> Revision:
    """A backup's text as a revision; known already, or saved under the profile its name ends in."""
    file = ports.host.read(path)
    if file is None:
        raise ConfigError(f"there is no backup {path}")
    refuse_no_launcher(ports.store, lane, path, file)
    return _recorded(ports.store, lane, path, file, adopted_row(ports, lane).base_sha256)


def refuse_no_launcher(store: Store, lane: Lane, path: str, file: LauncherFile) -> None:
    """A mistyped path must not become the launcher: it has to be recorded, or to start a server."""
    if store.revision(lane.name, file.sha256) is None and not view_of(file.text, lane.port).servers:
        raise CheckFailed(
            f"{path} starts no vLLM server that can be read, and lane {lane.name} has no such "
            "revision; nothing has been changed",
            next_step=f"lanectl launcher show {path}",
        )


def _recorded(store: Store, lane: Lane, path: str, file: LauncherFile, base: str) -> Revision:
    known = store.revision(lane.name, file.sha256)
    if known is not None:
        return known
    name = re.search(r"\.bak-\d{8}-\d{6}-(.+?)(-\d+)?$", PurePath(path).name)
    revision = Revision(lane.name, file.sha256, name[1] if name else "backup", base, file.text)
    store.save_revision(revision)
    return revision


def _profile_of(ports: Ports, lane: Lane, sha256: str, unknown: str = ADOPTED) -> str:
    revision = ports.store.revision(lane.name, sha256)
    return revision.profile if revision else unknown


def dry_run(
    ports: Ports, config: Config, lane: Lane, name: str, asking: Asking
) -> tuple[Revision, str]:
    """Everything that a switch would check before its first effect; the revision and its diff.

    Raises what the switch would be refused with.
    """
    planned = plan_switch(ports, config, lane, name, asking)
    if isinstance(planned, Unchanged):
        return planned.revision, ""
    revision = ports.store.revision(lane.name, planned.to_sha256)
    deployed = deployed_file(ports, lane, config)
    if revision is None:
        raise StoreUnusable(f"the store lost the revision {planned.to_sha256[:12]}")
    check = ports.host.check_script(revision.text)
    if not check.ok:
        raise CheckFailed(f"`{check.interpreter} -n` refuses it: {check.stderr.strip()[:500]}")
    return revision, unified(lane, deployed.text, revision.text, name)


def unified(lane: Lane, old: bytes, new: bytes, name: str) -> str:
    """A unified diff of two launcher texts, secrets masked."""
    before, after = (
        mask(text.decode("utf-8", "replace")).splitlines(keepends=True) for text in (old, new)
    )
    lines = difflib.unified_diff(before, after, f"{lane.name} deployed", f"{lane.name} {name}")
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def restore_file(ports: Ports, config: Config, lane: Lane, backup: str, asking: Asking) -> str:
    """Put a backup in place where supervisord does not answer; returns the digest.

    No process is touched. The same checks as with supervisord: drift, `bash -n`, a backup of what
    is overwritten. It becomes the current revision, so that a `restart` finishes the rollback.
    """
    host, store = ports.host, ports.store
    with host.lock(lane.launcher, held_by(ports, asking.who)):
        deployed, file = deployed_file(ports, lane, config), host.read(backup)
        if file is None:
            raise ConfigError(f"there is no backup {backup}")
        refuse_no_launcher(store, lane, backup, file)
        row, open_row = store.lane(lane.name), store.unfinished(lane.name)
        if open_row and file.sha256 not in (open_row.plan.from_sha256, open_row.plan.to_sha256):
            raise LaneBusy(
                f"{open_row.id} is unfinished, in {open_row.phase}: only its own two texts can be "
                f"put in place before it is closed, {file.sha256[:12]} is neither",
                next_step=f"lanectl rollback {lane.name} --backup "
                f"{open_row.receipt.get('backup', 'FILE')}",
            )
        if row is not None:
            known = {row.current_sha256, file.sha256}
            if open_row:
                known |= {open_row.plan.from_sha256, open_row.plan.to_sha256}
            _refuse_drift(lane, deployed, known, asking, backup)
        check = host.check_script(file.text)
        if not check.ok:
            raise CheckFailed(f"`{check.interpreter} -n` refuses it: {check.stderr.strip()[:500]}")
        if deployed.sha256 != file.sha256:
            outgoing = _profile_of(ports, lane, deployed.sha256, DRIFTED)
            host.back_up(deployed, outgoing, ports.clock.now())
            staged = host.stage(deployed, file.text)
            host.replace(lane.launcher, staged, frozenset({deployed.sha256}))
        if row is not None and open_row is None:
            _recorded(store, lane, backup, file, row.base_sha256)
            store.set_current(lane.name, file.sha256)
    return file.sha256


def _refuse_drift(
    lane: Lane, deployed: LauncherFile, known: Container[str], asking: Asking, backup: str | None
) -> None:
    """Raises Drift where nobody recorded what stands there and nobody named it either."""
    named = asking.accept_drift
    if named and not deployed.sha256.startswith(named.lower()):
        raise Drift(
            f"the launcher of {lane.name} is {deployed.sha256[:12]}, not {named[:12]} that was to "
            "be overwritten; nothing has been changed",
            next_step=f"lanectl status {lane.name}",
        )
    if named or deployed.sha256 in known:
        return
    raise Drift(
        f"the launcher of {lane.name} is {deployed.sha256[:12]}, which is not what was recorded; "
        "nothing has been changed",
        next_step=f"lanectl rollback {lane.name} --accept-drift {deployed.sha256[:12]}"
        + (f" --backup {backup}" if backup else ""),
    )
