"""What tests of whole changes share: a rig, commands run in forks, and what the lane is like."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lanectl.adapters.store_sql import SqlStore, open_store
from lanectl.demo.rig import BYSTANDER, LANE, PROGRAM, ROOT, Rig

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "a": {"max_num_seqs": 4},
    "b": {"max_num_seqs": 6},
    "flood": {"max_num_seqs": 7, "flags": {"--standin-mode": "flood"}},
    "crash": {"flags": {"--standin-mode": "crash-start"}},
    "slow": {"max_num_seqs": 5, "flags": {"--standin-mode": "slow-start=3"}},
}
PATIENCE_S = 30.0
"""For what comes about by itself, on a machine that does much else."""


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE_S, *, why: str = "") -> Any:
    """The first true answer of `what`."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, f"it did not come about in time: {why or what}"
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error document, of exactly the shape that design section 6 gives."""
        document = self.json
        assert set(document) == {"error"}, self.out
        error: dict[str, Any] = document["error"]
        assert set(error) == {"code", "exit", "message", "next"}, error
        assert error["exit"] == self.status, error
        assert error["message"] in self.err, (error, self.err)
        return error

    def __str__(self) -> str:
        return f"exit {self.status}\n{self.out}\n{self.err}"


def environment(rig: Rig) -> dict[str, str]:
    """What a command needs; logs of bugs and scratch stores go to the rig's own folder."""
    own = {"XDG_STATE_HOME": str(rig.folder / "state"), "TMPDIR": str(rig.folder)}
    return {**rig.environment, **own}


class Forge:
    """Runs lanectl commands, and changes that die, each in a fork of one warm process."""

    def __init__(self, rig: Rig) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "crash" / "driver.py"), str(rig.config)],
            env=environment(rig),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, job: Mapping[str, Any]) -> Answer:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Answer(**json.loads(self._process.stdout.readline()))

    def change(self, kind: str, profile: str = "", fatal: int | str = 0) -> Answer:
        return self._ask({"change": kind, "profile": profile, "fatal": fatal})

    def __call__(self, *words: str) -> Answer:
        """A lanectl command."""
        return self._ask({"words": words})

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Seen:
    """The lane from outside: not by lanectl's word."""

    sha256: str
    pid: int
    started: int
    state: str
    bystander: tuple[int, int]
    spawned: int


class Bench:
    """A rig with an adopted lane and a forge. The adopted launcher has `--max-num-seqs 8`."""

    def __init__(self, rig: Rig, forge: Forge) -> None:
        self.rig, self.forge = rig, forge

    @property
    def store_path(self) -> Path:
        return self.rig.folder / "lanectl.db"

    @contextmanager
    def store(self) -> Iterator[SqlStore]:
        opened = open_store(f"sqlite:///{self.store_path}")
        try:
            yield opened
        finally:
            opened.close()

    def digest(self) -> str:
        return hashlib.sha256(self.rig.launcher.read_bytes()).hexdigest()

    def beside(self) -> list[str]:
        """Names of everything beside the launcher that bears its name."""
        return sorted(p.name for p in self.rig.folder.iterdir() if "serve-lane.sh" in p.name)

    def staged(self) -> list[str]:
        return [name for name in self.beside() if name.startswith(".serve-lane.sh.lanectl-")]

    def backups(self) -> list[Path]:
        return sorted(self.rig.folder.glob("serve-lane.sh.bak-*"))

    def spawned(self) -> int:
        """How often supervisord has started the lane's program."""
        log = (self.rig.folder / "supervisord.log").read_text(errors="replace")
        return len(re.findall(rf"spawned: '{PROGRAM}'", log))

    def seen(self) -> Seen:
        program, other = self.rig.program(), self.rig.program(BYSTANDER)
        return Seen(
            sha256=self.digest(),
            pid=program["pid"],
            started=program["start"],
            state=program["statename"],
            bystander=(other["pid"], other["start"]),
            spawned=self.spawned(),
        )

    def check_serves(self) -> None:
        """What is deployed is what runs, and it answers on the lane's port."""
        self.rig.wait_listening()
        program = self.rig.program()
        assert program["statename"] == "RUNNING", program
        argv = Path(f"/proc/{program['pid']}/cmdline").read_bytes().decode().split("\0")
        deployed = re.search(r"--max-num-seqs (\d+)", self.rig.launcher.read_text())
        assert deployed, "the launcher has lost its flag"
        running = argv[argv.index("--max-num-seqs") + 1]
        assert running == deployed[1], f"{running} runs, {deployed[1]} is deployed"


@contextmanager
def bench(
    *,
    config: Mapping[str, Any] | None = None,
    smoke: Mapping[str, Any] | None = None,
    profiles: Mapping[str, Mapping[str, Any]] = PROFILES,
    adopt: bool = True,
    **options: Any,
) -> Iterator[Bench]:
    """A running lane, adopted and called stable, whose switches run the quick gate.

    config, smoke: more keys of the lane's tables; options: of the program, as `Rig` takes them.
    """
    rig = Rig(startsecs=0, **options)
    settings = {"gate": "quick", "request_timeout_s": 10, **(smoke or {})}
    rig.write_config(profiles=profiles, smoke=settings, **(config or {}))
    with rig, Forge(rig) as forge:
        rig.wait_listening()
        made = Bench(rig, forge)
        if adopt:
            done = forge("adopt", "--unproven", "--json")
            assert done.status == 0, done
            with made.store() as store:
                store.set_stable(LANE, made.digest(), True)
        yield made


class Command:
    """A lanectl command in the background, in a process group and session of its own."""

    def __init__(self, rig: Rig, *words: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lanectl", *words],
            env=environment(rig),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, seconds: float = 60.0) -> Answer:
        out, err = self.process.communicate(timeout=seconds)
        return Answer(self.process.returncode, out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # Not read to the end: after a failure somebody may still hold the other end.
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
