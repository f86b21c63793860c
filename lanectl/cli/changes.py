"""switch, rollback, restart: the commands that change a lane, each in a worker of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lanectl import wiring
from lanectl.app import change, probation
from lanectl.app.change import Asking, Unchanged
from lanectl.app.documents import revision_side, still_document, switch_document
from lanectl.cli import worker
from lanectl.cli.errors import document, tell
from lanectl.cli.follow import follow
from lanectl.cli.options import GATE, Settings, common, epilog, lane_and, lane_argument, who
from lanectl.cli.tables import emit, note, paint, short, shown, shown_lines
from lanectl.config import Config, find, load
from lanectl.core import exits
from lanectl.core.lane import Kind, Lane, Plan
from lanectl.core.switch import TERMINAL, Phase
from lanectl.core.text import mask, mask_argv
from lanectl.errors import LaneBusy, LanectlError, Refused, StoreUnusable, Unreachable
from lanectl.ports import Ports, SwitchRow

Planner = Callable[[Ports, Config, Lane, Asking, "SwitchRow | None"], "Plan | Unchanged"]


_ENDS = {
    "_3": "refused, or aborted with nothing changed",
    "_4": "it failed, and the lane is back on its old revision, confirmed",
    "_5": "the lane is degraded and quarantined",
    "_130": "no longer followed; it goes on by itself",
}


@click.command(
    epilog=epilog(
        'switch qwen38 reliability --reason "MTP floods"',
        _0="committed, or the lane is as asked already",
        **_ENDS,
    )
)
@lane_and("profile")
@click.option("--dry-run", is_flag=True, help="Render and check only; nothing is changed.")
@click.option("--gate", type=GATE, help="The gate to pass instead of the configured one.")
@click.option("--cut", is_flag=True, help="Go on at the drain deadline; what was cut is counted.")
@click.option("--barred-ok", is_flag=True, help="Install a revision that was rolled away from.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the receipt.")
@click.option("--approved-by", default="", metavar="WHO", help="Who approved it: a record.")
@common
def switch(
    settings: Settings,
    lane: str | None,
    profile: str,
    dry_run: bool,
    gate: str | None,
    cut: bool,
    barred_ok: bool,
    reason: str,
    approved_by: str,
) -> int:
    """Move LANE to PROFILE.

    The launcher is rendered, checked, backed up and replaced; only the lane's program is
    restarted; the running command line and real tool calls are judged. What does not come back
    right is undone. It goes on when the terminal is closed; Ctrl-C asks it to undo.
    """
    config = load(find(settings.config))
    asking = Asking(who(), reason, approved_by, gate, cut, barred_ok)
    target = config.lane(lane)
    config.profile(target, profile)

    def plan(
        ports: Ports, config: Config, lane: Lane, asking: Asking, _undone: SwitchRow | None
    ) -> Plan | Unchanged:
        return change.plan_switch(ports, config, lane, profile, asking)

    if dry_run:
        return _dry_run(settings, config, target, asking, profile)
    return _run(settings, config, target, asking, plan)


@click.command(
    epilog=epilog(
        "rollback qwen38",
        _0="the older revision serves, proven",
        _3="refused, nothing changed (without a target the backups are listed)",
        _5="the lane is degraded; or --backup without supervisord: only the file is restored",
        _130="no longer followed; it goes on by itself",
    )
)
@lane_argument
@click.option("--to", metavar="REVISION", help="A digest, or the unique beginning of one.")
@click.option(
    "--backup", metavar="FILE", help="A backup file; works without store and supervisord."
)
@click.option(
    "--accept-drift", metavar="SHA", help="The unrecorded digest that may be overwritten."
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for the receipt.")
@common
def rollback(
    settings: Settings,
    lane: str | None,
    to: str | None,
    backup: str | None,
    accept_drift: str | None,
    reason: str,
) -> int:
    """Go back to the newest stable revision of LANE, or to one that you name.

    Does not drain, pre-empts a running switch, and bars the revision that is left.
    """
    if to == "" or backup == "":
        raise click.UsageError("an empty value for --to or --backup names no revision")
    if to and backup:
        raise click.UsageError("--to and --backup exclude each other")
    config = load(find(settings.config))
    target = config.lane(lane)
    asking = Asking(who(), reason, accept_drift=accept_drift)
    store_url = None
    if backup is not None:
        backup = str(Path(backup).absolute())
        store_url = _store_or_scratch(config)
        if not _supervisord_answers(config, target, store_url):
            return _restore_file(settings, config, target, backup, asking, store_url)

    def plan(
        ports: Ports, config: Config, lane: Lane, asking: Asking, undone: SwitchRow | None
    ) -> Plan | Unchanged:
        return change.plan_rollback(
            ports, config, lane, asking, to=to, backup=backup, undone=undone
        )

    named = to is not None or backup is not None
    return _run(
        settings, config, target, asking, plan, preempt=True, named=named, store_url=store_url
    )


@click.command(epilog=epilog("restart qwen38", _0="the same revision serves, proven", **_ENDS))
@lane_argument
@click.option("--gate", type=GATE, help="The gate to pass instead of the configured one.")
@click.option("--cut", is_flag=True, help="Go on at the drain deadline; what was cut is counted.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the receipt.")
@common
def restart(settings: Settings, lane: str | None, gate: str | None, cut: bool, reason: str) -> int:
    """Restart LANE on the revision it has, with the same verification as a switch."""
    config = load(find(settings.config))
    asking = Asking(who(), reason, gate=gate, cut=cut)

    def plan(
        ports: Ports, config: Config, lane: Lane, asking: Asking, _undone: SwitchRow | None
    ) -> Plan | Unchanged:
        return change.plan_restart(ports, config, lane, asking)

    return _run(settings, config, config.lane(lane), asking, plan)


# ---------------------------------------------------------------------------------------- running


def _run(
    settings: Settings,
    config: Config,
    lane: Lane,
    asking: Asking,
    planner: Planner,
    *,
    preempt: bool = False,
    named: bool = False,
    store_url: str | None = None,
) -> int:
    """Start the worker, follow it, print what it did; returns the exit code."""

    def work(send: worker.Send) -> None:
        logging.basicConfig(level=logging.CRITICAL)
        with wiring.ports(config, lane, store_url=store_url) as ports:
            _work(ports, config, lane, asking, planner, send, preempt=preempt, named=named)

    def undo(switch_id: str) -> str:
        return ask_undo(config, store_url, switch_id, asking)

    opened, end = follow(worker.start(work), undo)
    if "error" in end:
        return tell(end, settings.as_json)
    if not end:
        end = _from_journal(config, lane, opened, store_url)
        if "error" in end:
            return tell(end, settings.as_json)
    return show(end["done"], settings.as_json)


def ask_undo(config: Config, store_url: str | None, switch_id: str, asking: Asking) -> str:
    """Ask the worker of a change to undo it; what to say of that."""
    try:
        with wiring.store(config, store_url=store_url) as store:
            store.ask_abort(switch_id, f"{asking.who} pressed Ctrl-C")
    except LanectlError as error:
        return f"could not ask {switch_id} to undo ({error.message}): it goes on"
    except KeyError:
        return f"could not ask {switch_id} to undo (this store does not know it): it goes on"
    return "asked to undo; a rollback, or what is undone already, goes on"


def _work(
    ports: Ports,
    config: Config,
    lane: Lane,
    asking: Asking,
    planner: Planner,
    send: worker.Send,
    *,
    preempt: bool,
    named: bool,
) -> None:
    """The worker's whole life: the change, then its probation."""

    def say(text: str) -> None:
        send({"say": text})

    def opened(row: SwitchRow) -> None:
        usual = {str(k): v for k, v in ports.store.phase_times(lane.name).items()}
        send({"opened": row.id, "usual": usual})

    def make_plan(undone: SwitchRow | None) -> Plan | Unchanged:
        return planner(ports, config, lane, asking, undone)

    result = change.run(
        ports,
        lane,
        make_plan,
        asking=asking,
        say=say,
        opened=opened,
        preempt=preempt,
        named=named,
    )
    if isinstance(result, Unchanged):
        side, kind = revision_side(result.revision), Kind.ROLLBACK if preempt else Kind.SWITCH
        send({"done": still_document(lane.name, "unchanged", side, side, kind=kind)})
        return
    send({"done": switch_document(ports, result)})
    if result.phase is Phase.COMMITTED and result.plan.kind is not Kind.ROLLBACK:
        _probation(ports, config, lane, result)


