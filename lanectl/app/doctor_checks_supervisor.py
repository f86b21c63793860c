"""doctor: is supervisord set up so that a stop stops, and a start starts this very launcher?"""

from __future__ import annotations

from collections.abc import Iterator

from lanectl.app.diagnosis import Diagnosis, NotKnown, error, info, need, ok, unknown, warning
from lanectl.app.doctor_facts import Facts
from lanectl.core.command import basename
from lanectl.core.fatal import fatal_line, last_words
from lanectl.core.text import mask

Found = Iterator[Diagnosis]

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_SIGTERM, _SIGINT = 15, 2
_CATCHES_BAD_FLAGS_S = 30
"""vLLM takes 20 to 30 s to exit over a bad setting: what ends later counts as a good start."""


def _section(facts: Facts) -> str:
    name = facts.lane.program
    return f"[program:{name.rpartition(':')[2]}]"


def _put(facts: Facts, line: str) -> str:
    """How a setting is put into supervisord's file, without touching other programs."""
    program = facts.program
    group = facts.lane.program if isinstance(program, NotKnown) else program.group
    return (
        f"put `{line}` into {_section(facts)} of supervisord's configuration, then "
        f"`supervisorctl reread` and, when a restart suits, `supervisorctl update {group}`"
    )


def supervisord(facts: Facts) -> Found:
    if isinstance(facts.supervisor, NotKnown):
        yield error(
            f"supervisord at {facts.lane.supervisor} does not answer: {facts.supervisor.why}",
            facts.supervisor.mend
            or "start supervisord, or correct `supervisor` in lanectl.toml; a socket must be "
            "readable and writable for the user who runs lanectl",
        )
        return
    yield ok(f"supervisord {facts.supervisor} answers at {facts.lane.supervisor}")


def program(facts: Facts) -> Found:
    need(facts.supervisor)
    if isinstance(facts.program, NotKnown):
        yield error(facts.program.why, facts.program.mend)
        return
    found = facts.program
    if found.full_name == facts.lane.program:
        yield ok(f"supervisord knows {found.full_name}")
    else:
        yield info(
            f"{facts.lane.program} is {found.full_name} for supervisord",
            f'set `program = "{found.full_name}"` in lanectl.toml',
        )


def program_state(facts: Facts) -> Found:
    found = need(facts.program)
    lane = facts.lane.name
    if found.state in ("RUNNING", "STARTING"):
        yield ok(f"{found.full_name} is {found.state}, pid {found.pid}")
        return
    if found.state == "STOPPED":
        yield warning(
            f"{found.full_name} is STOPPED: what only a live lane shows is not judged",
            f"lanectl restart {lane}",
        )
        return
    log = "" if isinstance(facts.log, NotKnown) else facts.log
    why = found.spawn_error
    if not why or why.startswith("Exited too quickly"):
        why = fatal_line(log) or last_words(log) or why
    yield error(
        f"{found.full_name} is {found.state}" + (f": {mask(why)}" if why else ""),
        f"look at {found.stdout_log or 'its log'}, then `lanectl rollback {lane}`",
    )


def runs_this_launcher(facts: Facts) -> Found:
    settings, command, launcher = need(facts.settings), need(facts.command), need(facts.launcher)
    if launcher is None:
        return
    at = command.at(launcher.path)
    said = mask(settings.command)
    mend = _put(facts, f"command={launcher.asked}")
    if at is None and any(launcher.asked in word for word in command.words):
        yield unknown(f"{launcher.asked} stands inside another word of `command={said}`", mend)
    elif at is None:
        yield error(
            f"`command={said}` does not run {launcher.asked}: what lanectl changes there would "
            "change nothing",
            mend,
        )
    else:
        yield ok(f"`command=` runs {launcher.asked}")


def command_arguments(facts: Facts) -> Found:
    """Words after the launcher become $1, $2 …, which a launcher may pass on to the server."""
    command, launcher, view = need(facts.command), need(facts.launcher), need(facts.view)
    at = command.at(launcher.path) if launcher else None
    words = command.words[at + 1 :] if at is not None else ()
    if not words:
        yield ok("`command=` gives the launcher no arguments")
        return
    used = any(name.isdigit() for name in need(facts.knobs)) or any(
        finding.code == "script-arguments" for finding in view.findings
    )
    text = f"`command=` gives the launcher arguments: {mask(' '.join(words))}"
    if used:
        yield warning(
            f"{text}; it uses them, so its text alone does not say what the server is told",
            "move them into the launcher and leave `command=` with its path alone",
        )
    else:
        yield info(f"{text}; it does not use them", "leave `command=` with its path alone")


