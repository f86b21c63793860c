"""Runs changes in processes of their own, and kills one with SIGKILL at a chosen step.

    driver.py CONFIG        # then one job a line on standard input, one answer a line on output

    {"change": "switch", "profile": "a", "fatal": 7}     -> {"status": -9, "out": …, "err": …}
    {"words": ["restart", "--json"]}                     -> a lanectl command, the same answer

A step is the moment before, or just after, one effect: a durable record of the journal, a file
staged, copied or renamed, a stop or a start asked for. `fatal` is a number, or the name of a step;
0 kills nowhere. The steps passed are printed, one a line. Each job is a fork of this process, so
it pays for no import.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanectl import wiring
from lanectl.app import change
from lanectl.app.change import Asking
from lanectl.cli import errors
from lanectl.cli.main import COMMANDS, cli
from lanectl.config import load

EFFECTS = {
    "store": ("open_switch", "enter", "finish", "set_current", "set_stable", "set_barred"),
    "host": ("stage", "replace", "back_up", "discard_stale"),
    "supervisor": ("stop", "start"),
}

CLOSELY_FOLLOWED = ("finish", "discard_stale", "set_current", "set_stable", "set_barred")
"""Between these and the next step nothing is written: what comes after one is before the next."""


class Steps:
    """Counts the steps; dies at the chosen one."""

    def __init__(self, fatal: int | str) -> None:
        self.fatal, self.passed = fatal, 0

    def step(self, name: str) -> None:
        self.passed += 1
        print(name, flush=True)
        if self.fatal in (self.passed, name):
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, port: str, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            what = f"{port}.{name}({args[1]})" if name in ("enter", "finish") else f"{port}.{name}"
            self.step(f"before {what}")
            result = call(*args, **kwargs)
            if name not in CLOSELY_FOLLOWED:
                self.step(f"after {what}")
            return result

        return stepped


class Mortal:
    """A port whose effects are steps."""

    def __init__(self, port: str, real: Any, steps: Steps) -> None:
        self._port, self._real, self._steps = port, real, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name in EFFECTS[self._port]:
            return self._steps.around(self._port, name, found)
        return found

    @contextmanager
    def lock(self, *args: Any) -> Any:
        with self._real.lock(*args):
            yield


def run(file: str, kind: str, profile: str, fatal: int | str) -> None:
    """One change, or the closing of a dead one (`recover`), to its end or to the fatal step."""
    config = load(Path(file))
    lane = config.lane(None)
    steps = Steps(fatal)
    asking = Asking("crash test", barred_ok=True)
    with wiring.ports(config, lane) as real:
        ports = replace(
            real,
            store=Mortal("store", real.store, steps),
            host=Mortal("host", real.host, steps),
            supervisor=Mortal("supervisor", real.supervisor, steps),
        )
        if kind == "recover":
            with ports.host.lock(lane.launcher, {"who": "crash test"}):
                row: Any = change.recover(ports, lane, lambda _text: None)
        else:
            plans = {
                "switch": lambda _undone: change.plan_switch(ports, config, lane, profile, asking),
                "rollback": lambda undone: change.plan_rollback(
                    ports, config, lane, asking, undone=undone
                ),
                "restart": lambda _undone: change.plan_restart(ports, config, lane, asking),
            }
            row = change.run(
                ports,
                lane,
                plans[kind],
                asking=asking,
                say=lambda _text: None,
                preempt=kind == "rollback",
            )
        print("ended", getattr(row, "phase", "unchanged"), flush=True)


def job(file: str, asked: dict[str, Any]) -> int:
    if "words" in asked:
        return errors.run(cli, asked["words"])
    run(file, asked["change"], asked.get("profile", ""), asked.get("fatal", 0))
    return 0


def forked(file: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Do one job in a fork; its exit status (minus the signal that ended it) and its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                code = job(file, asked)
                sys.stdout.flush()
                os._exit(code)
            except BaseException as error:  # noqa: BLE001  (a fork must never return)
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        said = {"out": out.read().decode(), "err": err.read().decode()}
        return {"status": status, **said}


def main() -> None:
    for module in {module for module, _ in COMMANDS.values()}:
        importlib.import_module(f"lanectl.cli.{module}")
    for line in sys.stdin:
        print(json.dumps(forked(sys.argv[1], json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
