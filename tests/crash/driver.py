"""Runs one change in this very process and kills it with SIGKILL at a chosen step.

    driver.py CONFIG KIND PROFILE STEP

A step is the moment before, or just after, one effect: a durable record of the journal, a file
staged, copied or renamed, a stop or a start asked for. STEP 0 kills nowhere; the steps passed are
printed, one a line, so that the test can ask for each of them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanectl import wiring
from lanectl.app import change
from lanectl.app.change import Asking
from lanectl.config import load

EFFECTS = {
    "store": ("open_switch", "enter", "finish", "set_current", "set_stable", "set_barred"),
    "host": ("stage", "replace", "back_up", "discard_stale"),
    "supervisor": ("stop", "start"),
}


class Steps:
    """Counts the steps; dies at the chosen one."""

    def __init__(self, fatal: int) -> None:
        self.fatal, self.passed = fatal, 0

    def step(self, name: str) -> None:
        self.passed += 1
        print(name, flush=True)
        if self.passed == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, port: str, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            what = f"{port}.{name}({args[1]})" if name in ("enter", "finish") else f"{port}.{name}"
            self.step(f"before {what}")
            result = call(*args, **kwargs)
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


def main() -> None:
    file, kind, profile, fatal = sys.argv[1:]
    config = load(Path(file))
    lane = config.lane(None)
    steps = Steps(int(fatal))
    asking = Asking("crash test", barred_ok=True)
    with wiring.ports(config, lane) as real:
        ports = replace(
            real,
            store=Mortal("store", real.store, steps),
            host=Mortal("host", real.host, steps),
            supervisor=Mortal("supervisor", real.supervisor, steps),
        )
        plans = {
            "switch": lambda: change.plan_switch(ports, config, lane, profile, asking),
            "rollback": lambda: change.plan_rollback(ports, config, lane, asking),
        }
        row = change.run(
            ports, lane, plans[kind], asking=asking, say=lambda _t: None, preempt=kind == "rollback"
        )
        print("ended", getattr(row, "phase", "unchanged"))


if __name__ == "__main__":
    main()
