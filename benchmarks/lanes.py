"""Lanes to measure on: rigs with an instant stand-in, and the peers that switch it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lanectl.demo.rig import LANE, MTP, PROGRAM, Rig

HERE = Path(__file__).resolve().parent
ANSIBLE = HERE.parent / ".venv-bench"
LIMIT_S = 120.0


def run_lanectl(rig: Rig, *words: str, expect: int = 0) -> dict[str, Any]:
    """Run a lanectl command on the rig's lane; its JSON document."""
    done = rig.run(*words, "--json", timeout_s=LIMIT_S)
    if done.returncode != expect:
        raise RuntimeError(f"lanectl {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def lane(**options: Any) -> Iterator[Rig]:
    """A rig whose lane runs; `startsecs` is supervisord's usual second unless told otherwise."""
    with Rig(**options) as rig:
        rig.wait_listening()
        yield rig


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


class Lanectl:
    """Switches its lane to the other of two profiles, at each call."""

    name = "lanectl"

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.next, self.other = "reliability", "throughput"
        self.documents: list[dict[str, Any]] = []
        run_lanectl(rig, "adopt", "--unproven")
        self()  # The first one compiles, creates and caches: it is nobody's usual case.
        self.documents.clear()

    def __call__(self) -> float:
        began = time.perf_counter()
        document = run_lanectl(self.rig, "switch", self.next, "--gate", "quick")
        elapsed = time.perf_counter() - began
        if document["phase"] != "committed":
            raise RuntimeError(f"the switch ended {document['phase']}")
        self.next, self.other = self.other, self.next
        self.documents.append(document)
        return elapsed


class Peer:
    """Switches its lane to the other of the same two launcher texts by a command, at each call."""

    def __init__(self, rig: Rig, name: str, command: Callable[[Rig, Path], list[str]]) -> None:
        self.rig, self.name, self.command = rig, name, command
        self.texts = [rig.folder / "one.sh", rig.folder / "two.sh"]
        for path, speculative in zip(self.texts, (None, MTP), strict=True):
            path.write_text(rig.launcher_text(speculative=speculative))
            path.chmod(0o755)
        self()

    def __call__(self) -> float:
        new = self.texts.pop(0)
        self.texts.append(new)
        before = self.rig.program()["pid"]
        elapsed = timed(lambda: _checked(self.command(self.rig, new)))
        if self.rig.launcher.read_bytes() != new.read_bytes():
            raise RuntimeError(f"{self.name} did not replace the launcher")
        if self.rig.program()["pid"] == before:
            raise RuntimeError(f"{self.name} did not restart the program")
        return elapsed


def shell(rig: Rig, new: Path) -> list[str]:
    words = [rig.launcher, new, rig.folder / "supervisord.conf", PROGRAM, rig.api, LANE]
    return [str(HERE / "peers" / "switch.sh"), *map(str, words)]


def ansible(rig: Rig, new: Path) -> list[str]:
    facts = {
        "new": str(new),
        "launcher": str(rig.launcher),
        "conf": str(rig.folder / "supervisord.conf"),
        "program": PROGRAM,
        "health": f"{rig.api.removesuffix('/v1')}/health",
        # Named, it need not be searched for.
        "ansible_python_interpreter": str(ANSIBLE / "bin" / "python"),
    }
    playbook = [str(ANSIBLE / "bin" / "ansible-playbook"), "-i", "localhost,", "-c", "local"]
    return [*playbook, "-e", json.dumps(facts), str(HERE / "peers" / "switch.yml")]


def install_ansible() -> None:
    """Into an environment of its own, of the versions that `peers/requirements.txt` pins."""
    wanted = (HERE / "peers" / "requirements.txt").read_text()
    stamp = ANSIBLE / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    _checked([sys.executable, "-m", "venv", str(ANSIBLE)])
    install = [str(ANSIBLE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement"]
    _checked([*install, str(HERE / "peers" / "requirements.txt")])
    stamp.write_text(wanted)


def _checked(command: list[str]) -> None:
    """Run a peer, its tools found beside this Python; its output is shown when it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    settings = {"PATH": path, "ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOWS": "1"}
    done = subprocess.run(
        command,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: exit {done.returncode}\n{done.stdout[-4000:]}")
