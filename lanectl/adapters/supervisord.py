"""`ports.Supervisor` for a real supervisord.

Every start and stop is asked for with `wait=False`: an unkillable process stays STOPPING for ever,
and a waiting call with it (field note 22). The faults of field notes 21 and 23 become our errors
here; a group name or `group:*` is refused, because there supervisord would act on several programs.
"""

from __future__ import annotations

import difflib
import xmlrpc.client
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from lanectl.adapters import supervisord_conf
from lanectl.adapters.supervisord_wire import ReplyFailed, Wire
from lanectl.errors import ConfigError, EffectFailed, Unreachable
from lanectl.ports import Program, ProgramSettings


class _Fault(IntEnum):
    UNKNOWN_METHOD = 1
    SHUTDOWN_STATE = 6
    BAD_NAME = 10
    NO_FILE = 20
    NOT_EXECUTABLE = 21
    FAILED = 30
    ABNORMAL_TERMINATION = 40
    SPAWN_ERROR = 50
    ALREADY_STARTED = 60
    NOT_RUNNING = 70


_START_REFUSED: Mapping[int, tuple[str, str]] = {
    _Fault.NO_FILE: ("its command does not exist", "correct `command` in supervisord's file"),
    _Fault.NOT_EXECUTABLE: ("its command may not be executed", "chmod +x the launcher"),
    _Fault.FAILED: ("supervisord does not know its state", "look at supervisord's own log"),
    _Fault.ABNORMAL_TERMINATION: ("it ended at once", "look at the program's log"),
    _Fault.SPAWN_ERROR: ("it could not be spawned, or ended at once", "look at the program's log"),
    _Fault.ALREADY_STARTED: (
        "supervisord calls it started already (RUNNING, STARTING or BACKOFF)",
        "stop it first",
    ),
}