def _probation(ports: Ports, config: Config, lane: Lane, row: SwitchRow) -> None:
    if lane.probation_s == 0:
        return

    def roll_back(why: str) -> None:
        asking = Asking("lanectl (probation)", why)

        def make_plan(_undone: SwitchRow | None) -> Plan | Unchanged:
            now = ports.store.lane(lane.name)
            if now is None or now.current_sha256 != row.plan.to_sha256:
                raise Refused(f"lane {lane.name} was moved meanwhile")
            return change.plan_rollback(ports, config, lane, asking)

        try:
            change.run(ports, lane, make_plan, asking=asking, say=lambda _text: None)
        except LanectlError as error:
            title = f"lane {lane.name} was not rolled back by itself"
            ports.notifier.tell(lane.name, title, f"{why}; {error.message}")

    probation.watch(ports, lane, row, wiring.this_process(ports.host), roll_back)


def _from_journal(config: Config, lane: Lane, opened: str, store_url: str | None) -> dict[str, Any]:
    """The worker told no end: what the journal says, and what closes it."""
    try:
        with wiring.ports(config, lane, store_url=store_url) as ports:
            row = ports.store.switch(opened) if opened else ports.store.unfinished(lane.name)
            if row is not None and row.phase in TERMINAL:
                return {"done": switch_document(ports, row)}
    except StoreUnusable as error:
        told = f"the worker of {opened or f'lane {lane.name}'} told no end, and {error.message}"
        return _killed(told, f"lanectl status {lane.name}")
    if row is None:
        message = f"the worker of lane {lane.name} was killed before it changed anything"
        return _killed(message, f"lanectl history {lane.name}")
    message = f"the worker of {row.id} was killed in {row.phase}; lane {lane.name} waits as it is"
    next_step = f"lanectl rollback {lane.name}, or lanectl restart {lane.name}: both close it first"
    return _killed(message, next_step)


