"""The worker outlives whoever asked, and whoever asked is told the truth. Real signals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lanectl.core.switch import TERMINAL, Phase
from lanectl.demo.rig import LANE, Rig
from tests.lanes import Bench, Command, bench, environment, wait_for

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("worker")]

PROFILES = {
    "a": {"max_num_seqs": 4},
    "b": {"max_num_seqs": 6},
    "slow": {"max_num_seqs": 5, "flags": {"--standin-mode": "slow-start=3"}},
    "crash": {"flags": {"--standin-mode": "crash-start"}},
    "busy": {"flags": {"--standin-mode": "busy"}},
}


@pytest.fixture(scope="module")
def module_lane() -> Iterator[Bench]:
    with bench(profiles=PROFILES, config={"drain_timeout_s": 8}) as made:
        yield made


@pytest.fixture
def lane(module_lane: Bench) -> Bench:
    """The lane on profile `a`, nothing barred, nothing under way."""
    wait_for(lambda: not phase(module_lane), why="the change of the test before")
    put_on(module_lane, "a")
    return module_lane


def put_on(lane: Bench, profile: str) -> None:
    with lane.store() as store:
        for revision in store.revisions(LANE):
            store.set_barred(LANE, revision.sha256, False)
        store.set_quarantine(LANE, None)
    done = lane.forge("switch", profile, "--cut", "--json")
    assert done.status == 0, done


def phase(lane: Bench) -> Phase | None:
    """The phase of the change under way; None when there is none."""
    with lane.store() as store:
        row = store.unfinished(LANE)
    return row.phase if row else None


def in_phase(lane: Bench, *wanted: Phase) -> None:
    wait_for(lambda: phase(lane) in wanted, why=f"{wanted}; is {phase(lane)}")


def ended(lane: Bench) -> tuple[Phase, str]:
    """How the newest change ended, waited for."""

    def newest() -> Any:
        with lane.store() as store:
            row = store.history(LANE, limit=1)[0]
        return row if row.phase in TERMINAL else None

    row = wait_for(newest, why="the end of the change")
    return row.phase, row.reason


def holder(rig: Rig) -> int:
    """The pid that has the lane's lock file open."""
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(fd) == f"{rig.launcher}.lanectl.lock":  # noqa: PTH115
                return int(fd.parts[2])
    raise AssertionError("nobody holds the lane")


