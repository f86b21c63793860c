"""What is measured: the rows of the design's section on speed that need no daemon."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import big_store
from lanes import Lanectl, Peer, ansible, install_ansible, lane, run_lanectl, shell, timed
from measure import Row, in_turn

from lanectl.demo.rig import Rig

switches: list[dict[str, Any]] = []
"""What the measured switches printed, for the profile."""


def switch_shell(pairs: int) -> Iterator[Row]:
    """A whole switch against the plain shell script."""
    for options, goal, note in (
        ({}, 0.8, ""),
        ({"startsecs": 0}, None, ", startsecs=0"),
    ):
        with lane(**options) as our_rig, lane(**options) as their_rig:
            ours, theirs = Lanectl(our_rig), Peer(their_rig, "shell script", shell)
            values, peer = in_turn(pairs, ours, theirs)
        switches.extend(ours.documents)
        yield Row(f"a whole switch, daemon down{note}", values, peer, theirs.name, goal)


def switch_ansible(pairs: int) -> Iterator[Row]:
    """A whole switch against the Ansible playbook."""
    install_ansible()
    with lane() as our_rig, lane() as their_rig:
        ours, theirs = Lanectl(our_rig), Peer(their_rig, "Ansible playbook", ansible)
        values, peer = in_turn(pairs, ours, theirs)
    yield Row("a whole switch, daemon down", values, peer, theirs.name, 0.25)


# ------------------------------------------------------------------------------- a dead launcher

# The shell notes the moment itself, as its last act, without starting a program for it.
_DYING = """\
#!/usr/bin/env bash
set -euo pipefail
if [[ -e {marker} ]]; then
  printf '%s\\n' "$EPOCHREALTIME" >>{marker}
  exit 1
fi
"""
_LATER = "  sleep 0.3\n"


def noticed(pairs: int) -> Iterator[Row]:
    """From the exit of a launcher to the journal's record of `reverting`."""
    for what, before_exit in (("at once", ""), ("0.3 s after its start", _LATER)):
        yield Row(
            f"dead launcher noticed; it ends {what}",
            [_noticed(before_exit) for _ in range(pairs)],
            goal=0.150,
        )


def _noticed(before_exit: str) -> float:
    with lane(autorestart="false") as rig:
        marker, script = rig.folder / "exits", rig.folder / "dying.sh"
        marker.touch()
        text = rig.launcher_text(speculative=None).partition("set -euo pipefail\n")[2]
        head = _DYING.format(marker=marker).replace("  printf", f"{before_exit}  printf")
        script.write_text(head + text)
        rig.write_config(profiles={"dying": {"script": str(script)}})
        run_lanectl(rig, "adopt", "--unproven")
        document = run_lanectl(rig, "switch", "dying", "--gate", "quick", expect=4)
        exited = float(marker.read_text().split()[0])
    reverting = next(e for e in document["events"] if e["phase"] == "reverting")
    return datetime.fromisoformat(reverting["at"]).timestamp() - exited


# -------------------------------------------------------------------------------------- rollback


def rollback(pairs: int) -> Iterator[Row]:
    """From the start of `lanectl rollback` until the old launcher is there and the stop is sent."""
    with lane() as rig:
        run_lanectl(rig, "adopt", "--unproven")
        values = []
        for number in range(pairs + 1):
            run_lanectl(rig, "switch", "reliability", "--gate", "quick", "--barred-ok")
            values.append(_rollback(rig))
            if number == 0:
                values.clear()
    yield Row("rollback, until in place and the stop sent", values, goal=0.5)


def _rollback(rig: Rig) -> float:
    """The stop counts as sent when the old server has ended, which it does within milliseconds."""
    inode = rig.launcher.stat().st_ino
    server = os.pidfd_open(rig.program()["pid"])
    began = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-m", "lanectl", "rollback", "--json"],
        env=rig.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if not select.select([server], [], [], 60)[0]:
        raise RuntimeError("rollback did not stop the program")
    elapsed = time.perf_counter() - began
    os.close(server)
    if rig.launcher.stat().st_ino == inode:
        raise RuntimeError("the program was stopped before the old launcher was in place")
    if code := command.wait(timeout=60):
        raise RuntimeError(f"rollback: exit {code}")
    return elapsed


# ----------------------------------------------------------------------------------- a long past


def long_past(pairs: int) -> Iterator[Row]:
    """`status` and `history` with a large store against the same lane with an empty one."""
    with lane() as rig, tempfile.TemporaryDirectory(prefix="lanectl-bench-") as folder:
        run_lanectl(rig, "adopt", "--unproven")
        store, empty, large = (
            rig.folder / "lanectl.db",
            Path(folder, "empty"),
            Path(folder, "large"),
        )
        shutil.copy(store, empty)
        run_lanectl(rig, "switch", "reliability", "--gate", "quick")
        run_lanectl(rig, "smoke", "--gate", "quick")
        run_lanectl(rig, "switch", "adopted", "--gate", "quick")
        shutil.copy(store, large)
        big_store.fill(large)
        configs = {}
        for path in (empty, large):
            text = rig.config.read_text().replace(str(store), str(path))
            configs[path] = path.with_suffix(".toml")
            configs[path].write_text(text)
        for words in (["status"], ["history"], ["history", "--limit", "1"]):

            def look(path: Path, words: list[str] = words) -> float:
                command = ["--config", str(configs[path]), *words]
                return timed(lambda: run_lanectl(rig, *command))

            look(large), look(empty)
            values, peer = in_turn(pairs, lambda: look(large), lambda: look(empty))
            goal = 1.5 if len(words) == 1 else None
            what = f"{' '.join(words)}, 100,000 switches, 1,000,000 probe results"
            yield Row(what, values, peer, "empty store", goal)


def help_text(pairs: int) -> Iterator[Row]:
    command = [sys.executable, "-m", "lanectl", "--help"]

    def show() -> float:
        return timed(lambda: subprocess.run(command, capture_output=True, check=True))

    show()
    yield Row("lanectl --help", [show() for _ in range(pairs)], goal=0.15)


ROWS = {
    "shell": switch_shell,
    "ansible": switch_ansible,
    "noticed": noticed,
    "rollback": rollback,
    "long-past": long_past,
    "help": help_text,
}

LATER = [
    "a whole switch, daemon up, against the shell script: goal ≤ 0.5",
    "rollback, daemon up, until in place and the stop sent: goal ≤ 0.25 s",
    "status with the daemon up against `supervisorctl status`: goal ≤ 1.0",
    "an idle daemon: goal ≤ 0.5 % of a core, ≤ 80 MB",
]