def command_shell(facts: Facts) -> Found:
    """Whatever stands before the launcher in `command=`."""
    command, launcher = need(facts.command), need(facts.launcher)
    before = command.words[: command.at(launcher.path) or 0] if launcher else ()
    if not before:
        yield ok("nothing stands before the launcher in `command=`")
    elif any(word.startswith("-") and "c" in word[1:3] for word in before[1:]):
        yield warning(
            f"`command=` runs the launcher inside `{' '.join(before)}`: a shell that stays "
            "between takes the signals",
            _put(facts, f"command={facts.lane.launcher}"),
        )
    else:
        yield info(f"`command=` runs the launcher through `{mask(' '.join(before))}`")


def through_shell(facts: Facts) -> bool:
    """Whether `command=` names a shell for the launcher: then it needs no run bit."""
    if isinstance(facts.command, NotKnown) or facts.launcher is None:
        return False
    launcher = need(facts.launcher)
    at = facts.command.at(launcher.path) if launcher else None
    return bool(at) and any(basename(word) in _SHELLS for word in facts.command.words[:at])


def environment(facts: Facts) -> Found:
    """Names that supervisord sets and the launcher only has a default for."""
    knobs = need(facts.knobs)
    settings = need(facts.settings)
    told = settings.environment
    if told is None:
        environ = facts.environ
        told = environ if not isinstance(environ, NotKnown) else None
    if told is None:
        yield unknown(
            "supervisord's API does not tell `environment=`, and its file could not be read",
            f"grep -n environment in {_section(facts)} of supervisord's configuration",
        )
        return
    names = sorted(name for name in knobs if name in told)
    if names:
        yield warning(
            f"supervisord's environment sets {', '.join(names)}, so the launcher's own default "
            "does not count: a profile's `env` for it would change nothing",
            f"remove {', '.join(names)} from `environment=` in {_section(facts)}",
        )
    else:
        yield ok("supervisord's environment overrides no default of the launcher")


def stopasgroup(facts: Facts) -> Found:
    yield from _as_group(facts, "stopasgroup", need(facts.settings).stop_as_group)


def killasgroup(facts: Facts) -> Found:
    yield from _as_group(facts, "killasgroup", need(facts.settings).kill_as_group)


def _as_group(facts: Facts, name: str, value: bool | None) -> Found:
    if value is None:
        yield unknown(
            f"supervisord's API does not tell {name}, and its file could not be read or has been "
            "edited since supervisord read it",
            f"grep -n {name} in {_section(facts)} of supervisord's configuration; it must be "
            f"`{name}=true`",
        )
    elif value:
        yield ok(f"{name}=true")
    else:
        signal = "SIGTERM" if name == "stopasgroup" else "SIGKILL"
        yield error(
            f"{name}=false: supervisord's {signal} reaches one process only, and the engine (or "
            "the server behind a launcher without `exec`) lives on with port or GPU memory",
            _put(facts, f"{name}=true"),
            "vllm#55510",
        )


def stopwaitsecs(facts: Facts) -> Found:
    settings, lane = need(facts.settings), facts.lane
    waits = settings.stop_wait_secs
    grace = 0.0
    if not isinstance(facts.server, NotKnown):
        said = facts.server.flags.get("--shutdown-timeout")
        grace = float(said) if isinstance(said, str) and said.isdigit() else 0.0
    if waits < grace:
        yield warning(
            f"stopwaitsecs={waits:g} is shorter than --shutdown-timeout {grace:g}: supervisord "
            "kills the server while it lets requests finish",
            _put(facts, f"stopwaitsecs={grace + 10:g}"),
        )
    elif lane.stop_timeout_s < grace:
        yield warning(
            f"stop_timeout_s = {lane.stop_timeout_s:g} is shorter than --shutdown-timeout "
            f"{grace:g}: lanectl kills the server while it lets requests finish",
            f"set `stop_timeout_s = {grace + 10:g}` in lanectl.toml",
        )
    elif waits < lane.stop_timeout_s:
        yield info(
            f"stopwaitsecs={waits:g} is shorter than stop_timeout_s = {lane.stop_timeout_s:g}: "
            "supervisord kills first",
            _put(facts, f"stopwaitsecs={lane.stop_timeout_s:g}"),
        )
    else:
        yield ok(f"stopwaitsecs={waits:g}")