def _killed(message: str, next_step: str) -> dict[str, Any]:
    return document("worker-killed", exits.WORKER_KILLED, mask(message), next_step)


# --------------------------------------------------------------------------------------- dry run


def _dry_run(settings: Settings, config: Config, lane: Lane, asking: Asking, profile: str) -> int:
    with wiring.ports(config, lane) as ports:
        ports.supervisor.program(lane.program)
        unfinished = ports.store.unfinished(lane.name)
        if unfinished is not None:
            raise LaneBusy(
                f"{unfinished.id} of lane {lane.name} is unfinished, in {unfinished.phase}",
                next_step=f"lanectl status {lane.name}",
            )
        planned, text = change.dry_run(ports, config, lane, profile, asking)
        row = ports.store.lane(lane.name)
        current = ports.store.revision(lane.name, row.current_sha256) if row else None
        old = revision_side(current) if current else {}
        dry = still_document(
            lane.name, "dry-run", old, revision_side(planned), receipt={"diff": text}
        )
    return show(dry, settings.as_json)


# ------------------------------------------------------------------- without store or supervisord


def _store_or_scratch(config: Config) -> str | None:
    """None: the store serves. Else the URL of a new one: the files alone must do."""
    try:
        with wiring.store(config) as store:
            store.end_probation("", "")  # Nothing of that name: but it must be able to write.
    except StoreUnusable as error:
        url = wiring.scratch_url()
        note(
            f"{error.message}; going on from the files alone, with the journal of this rollback "
            f"in {url}"
        )
        return url
    return None


def _supervisord_answers(config: Config, lane: Lane, store_url: str | None) -> bool:
    with wiring.ports(config, lane, store_url=store_url) as ports:
        try:
            ports.supervisor.program(lane.program)
        except Unreachable as error:
            note(error.message)
            return False
    return True


def _restore_file(
    settings: Settings,
    config: Config,
    lane: Lane,
    backup: str,
    asking: Asking,
    store_url: str | None,
) -> int:
    """Put the backup in place without supervisord; what is left to do is said. Exit 5."""
    with wiring.ports(config, lane, store_url=store_url) as ports:
        restored = change.restore_file(ports, config, lane, backup, asking)
    message = (
        f"{backup} is in place as {lane.launcher} ({short(restored)}); supervisord does not "
        f"answer, so no process of {lane.program} was touched"
    )
    next_step = f"when supervisord is back: lanectl restart {lane.name}"
    told = document("file-restored", exits.FILE_RESTORED, message, next_step)
    return tell(told, settings.as_json)


