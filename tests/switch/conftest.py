"""An operator at a rig: runs real commands, and compares what they say with what is there.

The truth is read past lanectl: bytes from the disk, pids and start times from the kernel and from
supervisord.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from lanectl.demo.rig import LANE, PROGRAM, Rig

SMOKE: Mapping[str, Any] = {
    "concurrency": 2,
    "max_tokens": 256,
    "thinking_max_tokens": 512,
    "request_timeout_s": 10,
    "deadline_s": 60,
}
BACKUP = re.compile(r"serve-lane\.sh\.bak-\d{8}-\d{6}-[A-Za-z0-9._-]+")
LOOK_S = 0.02
WAIT_S = 30.0
"""So long anything may take that must come about; only a failing test waits it out."""


def mode(*names: str, **more: Any) -> dict[str, Any]:
    """A profile that turns the stand-in's modes on; `good` turns those of the base off."""
    return {"flags": {"--standin-mode": ",".join(names)}, **more}


def wait_for(what: Callable[[], Any], why: str, seconds: float = WAIT_S) -> Any:
    """Poll until `what` gives something true, and return that."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, f"{why}: not within {seconds:.0f} s"
        time.sleep(LOOK_S)
    return found


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def living(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Said:
    """What one command said. doc: its JSON document."""

    exit: int
    doc: Any
    out: str
    err: str

    @property
    def code(self) -> str:
        return str(self.doc["error"]["code"])

    def __repr__(self) -> str:
        return f"exit {self.exit}\n{json.dumps(self.doc, indent=1)[:6000]}\n{self.err[-3000:]}"


class Operator:
    """One person with a terminal, and with eyes of their own."""

    mode = staticmethod(mode)
    sha = staticmethod(sha)
    living = staticmethod(living)
    wait_for = staticmethod(wait_for)

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.profiles: dict[str, Any] = {}
        self.keys: dict[str, Any] = {}
        self.smoke: dict[str, Any] = dict(SMOKE)
        self.configure()

    def configure(
        self,
        profiles: Mapping[str, Any] | None = None,
        *,
        smoke: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> None:
        """Write lanectl.toml; what is not given stays as it was."""
        self.profiles = self.profiles if profiles is None else dict(profiles)
        self.smoke |= smoke or {}
        self.keys |= keys
        self.rig.write_config(profiles=self.profiles, smoke=self.smoke, **self.keys)

    # ------------------------------------------------------------------------------- the terminal

    def run(self, *words: str) -> Said:
        """A command with `--json`: its standard output is one document and nothing else."""
        done = self.rig.run(*words, "--json", timeout_s=110)
        return self._said(done.returncode, done.stdout, done.stderr)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start a command and go on; `end` waits for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "lanectl", *words, "--json"],
            env=self.rig.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, command: subprocess.Popen[str]) -> Said:
        out, err = command.communicate(timeout=110)
        return self._said(command.returncode, out, err)

    def _said(self, code: int, out: str, err: str) -> Said:
        assert out.endswith("\n") and out.count("\n") >= 1, (code, out, err)
        return Said(code, json.loads(out), out, err)

    def switch(self, profile: str, *words: str) -> Said:
        return self.run("switch", LANE, profile, *words)

    def adopt(self, *words: str) -> Said:
        said = self.run("adopt", LANE, *words)
        assert said.exit == 0, said
        return said

    def status(self) -> dict[str, Any]:
        said = self.run("status", LANE)
        assert said.exit == 0, said
        (lane,) = said.doc
        return dict(lane)

    def history(self) -> list[dict[str, Any]]:
        said = self.run("history", LANE)
        assert said.exit == 0, said
        return list(said.doc)

    def profile(self, name: str) -> dict[str, Any]:
        """What `profiles` says of one."""
        return next(dict(p) for p in self.run("profiles", LANE).doc if p["profile"] == name)

    # ---------------------------------------------------------------------------- their own eyes

    @property
    def launcher(self) -> Path:
        return self.rig.launcher

    @property
    def deployed(self) -> str:
        return sha(self.launcher)

    @property
    def pid(self) -> int:
        """The main process as supervisord has it; 0: none."""
        return int(self.rig.program()["pid"])

    @property
    def state(self) -> str:
        return str(self.rig.program()["statename"])

    def started(self, pid: int) -> float:
        return float(psutil.Process(pid).create_time())

    def words(self, pid: int | None = None) -> list[str]:
        """The command line that the kernel has."""
        return list(psutil.Process(pid or self.pid).cmdline())

    @property
    def bystander(self) -> tuple[int, int]:
        told = self.rig.program("bystander")
        return int(told["pid"]), int(told["start"])

    @property
    def backups(self) -> list[Path]:
        return sorted(p for p in self.launcher.parent.iterdir() if ".bak-" in p.name)

    @property
    def litter(self) -> list[str]:
        """What a change may leave beside the launcher only while it runs."""
        return [p.name for p in self.launcher.parent.iterdir() if p.name.startswith(".serve-lane")]

    def members(self, group: int) -> list[int]:
        """The live processes of a process group."""
        return [p for p in self.rig.alive() if living(p) and _group(p) == group]

    def everything(self) -> dict[str, Any]:
        """All that a command which changes nothing must leave as it is."""
        files = {
            str(p.relative_to(self.rig.folder)): (sha(p), p.stat().st_mode, p.stat().st_mtime_ns)
            for p in self.rig.folder.rglob("*")
            if p.is_file() and not p.is_symlink() and self._ours(p)
        }
        return {
            "files": files,
            "processes": {p: self.started(p) for p in self.rig.alive()},
            "programs": (self.pid, self.bystander),
            "history": self.history(),
            "status": {k: v for k, v in self.status().items() if k != "last_smoke"},
        }

    def _ours(self, path: Path) -> bool:
        """Not what grows by itself: logs, the store's own files, compiled files."""
        name = path.relative_to(self.rig.folder)
        grows = path.suffix in (".log", ".out", ".pyc") or path.name.startswith("lanectl.db")
        return not grows and name.parts[0] != "pycache" and not path.name.endswith(".lanectl.lock")

    # ------------------------------------------------------------------------------- what is done

    def supervisord(self, method: str, *arguments: Any) -> Any:
        with self.rig.rpc(20) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)

    def stop_program(self) -> None:
        self.supervisord("stopProcess", PROGRAM)

    def until_ready(self) -> None:
        wait_for(lambda: self.status()["ready"], "the lane answers")


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