class Supervisord:
    """One supervisord at `unix:///path` or `http://host:port`.

    timeout_s: for each call. read_conf: fill what the API does not tell from supervisord's own
    configuration file, where supervisord runs on this machine.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password_file: str | None = None,
        timeout_s: float = 5.0,
        read_conf: bool = True,
    ) -> None:
        self._wire = Wire(url, user, password_file, timeout_s)
        self._read_conf = read_conf and self._wire.local

    def close(self) -> None:
        self._wire.close()

    def version(self) -> str:
        return str(self._call("getSupervisorVersion"))

    def pid(self) -> int:
        return int(self._call("getPID"))

    # ----------------------------------------------------------------------------------- looking

    def programs(self) -> list[Program]:
        return [_program(info) for info in self._call("getAllProcessInfo")]

    def program(self, name: str) -> Program:
        return _program(self._of("getProcessInfo", name))

    def settings(self, name: str) -> ProgramSettings:
        """As supervisord read its configuration last, which after a `reread` without an `update`
        is not what the running program was started with.
        """
        for config in self._call("getAllConfigInfo"):
            if name in _names(config):
                return self._settings(config)
        raise self._no_such_program(name)

    def _settings(self, config: Mapping[str, Any]) -> ProgramSettings:
        kill_as_group = config.get("killasgroup")
        conf = (
            supervisord_conf.read_settings(self.pid(), config["group"], config["name"])
            if self._read_conf
            else None
        )
        if conf and kill_as_group is not None and conf.kill_as_group != kill_as_group:
            conf = None  # The file was edited since supervisord read it: it proves nothing.
        stop_as_group = conf.stop_as_group if conf else None
        if kill_as_group is False:
            stop_as_group = False  # supervisord refuses stopasgroup without killasgroup.
        return ProgramSettings(
            command=_text(config["command"]),
            directory=_text(config.get("directory")),
            start_secs=float(config["startsecs"]),
            stop_wait_secs=float(config["stopwaitsecs"]),
            stop_signal=int(config["stopsignal"]),
            stop_as_group=stop_as_group,
            kill_as_group=kill_as_group,
            auto_start=bool(config["autostart"]),
            auto_restart=conf.auto_restart if conf else None,
            redirect_stderr=bool(config["redirect_stderr"]),
            stdout_log=_text(config.get("stdout_logfile")),
            stderr_log=_text(config.get("stderr_logfile")),
            environment=conf.environment if conf else None,
        )

    def log_tail(self, name: str, *, max_bytes: int = 16384) -> str:
        """The end of the stdout log, then of the stderr log, at most `max_bytes` of each."""
        tails = [self._tail(f"readProcess{which}Log", name, max_bytes) for which in _CHANNELS]
        return "\n".join(tail.rstrip("\n") for tail in tails if tail)

    def _tail(self, method: str, name: str, max_bytes: int) -> str:
        # supervisord decodes the cut-out as strict UTF-8 and stumbles (HTTP 500) where the cut goes
        # through a character, or where a program logged something else: then ask for less.
        for size in (*range(max_bytes, max_bytes - 4, -1), max_bytes // 4, max_bytes // 16):
            try:
                return str(self._of(method, name, -max(size, 1), 0))
            except ReplyFailed:
                continue
            except xmlrpc.client.Fault:
                return ""
        return ""

    def log_mark(self, name: str) -> tuple[int, int]:
        """The sizes of the stdout and stderr logs in bytes; 0 for one that cannot be read."""
        out, err = (self._log_size(name, which) for which in _CHANNELS)
        return out, err

    def log_since(self, name: str, mark: tuple[int, int], *, max_bytes: int = 65536) -> str:
        """What both logs gained since `mark`, at most the last `max_bytes` of each."""
        gained: list[str] = []
        for which, start in zip(_CHANNELS, mark, strict=True):
            size = self._log_size(name, which)
            fresh = size - start if size >= start else size  # It shrank: rotated, so all is new.
            if fresh:
                gained.append(self._tail(f"readProcess{which}Log", name, min(fresh, max_bytes)))
        return "\n".join(text.rstrip("\n") for text in gained if text)

    def _log_size(self, name: str, which: str) -> int:
        try:
            _, size, _ = self._of(f"tailProcess{which}Log", name, 0, 0)
        except (ReplyFailed, xmlrpc.client.Fault):
            return 0
        return int(size)

    # ---------------------------------------------------------------------------------- changing

    def stop(self, name: str) -> None:
        try:
            self._of("stopProcess", name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != _Fault.NOT_RUNNING:
                raise EffectFailed(
                    f"supervisord could not stop {name}: {fault.faultString}",
                    next_step="look at supervisord's own log",
                ) from fault

    def start(self, name: str) -> None:
        try:
            self._of("startProcess", name, False)
        except xmlrpc.client.Fault as fault:
            meaning, next_step = _START_REFUSED.get(
                int(fault.faultCode), (fault.faultString, "look at supervisord's own log")
            )
            why = self._spawn_error(name) or fault.faultString
            raise EffectFailed(
                f"supervisord did not start {name}: {meaning} ({why}, fault {fault.faultCode})",
                next_step=next_step,
            ) from fault

    def clear_logs(self, name: str) -> None:
        """Empty both logs and open them anew: an unlinked log file comes back (field note 25)."""
        try:
            self._of("clearProcessLogs", name)
        except xmlrpc.client.Fault as fault:
            raise EffectFailed(
                f"supervisord could not clear the logs of {name}: {fault.faultString}",
                next_step="look at the permissions of its log folder",
            ) from fault

    def _spawn_error(self, name: str) -> str:
        try:
            return self.program(name).spawn_error
        except (Unreachable, ConfigError, xmlrpc.client.Fault):
            return ""

    # ----------------------------------------------------------------------------------- calling

    def _of(self, method: str, name: str, *params: int | bool) -> Any:
        """Call a method of one program. A name that is none, or several, is a ConfigError."""
        if not name or name.endswith((":", ":*")) or name == "*":
            raise ConfigError(
                f"{name!r} does not name one program of supervisord",
                key="program",
                next_step="name one program, as `group:name`",
            )
        try:
            return self._call(method, name, *params)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != _Fault.BAD_NAME:
                raise
        raise self._no_such_program(name)

    def _call(self, method: str, *params: str | int | bool) -> Any:
        try:
            return self._wire.call(f"supervisor.{method}", *params)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == _Fault.SHUTDOWN_STATE:
                raise Unreachable(
                    f"supervisord at {self._wire.url} is shutting down or restarting",
                    next_step="wait until it is back",
                ) from fault
            if fault.faultCode == _Fault.UNKNOWN_METHOD:
                raise Unreachable(
                    f"what answers at {self._wire.url} does not know {method}: no supervisord, or "
                    "one without its rpcinterface",
                    next_step="add [rpcinterface:supervisor] to supervisord's configuration",
                ) from fault
            raise

    def _no_such_program(self, name: str) -> ConfigError:
        known = [program.full_name for program in self.programs()]
        near = _near(name, known)
        return ConfigError(
            f"supervisord at {self._wire.url} has no program {name!r}"
            + (f"; near: {', '.join(near)}" if near else ""),
            key="program",
            next_step=f"set program to one of: {', '.join(near or known) or 'none is configured'}",
        )


_CHANNELS = ("Stdout", "Stderr")


def _program(info: Mapping[str, Any]) -> Program:
    return Program(
        name=info["name"],
        group=info["group"],
        state=info["statename"],
        pid=info["pid"] or None,
        started=info["start"] or None,
        stopped=info["stop"] or None,
        exit_status=info["exitstatus"],
        spawn_error=info["spawnerr"],
        stdout_log=info["stdout_logfile"],
        stderr_log=info["stderr_logfile"],
    )


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the API takes for this program."""
    full = f"{config['group']}:{config['name']}"
    return (full, config["name"]) if config["name"] == config["group"] else (full,)


def _text(value: Any) -> str:
    """A setting as text; the API says "none" for None."""
    return "" if value in (None, "none") else str(value)


def _near(name: str, known: list[str]) -> list[str]:
    """Full names that `name` may have meant: its own name in some group, else the like of it."""
    _, _, bare = name.rpartition(":")
    exact = [full for full in known if bare in full.split(":")]
    return exact or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
