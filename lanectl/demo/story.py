"""The demo: a lane breaks with MTP on, is repaired by one switch, and a bad switch undoes itself.

Runs the real commands against a rig. Every step is checked, and not by the command's word alone:
the launcher's digest, supervisord's pids and the command line in `/proc` are read here. `run`
returns 1 when anything was not as the story says, so that `make demo` can fail.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanectl.cli.tables import paint
from lanectl.demo.rig import BYSTANDER, LANE, PROGRAM, Rig

COMMAND_S = 60.0
MODE = "flood-spec-concurrent"


def run(keep: bool) -> int:
    """Tell the story; 0 when all of it came out as it should. keep: leave the lane running."""
    began = time.monotonic()
    rig = Rig(startsecs=1)
    rig.write_launcher(rig.launcher_text(mode=MODE))
    rig.write_config(min_uptime_s=1, probation_s=0)
    story = Story(rig)
    with rig:
        rig.wait_listening()
        story.tell()
        print(f"\nThe story took {time.monotonic() - began:.0f} s.")
        for what in story.wrong:
            print(paint(f"NOT AS THE STORY SAYS: {what}", "red"))
        if keep:
            rig.keep()
            print(
                NEXT.format(config=rig.config, folder=rig.folder, lane=LANE, python=sys.executable)
            )
    return 1 if story.wrong else 0


NEXT = """
The stand-in lane is still running, in {folder}. Try:

  export LANECTL_CONFIG={config}
  lanectl status
  lanectl switch {lane} throughput              refused: that revision was rolled away from
  lanectl switch {lane} throughput --barred-ok  its gate fails again, and it is undone again
  lanectl rollback {lane}                       for an incident; here it leads back to MTP on
  lanectl doctor {lane}                         what speaks against MTP on this lane
  lanectl switch {lane} reliability --barred-ok repaired again

To end it:

  {python} -m supervisor.supervisorctl -c {folder}/supervisord.conf shutdown
  rm -r {folder}
"""


class Story:
    """The steps, and in `wrong` whatever was not as it should be."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.wrong: list[str] = []

    def tell(self) -> None:
        rig = self.rig
        print(
            "This lane is a STAND-IN, not vLLM: no model, no GPU, replies made up. Its launcher,\n"
            f"supervisord and the bystander program beside it are real, in {rig.folder}."
        )
        chapter("1. A launcher with MTP on, made by hand, is taken over as it stands")
        code, _ = self.type("adopt", LANE, "--unproven")
        self.check("adopt exits 0", code == 0)
        look("`--unproven`: no gate has judged it yet, so it is not stable.")

        chapter("2. A single tool call passes")
        code, _ = self.type("smoke", LANE)
        self.check("the quick gate passes (exit 0)", code == 0)
        look("This is how MTP got enabled: one request at a time, all is well.")

        chapter("3. Long prompts at the same time degenerate into `!`")
        code, output = self.type("smoke", LANE, "--gate", "switch")
        self.check("the switch gate fails (exit 6)", code == 6)
        self.check("and it says degenerate", "degenerate" in output)
        look("Which probe failed, and that the replies end with `length`, yet hold only `!`.")

        self.repair()
        self.relapse()

    def repair(self) -> None:
        rig = self.rig
        chapter("4. MTP off: one switch that checks, backs up, restarts and proves itself")
        before, other, old = rig.program(), rig.program(BYSTANDER), digest(rig.launcher)
        reason = "replies of nothing but !"
        code, _ = self.type("switch", LANE, "reliability", "--reason", reason)
        after = rig.program()
        words = self.running()
        self.check("the switch commits (exit 0)", code == 0)
        backups = list(rig.folder.glob(f"{rig.launcher.name}.bak-*"))
        self.check(
            f"a backup beside the launcher has the old digest {old[:12]}",
            [digest(path) for path in backups] == [old],
        )
        self.check(f"{PROGRAM} has a new pid", after["pid"] not in (0, before["pid"]))
        self.check(f"{BYSTANDER} was not touched", same(other, rig.program(BYSTANDER)))
        self.check(
            "the running command line has no speculation",
            "serve" in words and "--speculative-config" not in words,
        )
        look("The digests, the backup, the pids, and `others untouched`.")

    def relapse(self) -> None:
        rig = self.rig
        chapter("5. MTP on again: the gate fails, and the switch undoes itself")
        good, other = digest(rig.launcher), rig.program(BYSTANDER)
        code, _ = self.type("switch", LANE, "throughput")
        self.check("failed, and back on the old revision (exit 4)", code == 4)
        self.check(f"the launcher is {good[:12]} again", digest(rig.launcher) == good)
        self.check("MTP is off again", "--speculative-config" not in self.running())
        self.check(f"{BYSTANDER} was not touched", same(other, rig.program(BYSTANDER)))
        look("Nobody typed a rollback. The revision that failed is barred from now on.")

        chapter("6. What is left of it")
        code, told = self.type("history", LANE)
        self.check("history exits 0", code == 0)
        self.check(
            "and tells both switches, newest first",
            -1 < told.find("rolled-back") < told.find("committed"),
        )
        code, told = self.type("status", LANE)
        self.check("status exits 0", code == 0)
        lane = [LANE, "reliability", digest(rig.launcher)[:12], "stable", "RUNNING", "ready"]
        rows = [line.split() for line in told.splitlines()]
        # Whatever else is to be said of a lane (drift, quarantine) gets a line of its own.
        self.check("one line for the lane: all is well", len(rows) == 2 and rows[1][:6] == lane)

    # ---------------------------------------------------------------------------------- the means

    def type(self, *words: str) -> tuple[int, str]:
        """Run a command as a person would, its output shown as it comes; exit code and output."""
        print(paint(f"\n$ lanectl {shlex.join(words)}", "bold"), flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "lanectl", *words],
            env=self.rig.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        limit = threading.Timer(COMMAND_S, process.kill)
        limit.start()
        output = ""
        with process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                output += line
        limit.cancel()
        return process.returncode, output

    def check(self, what: str, true: bool) -> None:
        """Say that it is so, or note that it is not."""
        print(paint(f"  [{'ok' if true else 'NOT SO'}] {what}", "green" if true else "red"))
        if not true:
            self.wrong.append(what)

    def running(self) -> list[str]:
        """The command line of the lane's process, as the kernel has it; empty when it is down."""
        try:
            return Path(f"/proc/{self.rig.program()['pid']}/cmdline").read_text().split("\0")
        except OSError:
            return []


def chapter(title: str) -> None:
    print(paint(f"\n{title}", "cyan"), flush=True)


def look(text: str) -> None:
    print(f"  Look at: {text}", flush=True)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a program is the very process it was."""
    return all(before[key] == after[key] for key in ("pid", "start", "statename"))