MakeOperator = Callable[..., Operator]


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MakeOperator]:
    """Make an operator at a rig of their own; rigs end with the test.

    operator(launcher=…, profiles=…, smoke=…, adopt=…, ready=…, rig=…, **keys of the lane). By
    default the lane is up and adopted `--unproven`.
    """
    # Whatever lanectl keeps outside the rig's folder goes to a folder of the test.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ExitStack() as stack:
        yield lambda **asked: _operator(stack, **asked)


def _operator(
    stack: ExitStack,
    *,
    launcher: Callable[[Rig], str] | None = None,
    profiles: Mapping[str, Any] | None = None,
    smoke: Mapping[str, Any] | None = None,
    adopt: tuple[str, ...] | None = ("--unproven",),
    ready: bool = True,
    rig: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Operator:
    made = Rig(**(rig or {"startsecs": 0}))
    if launcher is not None:
        made.write_launcher(launcher(made))
    stack.enter_context(made)
    operator = Operator(made)
    operator.configure(profiles or {}, smoke=smoke, **keys)
    if ready:
        made.wait_listening(WAIT_S)
    if adopt is not None:
        operator.adopt(*adopt)
    return operator


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[..., Operator]]:
    """One operator for all cases of a module, made anew when a case left the lane otherwise."""
    with ExitStack() as stack:
        kept: list[tuple[Operator, str]] = []

        def give(**asked: Any) -> Operator:
            if kept:
                operator, digest = kept[0]
                lane = operator.status()
                if (
                    operator.deployed == digest == lane["sha256"]
                    and lane["ready"]
                    and not (lane["quarantined"] or lane["unfinished"] or operator.litter)
                ):
                    return operator
                kept.clear()
                operator.rig.stop()
            operator = _operator(stack, **asked)
            kept.append((operator, operator.deployed))
            return operator

        yield give


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes that are not the rig's; those still there at the end are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(words, start_new_session=True, **options))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