def shutdown_timeout(facts: Facts) -> Found:
    said = need(facts.server).flags.get("--shutdown-timeout")
    if said in (None, "0"):
        yield info(
            "without --shutdown-timeout a stop cuts the requests that run (HTTP 200, "
            "`finish_reason: abort`); `switch` drains first, `supervisorctl` does not",
            f"stop this lane with lanectl, or drain it first (`lanectl status {facts.lane.name}`)",
        )
    else:
        yield ok(f"--shutdown-timeout {said}: requests that run may finish")


def stopsignal(facts: Facts) -> Found:
    signal = need(facts.settings).stop_signal
    if signal in (_SIGTERM, _SIGINT):
        yield ok(f"stopsignal={'TERM' if signal == _SIGTERM else 'INT'}")
    else:
        yield warning(
            f"stopsignal is signal {signal}, which vLLM does not take as a wish to end in order",
            _put(facts, "stopsignal=TERM"),
        )


def startsecs(facts: Facts) -> Found:
    seconds = need(facts.settings).start_secs
    if seconds < _CATCHES_BAD_FLAGS_S:
        yield info(
            f"startsecs={seconds:g}: a launcher that dies later than that (vLLM takes 20 s and "
            "more over a bad flag) is RUNNING each time, is started again for ever, and is never "
            "FATAL; `startretries` does not count it",
            _put(facts, f"startsecs={_CATCHES_BAD_FLAGS_S}"),
        )
    else:
        yield ok(f"startsecs={seconds:g}")


def autorestart(facts: Facts) -> Found:
    value = need(facts.settings).auto_restart
    if value is None:
        yield unknown(
            "supervisord's API does not tell autorestart, and its file could not be read",
            f"grep -n autorestart in {_section(facts)} of supervisord's configuration",
        )
    elif value == "unexpected":
        yield warning(
            "autorestart=unexpected: vLLM exits with code 0 when its engine dies, which counts "
            "as expected, so the lane stays down",
            _put(facts, "autorestart=true"),
            "vllm#48966",
        )
    elif value == "false":
        yield info("autorestart=false: nothing starts the lane again when it dies")
    else:
        yield ok("autorestart=true")


def autostart(facts: Facts) -> Found:
    if need(facts.settings).auto_start:
        yield ok("autostart=true")
    else:
        yield info("autostart=false: after a reboot the lane stays down until somebody starts it")


def log_files(facts: Facts) -> Found:
    settings = need(facts.settings)
    if not settings.redirect_stderr and not settings.stderr_log:
        yield warning(
            "stderr is thrown away: vLLM logs there, so a failed start leaves no reason",
            _put(facts, "redirect_stderr=true"),
        )
    elif not settings.stdout_log:
        yield warning(
            "stdout is thrown away: a failed start may leave no reason",
            _put(facts, "stdout_logfile=AUTO"),
        )
    else:
        yield ok(f"logs go to {settings.stdout_log}")


def log_unlinked(facts: Facts) -> Found:
    gone, found = need(facts.logs_gone), need(facts.program)
    if not gone:
        yield ok("the log files are there")
    elif found.pid is None:
        yield info(f"{', '.join(gone)} is not there; supervisord makes it at the next start")
    else:
        yield error(
            f"{', '.join(gone)} was removed while supervisord writes to it (a logrotate without "
            "`copytruncate`): what is logged goes nowhere",
            f"lanectl repair {facts.lane.name} reopen-log; then add `copytruncate` to logrotate",
        )


def shared_with_other_programs(facts: Facts) -> Found:
    """Two programs on one launcher or one port: the later start fails, or both answer."""
    lane, clean = facts.lane, True
    launcher = facts.launcher
    for other in need(facts.others):
        name = other.program.full_name
        runs = other.program.pid is not None
        if launcher is not None and other.command.at(need(launcher).path) is not None:
            clean = False
            yield error(
                f"program {name} runs the same launcher {lane.launcher}",
                f"give {name} a launcher of its own, or remove it from supervisord",
            )
        elif lane.port in other.ports:
            clean = False
            text = f"program {name} starts a server on the same port {lane.port}"
            mend = f"give {name} another `--port`, or set `autostart=false` for it"
            yield error(f"{text}, and it runs", mend) if runs else warning(text, mend)
    if clean:
        yield ok("no other program of this supervisord has this launcher or port")
