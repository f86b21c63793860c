"""doctor: the launcher as a file and as a script, and whether it is what was recorded."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace

from lanectl.app.diagnosis import Diagnosis, NotKnown, error, info, need, ok, warning
from lanectl.app.doctor_checks_supervisor import through_shell
from lanectl.app.doctor_facts import Facts
from lanectl.core.launcher_read import DEFAULT_PORT
from lanectl.ports import LauncherFile

Found = Iterator[Diagnosis]

_CLOCK_SLACK_S = 5.0


def _file(facts: Facts) -> LauncherFile:
    """The launcher; where it is absent, `launcher` says so and the others could not tell."""
    found = need(facts.launcher)
    return found if found is not None else need(NotKnown("there is no launcher to look at"))


def launcher(facts: Facts) -> Found:
    found, lane = need(facts.launcher), facts.lane
    if found is None:
        backups = [] if isinstance(facts.backups, NotKnown) else facts.backups
        back = f"lanectl rollback {lane.name} --backup {backups[0].path}" if backups else ""
        yield error(
            f"there is no launcher {lane.launcher}",
            back or "put it there, or correct `launcher` in lanectl.toml",
        )
    elif found.path != found.asked:
        yield info(f"{found.asked} is a link; {found.path} is what is read and changed")
    else:
        yield ok(f"{found.path} is there")


def launcher_mode(facts: Facts) -> Found:
    found = _file(facts)
    path, mode = found.path, found.mode
    clean = True
    if not mode & 0o111 and not through_shell(facts):
        clean = False
        yield error(
            f"{path} has no run bit (mode {mode:04o}): supervisord cannot start it (fault 21)",
            f"chmod +x {path}",
        )
    if mode & stat.S_IWOTH:
        clean = False
        yield error(
            f"anyone can write to {path} (mode {mode:04o}), and so run what they like as the lane",
            f"chmod o-w {path}",
        )
    elif mode & stat.S_IWGRP:
        clean = False
        yield warning(f"the group of {path} can write to it (mode {mode:04o})", f"chmod g-w {path}")
    if clean:
        yield ok(f"mode {mode:04o}")


def launcher_owner(facts: Facts) -> Found:
    found = _file(facts)
    owner = facts.launcher_owner
    runs_as = facts.runs_as
    if isinstance(runs_as, NotKnown) or runs_as is None:
        yield info(f"{found.path} belongs to {owner}; who runs it cannot be seen while it is down")
    elif found.uid not in (0, runs_as.uid):
        yield warning(
            f"{found.path} belongs to {owner} and runs as {runs_as.owner}: {owner} decides what "
            f"{runs_as.owner} runs",
            f"chown {runs_as.owner} {found.path}, or put `user={owner}` into supervisord's program",
        )
    else:
        yield ok(f"{found.path} belongs to {owner}, and the program runs as {runs_as.owner}")


def program_user(facts: Facts) -> Found:
    runs_as = need(facts.runs_as)
    if runs_as is None:
        need(NotKnown(f"{facts.lane.program} does not run, so nobody is to be seen running it"))
    elif runs_as.uid == 0:
        yield info(
            "the lane runs as root",
            "put `user=NAME` into supervisord's program section, with a user of the lane's own",
        )
    else:
        yield ok(f"the lane runs as {runs_as.owner}")


def launcher_folder(facts: Facts) -> Found:
    owner = _file(facts).uid
    clean = True
    for path, folder in need(facts.folders):
        if folder.mode & stat.S_IWOTH and not folder.mode & stat.S_ISVTX:
            clean = False
            yield error(
                f"anyone can write to the folder {path} and swap the launcher; lanectl refuses "
                "to change a launcher there",
                f"chmod o-w {path}",
            )
        elif folder.uid not in (0, facts.me, owner):
            clean = False
            yield error(
                f"the folder {path} belongs to {folder.owner}, who can swap the launcher; lanectl "
                "refuses to change a launcher there",
                f"chown {facts.launcher_owner or 'root'} {path}",
            )
        elif folder.mode & stat.S_IWOTH:
            clean = False
            yield info(
                f"anyone can put files into the folder {path} (it is sticky: not swap the launcher)"
            )
    if clean:
        yield ok("nobody else can swap the launcher in its folder")


def launcher_syntax(facts: Facts) -> Found:
    check = need(facts.script)
    if check.ok:
        yield ok(f"`{check.interpreter} -n` accepts it")
    else:
        yield error(
            f"`{check.interpreter} -n` refuses it: {check.stderr.strip()}",
            f"mend the script, or go back: lanectl rollback {facts.lane.name}",
        )


def launcher_text(facts: Facts) -> Found:
    """What `lanectl launcher show` finds. Its texts end in what to do."""
    found = need(facts.view).findings
    for finding in found:
        what, _, mend = finding.message.rpartition(". ")
        severity = finding.severity
        if finding.code == "no-exec" and not _stops_whole_group(facts):
            severity = "error"
        yield replace(
            info(f"line {finding.line}: {what or mend}", mend if what else ""),
            severity=severity,
            check=f"launcher-{finding.code}",
        )
    if not found:
        yield ok("lanectl reads the launcher to its end and finds nothing wrong with it")


def _stops_whole_group(facts: Facts) -> bool:
    """With both settings a launcher without `exec` leaves nothing behind (field note 19)."""
    settings = facts.settings
    if isinstance(settings, NotKnown):
        return False
    return settings.stop_as_group is True and settings.kill_as_group is True


def launcher_editable(facts: Facts) -> Found:
    view = need(facts.view)
    if view.editable:
        yield ok("lanectl can edit it and prove the edit")
    else:
        yield warning(
            f"lanectl cannot edit it: {view.why_not}",
            "write it plainer, or give the lane profiles with a `script` of their own",
        )


def launcher_port(facts: Facts) -> Found:
    view, lane = need(facts.view), facts.lane
    if view.server is None:
        ports = ", ".join(str(server.port or DEFAULT_PORT) for server in view.servers)
        yield error(
            f"the launcher starts no server for port {lane.port}"
            + (f", only for {ports}" if ports else ""),
            f"correct `api` of lane {lane.name} in lanectl.toml, or `--port` in the launcher",
        )
        return
    said = view.settings.flags.get("--port") if view.settings else None
    port = view.server.port or (DEFAULT_PORT if said is None else None)
    if port is None:
        need(NotKnown(f"the launcher's port is {said}, which is known only at run time"))
    elif port != lane.port:
        yield error(
            f"the launcher says port {port}, the lane's `api` port {lane.port}",
            f"correct `api` of lane {lane.name} in lanectl.toml, or `--port` in the launcher",
        )
    else:
        yield ok(f"launcher and `api` agree on port {port}")


def drift(facts: Facts) -> Found:
    standing, lane = need(facts.standing), facts.lane.name
    row, unfinished = standing.row, standing.unfinished
    if row is None:
        yield info(f"lane {lane} is not adopted: nothing is recorded", f"lanectl adopt {lane}")
        return
    expected = {row.current_sha256}
    if unfinished is not None:
        expected |= {unfinished.plan.from_sha256, unfinished.plan.to_sha256}
    deployed = _file(facts)
    if deployed.sha256 in expected:
        yield ok(f"the launcher is the recorded revision {deployed.sha256[:12]}")
    else:
        yield error(
            f"the launcher is {deployed.sha256[:12]}, recorded is {row.current_sha256[:12]}: "
            "somebody else changed it",
            f"keep it: lanectl adopt {lane}; overwrite it: lanectl rollback {lane} "
            f"--accept-drift {deployed.sha256}",
        )


def launcher_newer(facts: Facts) -> Found:
    """A server runs what stood in the file when it started."""
    main = need(facts.proof).main
    found = _file(facts)
    if main is None:
        need(NotKnown(f"{facts.lane.program} does not run"))
    elif found.changed_at > main.started + 1.0:
        yield warning(
            "the launcher was changed after the program had started: what runs may be older than "
            "the file",
            f"lanectl restart {facts.lane.name}",
        )
    else:
        yield ok("the program started after the launcher's last change")


def clock(facts: Facts) -> Found:
    found = _file(facts)
    if found.changed_at > facts.now + _CLOCK_SLACK_S:
        yield warning(
            f"{found.path} was changed in the future: a clock jumped",
            "set the clock right (`timedatectl`)",
        )
    else:
        yield ok("file times and clock agree")


def backups(facts: Facts) -> Found:
    found, lane = need(facts.backups), facts.lane
    if len(found) > lane.keep_backups:
        yield info(
            f"{len(found)} backups lie beside the launcher, keep_backups is {lane.keep_backups}",
            "the next switch removes the oldest",
        )
    elif not found:
        yield info("no backup lies beside the launcher yet; each switch leaves one")
    else:
        yield ok(f"{len(found)} backups, the newest {found[0].path}")


def standing(facts: Facts) -> Found:
    """What stands open about the lane: a quarantine, a bar, a dead switch, a lost probation."""
    found, lane = need(facts.standing), facts.lane.name
    clean = True
    if found.row is not None and found.row.quarantined:
        clean = False
        yield warning(
            f"lane {lane} is quarantined: {found.row.quarantined}", f"lanectl release {lane}"
        )
    if found.current is not None and found.current.barred:
        clean = False
        yield warning(
            f"the deployed revision {found.current.sha256[:12]} is barred: it was rolled away from",
            f"lanectl rollback {lane}, or lanectl release {lane}",
        )
    if found.unfinished is not None:
        clean = False
        text = f"switch {found.unfinished.id} is in {found.unfinished.phase}"
        if found.holder:
            yield info(f"{text}, held by pid {found.holder.get('pid')}")
        else:
            yield error(
                f"{text} and its worker is dead",
                f"lanectl restart {lane} or lanectl rollback {lane} closes it",
            )
    if found.probation is not None:
        clean = False
        if found.watched:
            yield info(f"in probation until {found.probation.ends_at:%Y-%m-%d %H:%M:%S} UTC")
        else:
            yield warning(
                "the worker that watches the probation is gone: the revision never becomes stable",
                f"lanectl restart {lane}",
            )
    if clean:
        yield ok("nothing stands open")