# --------------------------------------------------------------------------------------- printing


def show(document: dict[str, Any], as_json: bool) -> int:
    """Print what a change did, and return its exit code."""
    phase = document["phase"]
    still = phase in ("unchanged", "dry-run")
    code = exits.DONE if still else exits.OF_PHASE[Phase(phase)]
    if as_json:
        emit(document)
        if code:
            note(_headline(document))
        return code
    print(paint(shown(_headline(document)), "green" if code == 0 else "red"))
    for name, value in _receipt_lines(document):
        print(f"  {name:<10} {shown(value)}")
    if diff := document["receipt"].get("diff"):
        print(shown_lines(diff), end="")
    if log := next((e["log"] for e in document["events"] if e.get("log")), ""):
        print("  last lines of the log:")
        for line in shown_lines(log).rstrip("\n").split("\n")[-12:]:
            print(f"    {line}")
    if step := _next_step(document, code):
        print(f"next: {shown(step)}")
    return code


def _headline(document: dict[str, Any]) -> str:
    lane, phase = document["lane"], document["phase"]
    old, new = document["from"], document["to"]
    names = {
        "committed": f"{lane} is on {new.get('profile')} ({short(new.get('sha256'))})",
        "unchanged": f"{lane} is on {new.get('profile')} already: nothing to do",
        "dry-run": f"{lane} could go to {new.get('profile')} ({short(new.get('sha256'))})",
        "rolled-back": f"{lane} is back on {old.get('profile')} ({short(old.get('sha256'))}), "
        "confirmed",
        "aborted": f"{lane} was not changed",
        "degraded": f"{lane} is DEGRADED and quarantined",
    }
    reason = document["reason"] if phase not in ("committed", "unchanged", "dry-run") else ""
    return f"{phase}: {names[phase]}" + (f": {reason}" if reason else "")


def _receipt_lines(document: dict[str, Any]) -> list[tuple[str, str]]:
    receipt, lines = document["receipt"], []
    if document["switch"]:
        lines.append(("switch", document["switch"]))
    if receipt.get("from_sha256"):
        old, new = document["from"], document["to"]
        lines.append(("from", f"{old['profile']}  {old['sha256']}"))
        lines.append(("to", f"{new['profile']}  {new['sha256']}"))
    if receipt.get("followed_link"):
        lines.append(("launcher", f"{receipt['launcher']}, to which the configured path is a link"))
    if receipt.get("backup"):
        lines.append(("backup", receipt["backup"]))
    program = receipt.get("program") or {}
    before, after = program.get("before") or {}, program.get("after") or {}
    if before or after:
        lines.append(("program", f"pid {before.get('pid')} -> {after.get('pid')}"))
    if receipt.get("command"):
        lines.append(("command", " ".join(mask_argv(receipt["command"]))))
    if "others_untouched" in receipt:
        changed = ", ".join(receipt.get("others_changed", []))
        told = f"changed meanwhile: {changed}" if changed else "untouched"
        lines.append(("others", receipt.get("others_unknown") or told))
    if document["kind"] == "rollback" and not document["to"].get("stable"):
        lines.append(("standing", "not stable: nothing better was left to go back to"))
    if verdict := document["verdict"]:
        passed = sum(1 for p in verdict["probes"] if p["outcome"] == "passed")
        text = (
            f"{verdict['outcome']} ({verdict['class']}), {passed}/{len(verdict['probes'])} probes"
        )
        lines.append(("gate", text))
    if timings := receipt.get("timings"):
        lines.append(("timings", "  ".join(f"{k} {v:.1f}s" for k, v in timings.items())))
    return lines


def _next_step(document: dict[str, Any], code: int) -> str:
    lane = document["lane"]
    if document.get("next"):
        return str(document["next"])
    if document["phase"] == "degraded":
        return f"lanectl rollback {lane}, or lanectl doctor {lane}"
    if document["phase"] == "rolled-back":
        return f"lanectl history {lane}"
    if document["phase"] == "aborted":
        return f"lanectl status {lane}"
    return ""