def zombies(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[0] == "Z" and int(fields[1]) == parent:
                found.append(int(stat.parts[2]))
    return found


class Terminal:
    """A lanectl command in a terminal of its own, as an operator's shell would run it."""

    def __init__(self, rig: Rig, *words: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lanectl", *words],
            env={**environment(rig), "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.shown = ""

    def read(self, seconds: float = 0.1) -> str:
        """All that was shown until now."""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                chunk = os.read(self.master, 1 << 16)
            except OSError:
                break
            if not chunk:
                break
            self.shown += chunk.decode(errors="replace")
        return self.shown

    def close(self) -> None:
        """Close the window: the kernel hangs up on the session."""
        os.close(self.master)
        self.master = -1


@contextmanager
def terminal(rig: Rig, *words: str) -> Iterator[Terminal]:
    made = Terminal(rig, *words)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()
        if made.master >= 0:
            made.close()


def test_the_terminal_is_closed_and_it_goes_on(lane: Bench) -> None:
    with terminal(lane.rig, "switch", "slow") as window:
        in_phase(lane, Phase.VERIFYING)
        window.close()
        assert window.process.wait(20) == -signal.SIGHUP
        assert phase(lane) is Phase.VERIFYING
    assert ended(lane)[0] is Phase.COMMITTED
    lane.check_serves()


def test_the_live_view(lane: Bench) -> None:
    with terminal(lane.rig, "switch", "slow") as window:
        until = time.monotonic() + 60
        while window.process.poll() is None and time.monotonic() < until:
            window.read()
        assert window.process.wait(1) == 0
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", window.read())
    for name in ("preparing", "draining", "installing", "restarting", "verifying"):
        assert re.search(rf"{name}\s+\d+\.\d s", shown), f"{name} is not shown with its time"
    assert re.search(r"verifying\s+\d+\.\d s.*usually \d+\.\d s", shown)
    assert "waiting for port" in shown
    assert "committed: demo is on slow" in shown


def test_plain_lines_where_there_is_no_terminal(lane: Bench) -> None:
    with Command(lane.rig, "switch", "b") as command:
        done = command.end()
    assert done.status == 0, done
    told = re.findall(r"^ *\d+\.\ds  ([a-z-]+)$", done.err, re.M)
    assert told == ["preparing", "draining", "installing", "restarting", "verifying", "committed"]
    assert "\x1b" not in done.out + done.err
    assert "committed: demo is on b" in done.out


def test_ctrl_c_before_anything_changed(lane: Bench) -> None:
    put_on(lane, "busy")
    before = lane.seen()
    with Command(lane.rig, "switch", "b", "--json") as command:
        in_phase(lane, Phase.DRAINING)
        command.interrupt()
        done = command.end()
    assert done.status == 3, done
    assert done.json["phase"] == "aborted"
    assert "pressed Ctrl-C" in done.json["reason"]
    assert lane.seen() == before
    assert not lane.staged()


def test_ctrl_c_undoes_what_was_changed(lane: Bench) -> None:
    before = lane.seen()
    with Command(lane.rig, "switch", "slow", "--json") as command:
        in_phase(lane, Phase.VERIFYING)
        assert zombies(command.process.pid) == []
        command.interrupt()
        done = command.end()
    assert done.status == 4, done
    assert done.json["phase"] == "rolled-back"
    assert "pressed Ctrl-C" in done.json["reason"]
    assert lane.seen().sha256 == before.sha256
    assert lane.seen().bystander == before.bystander
    lane.check_serves()
    with lane.store() as store:
        undone = store.revision(LANE, done.json["to"]["sha256"])
    assert undone and not undone.barred, "an operator's wish speaks against no revision"


def test_a_second_ctrl_c_only_stops_the_following(lane: Bench) -> None:
    put_on(lane, "slow")
    with Command(lane.rig, "switch", "b", "--json") as command:
        in_phase(lane, Phase.VERIFYING, Phase.RESTARTING)
        command.interrupt()
        assert command.process.stderr
        wait_for_line(command, "asked to undo")
        in_phase(lane, Phase.RESTORING, Phase.CONFIRMING)
        command.interrupt()
        done = command.end(20)
    assert done.status == 130, done
    assert done.error["code"] == "interrupted"
    assert "goes on" in done.error["message"]
    assert ended(lane)[0] is Phase.ROLLED_BACK
    lane.check_serves()


def wait_for_line(command: Command, words: str) -> None:
    """Read the command's standard error until a line holds the words."""
    stream = command.process.stderr
    assert stream
    for line in stream:
        if words in line:
            return
    raise AssertionError(f"it ended without saying {words!r}")


def test_ctrl_c_while_undoing_lets_it_go_on(lane: Bench) -> None:
    put_on(lane, "slow")
    with Command(lane.rig, "switch", "crash", "--json") as command:
        in_phase(lane, Phase.RESTORING, Phase.CONFIRMING)
        command.interrupt()
        done = command.end()
    assert done.status == 4, done
    assert done.json["phase"] == "rolled-back"
    assert "Ctrl-C" not in done.json["reason"]
    lane.check_serves()


def test_ctrl_c_lets_a_rollback_go_on(lane: Bench) -> None:
    put_on(lane, "slow")
    slow = lane.digest()
    put_on(lane, "b")
    with Command(lane.rig, "rollback", "--to", slow[:10], "--json") as command:
        in_phase(lane, Phase.VERIFYING)
        command.interrupt()
        done = command.end()
    assert done.status == 0, done
    assert (done.json["phase"], lane.digest()) == ("committed", slow)
    lane.check_serves()


def test_the_worker_is_killed(lane: Bench) -> None:
    with Command(lane.rig, "switch", "slow", "--json") as command:
        in_phase(lane, Phase.VERIFYING)
        os.kill(holder(lane.rig), signal.SIGKILL)
        done = command.end(20)
    assert done.status == 1, done
    assert done.error["code"] == "worker-killed"
    assert "verifying" in done.error["message"]
    assert "lanectl restart" in done.error["next"]
    time.sleep(0.3)
    assert phase(lane) is Phase.VERIFYING, "the lane waits for the next command"
    closed = lane.forge("repair", "reap-orphans")
    assert closed.status == 0, closed
    assert ended(lane)[0] is Phase.COMMITTED
    lane.check_serves()


def test_the_command_is_killed(lane: Bench) -> None:
    with Command(lane.rig, "switch", "slow") as command:
        in_phase(lane, Phase.VERIFYING)
        command.process.kill()
        assert command.process.wait(10) == -signal.SIGKILL
    assert ended(lane)[0] is Phase.COMMITTED
    lane.check_serves()


def test_a_stopped_command_does_not_hold_up_the_worker(lane: Bench) -> None:
    with Command(lane.rig, "switch", "slow") as command:
        in_phase(lane, Phase.PREPARING, Phase.RESTARTING, Phase.VERIFYING)
        command.process.send_signal(signal.SIGSTOP)
        assert ended(lane)[0] is Phase.COMMITTED
        command.process.send_signal(signal.SIGCONT)
        assert command.end(20).status == 0


JSON_ALWAYS = [
    (("switch", "b"), 0),
    (("switch", "b"), 0),
    (("switch", "crash"), 4),
    (("switch", "crash"), 3),  # barred now
    (("switch", "b", "--dry-run"), 0),
    (("switch", "nobody"), 2),
    (("switch", "elsewhere", "b"), 2),
    (("switch", "b", "--no-such-option"), 2),
    (("nonsense",), 2),
    (("rollback", "--to", "ffff"), 2),
    (("restart",), 0),
    (("status",), 0),
    (("history",), 0),
]


def test_json_is_one_document_whatever_happens(lane: Bench) -> None:
    for words, status in JSON_ALWAYS:
        for placed in ((*words, "--json"), ("--json", *words)):
            done = lane.forge(*placed)
            assert json.loads(done.out) is not None, (placed, done)
            if placed[0] != "--json":
                assert done.status == status, (placed, str(done))
            if "error" in done.out[:12]:
                assert done.error["exit"] == done.status


def test_a_pipe_ends_with_the_command_though_the_probation_goes_on(lane: Bench) -> None:
    lane.rig.write_config(profiles=PROFILES, smoke={"gate": "quick"}, probation_s=1800)
    worker = 0
    try:
        began = time.monotonic()
        with Command(lane.rig, "switch", "b") as command:
            done = command.end(60)  # Reads both pipes to their end.
        assert done.status == 0, done
        told = wait_for(lambda: watched(lane), why="the probation")
        worker, started = told
        assert time.monotonic() - began < 60
        held = {os.readlink(fd) for fd in Path(f"/proc/{worker}/fd").iterdir()}  # noqa: PTH115
        assert not [name for name in held if name.startswith(("/dev/pts", "/dev/tty"))], held
        assert os.getsid(worker) not in (os.getsid(0), command.process.pid)
        (said,) = lane.forge("status", "--json").json
        assert said["probation"] and not said["probation_lost"], (said, started)
        # A new change ends the probation of the one before, unstable.
        again = lane.forge("switch", "a", "--json")
        assert again.status == 0, again
        wait_for(lambda: not Path(f"/proc/{worker}/cmdline").exists() or gone(worker))
        with lane.store() as store:
            left = store.revision(LANE, again.json["from"]["sha256"])
        assert left and not left.stable
        worker = wait_for(lambda: watched(lane))[0]
    finally:
        lane.rig.write_config(
            profiles=PROFILES, smoke={"gate": "quick"}, probation_s=0, drain_timeout_s=8
        )
        if worker and not gone(worker):
            os.kill(worker, signal.SIGKILL)


def watched(lane: Bench) -> tuple[int, float] | None:
    with lane.store() as store:
        found = store.probation(LANE)
    return (found.worker_pid, found.worker_started) if found else None


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
