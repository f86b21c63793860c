"""Faults below lanectl: supervisord, the kernel, the disk, the store, the clock."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lanectl.app import change
from lanectl.app.change import Asking, Unchanged
from lanectl.core.exits import OF_PHASE as EXIT
from lanectl.core.lane import digest
from lanectl.core.switch import Phase
from lanectl.demo.rig import LANE
from lanectl.errors import Degraded, LanectlError, Refused, StoreUnusable
from lanectl.ports import Ports, SwitchRow
from tests.fakes import FailingStore, Lab, launcher_text
from tests.lanes import Bench, Command, bench, wait_for

pytestmark = pytest.mark.timeout(240)
ASKING = Asking("a test", barred_ok=True)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab.make(tmp_path)
    adopt(made)
    yield made
    made.ports.store.close()


def adopt(lab: Lab) -> None:
    deployed = lab.ports.host.read(lab.lane.launcher)
    assert deployed
    change.adopt_text(lab.ports, lab.lane, deployed)
    lab.ports.store.set_stable("demo", deployed.sha256, True)


def switch(lab: Lab, profile: str, ports: Ports | None = None) -> SwitchRow:
    used = ports or lab.ports
    row = change.run(
        used,
        lab.lane,
        lambda _undone: change.plan_switch(used, lab.config, lab.lane, profile, ASKING),
        asking=ASKING,
        say=lambda _text: None,
    )
    assert not isinstance(row, Unchanged)
    return row


def rollback(lab: Lab) -> SwitchRow:
    row = change.run(
        lab.ports,
        lab.lane,
        lambda undone: change.plan_rollback(lab.ports, lab.config, lab.lane, ASKING, undone=undone),
        asking=ASKING,
        say=lambda _text: None,
        preempt=True,
    )
    assert not isinstance(row, Unchanged)
    return row


OLD = launcher_text().encode()


def staged(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if ".lanectl-" in entry.name]


# --------------------------------------------------------------------- what survives every signal


def test_the_fakes_let_a_switch_commit(lab: Lab) -> None:
    row = switch(lab, "a")
    assert (row.phase, lab.world.starts) == (Phase.COMMITTED, 1), row.reason
    assert b"--max-num-seqs 4" in lab.world.launcher.read_bytes()


def test_a_deaf_process_is_killed(lab: Lab) -> None:
    lab.world.deaf = True
    began = lab.world.monotonic
    row = switch(lab, "a")
    assert row.phase is Phase.COMMITTED, row.reason
    assert row.receipt["stop"]["killed"] == [5001]
    assert lab.world.monotonic - began >= lab.lane.stop_timeout_s, "killed before its time"


def test_a_process_that_survives_sigkill(lab: Lab) -> None:
    lab.world.unkillable = True
    row = switch(lab, "a")
    assert (row.phase, EXIT[row.phase]) == (Phase.DEGRADED, 5)
    assert "needs-reboot" in row.reason and row.receipt["needs_reboot"] is True
    assert lab.world.launcher.read_bytes() == OLD, "the old file is put back"
    assert lab.world.starts == 0, "never started over it"
    assert (5001, signal.SIGKILL) in lab.world.signals
    recorded = lab.ports.store.lane("demo")
    assert recorded and recorded.quarantined and "needs-reboot" in recorded.quarantined
    assert recorded.current_sha256 == digest(OLD)
    assert lab.told.heard, "the owner is told"
    assert not staged(lab.folder)
    assert [event.phase for event in row.events][-3:] == [
        Phase.REVERTING,
        Phase.RESTORING,
        Phase.DEGRADED,
    ]
    # It is terminal: nothing goes on by itself, and a switch is refused.
    with pytest.raises(Refused, match="quarantined"):
        switch(lab, "b")
    assert lab.world.starts == 0


def test_a_rollback_over_what_survives_sigkill(lab: Lab) -> None:
    switch(lab, "a")
    lab.world.unkillable = True
    row = rollback(lab)
    assert row.phase is Phase.DEGRADED
    assert "needs-reboot" in row.reason
    assert lab.world.launcher.read_bytes() == OLD, "its target is left in place"
    assert lab.world.starts == 1, "the one of the switch"


# ------------------------------------------------------------------------------------- the store


def count_writes(tmp_path: Path, *, flood: bool) -> int:
    """How many writes a change makes of the store."""
    folder = tmp_path / "count"
    folder.mkdir()
    counted = Lab.make(folder)
    adopt(counted)
    counted.world.flood = flood
    counting = FailingStore(counted.ports.store, after=10_000)
    switch(counted, "a", replace(counted.ports, store=counting))
    counted.ports.store.close()
    return 10_000 - counting._left


@pytest.mark.parametrize("flood", [False, True])
def test_the_store_fails_at_every_write(tmp_path: Path, flood: bool) -> None:
    """Exit 3 where nothing has been changed, else 5 with what is in place; then it recovers."""
    writes = count_writes(tmp_path, flood=flood)
    assert writes > 20
    for number in range(writes):
        folder = tmp_path / str(number)
        folder.mkdir()
        lab = Lab.make(folder)
        adopt(lab)
        lab.world.flood = flood
        failing = FailingStore(lab.ports.store, after=number)
        ports = replace(lab.ports, store=failing)
        with pytest.raises(LanectlError) as caught:
            switch(lab, "a", ports)
        told = f"write {number}, {failing.failed_in}: {caught.value.message}"
        touched = lab.world.launcher.read_bytes() != OLD or lab.supervisor.stops > 0
        if touched:
            assert isinstance(caught.value, Degraded), told
            assert caught.value.code == "journal-lost"
            here = digest(lab.world.launcher.read_bytes())[:12]
            assert here in caught.value.message, told
            backup = caught.value.next_step.rpartition(" ")[2]
            assert Path(backup).read_bytes() == OLD, told
        else:
            assert caught.value.exit_code in (3, 5), told
            if caught.value.exit_code == 5:
                assert "(adopted)" in caught.value.message, told
        failing.mended = True
        with ports.host.lock(lab.lane.launcher, {"who": "a test"}):
            closed = change.recover(ports, lab.lane, lambda _text: None)
        if closed is not None:
            assert closed.phase in (Phase.ABORTED, Phase.ROLLED_BACK, Phase.COMMITTED), told
            if flood or not touched:
                assert closed.phase is not Phase.COMMITTED, told
        recorded = lab.ports.store.lane("demo")
        assert recorded and recorded.quarantined is None, told
        assert recorded.current_sha256 == digest(lab.world.launcher.read_bytes()), told
        assert lab.world.main is not None, told
        assert not staged(lab.folder), told
        lab.ports.store.close()


def test_the_store_file_is_removed_in_the_middle(lab: Lab) -> None:
    """SQLite would write on, unseen, into the removed file."""
    removed: list[bool] = []

    def on_sleep(_seconds: float) -> None:
        if lab.supervisor.stops and not removed:
            for file in lab.folder.glob("lanectl.db*"):
                file.unlink()
            removed.append(True)

    lab.world.deaf, lab.world.on_sleep = True, on_sleep
    with pytest.raises(Degraded) as caught:
        switch(lab, "a")
    assert removed
    assert caught.value.code == "journal-lost"
    assert "restarting" in caught.value.message
    assert "(a)" in caught.value.message, "the new launcher is in place, and that is said"
    backup = caught.value.next_step.rpartition(" ")[2]
    assert Path(backup).read_bytes() == OLD


# ------------------------------------------------------------------------------------- the clock


@pytest.mark.parametrize("hours", [-30, 30])
def test_the_clock_jumps(tmp_path: Path, hours: int) -> None:
    lab = Lab.make(tmp_path, lane={"min_uptime_s": 10})
    adopt(lab)
    jumped: list[bool] = []

    def jump() -> None:
        if lab.world.starts and not jumped:
            jumped.append(True)
            lab.world.now += timedelta(hours=hours)

    lab.world.on_tool_call = jump
    began = lab.world.monotonic
    first = switch(lab, "a")
    assert first.phase is Phase.COMMITTED, first.reason
    assert lab.world.monotonic - began < 60, "it waits by the clock on the wall"
    second = switch(lab, "b")
    assert second.phase is Phase.COMMITTED, second.reason
    order = [row.id for row in lab.ports.store.history("demo")]
    assert order == [second.id, first.id], "ordered by sequence, not by time"
    back = rollback(lab)
    assert (back.phase, back.plan.to_profile) == (Phase.COMMITTED, "adopted")
    lab.ports.store.close()


# -------------------------------------------------------------------------- somebody else's hand


def edited_in_the_gate(lab: Lab, text: bytes) -> None:
    """While the new revision is judged, somebody writes that text over the launcher."""

    def edit() -> None:
        if lab.world.starts == 1:
            lab.world.launcher.write_bytes(text)

    lab.world.on_tool_call = edit


def test_an_edit_while_it_is_judged_is_never_overwritten(lab: Lab) -> None:
    text = OLD + b"# by hand\n"
    edited_in_the_gate(lab, text)
    row = switch(lab, "a")
    assert row.phase is Phase.DEGRADED, "neither of the two texts stands there"
    assert digest(text)[:12] in row.reason
    assert lab.world.launcher.read_bytes() == text
    assert lab.told.heard


def test_the_old_text_put_back_by_hand_while_the_new_one_is_judged(lab: Lab) -> None:
    edited_in_the_gate(lab, OLD)
    row = switch(lab, "a")
    assert row.phase is Phase.ROLLED_BACK, "what runs is not what stands there"
    recorded = lab.ports.store.lane("demo")
    assert recorded and recorded.current_sha256 == digest(OLD)
    assert lab.world.main and "8" in lab.world.processes[lab.world.main].argv


# -------------------------------------------------------------------------------------- the disk


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size, where we may mount one."""
    folder.mkdir()
    options = f"size={size},mode=755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no free block."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


def on_disk(tmp_path: Path, disk: Path) -> Lab:
    """A lab whose launcher lies on that disk, and its store elsewhere."""
    lab = Lab.make(tmp_path)
    launcher = disk / "serve.sh"
    shutil.copy2(lab.world.launcher, launcher)
    lab.world.launcher = launcher
    lab.lane = replace(lab.lane, launcher=str(launcher))
    adopt(lab)
    return lab


def test_a_full_disk_while_staging_changes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        lab = on_disk(tmp_path, disk)
        with lab.ports.host.lock(lab.lane.launcher, {}):
            pass  # The lock file is there from earlier changes.
        fill(disk)
        before = sorted(entry.name for entry in disk.iterdir())
        row = switch(lab, "a")
        assert (row.phase, EXIT[row.phase]) == (Phase.ABORTED, 3)
        assert "No space left" in row.reason
        assert lab.world.launcher.read_bytes() == OLD
        assert sorted(entry.name for entry in disk.iterdir()) == before, "nothing left behind"
        assert (lab.world.starts, lab.supervisor.stops) == (0, 0)
        lab.ports.store.close()


def test_a_full_disk_while_reverting_does_no_harm(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        lab = on_disk(tmp_path, disk)
        lab.world.flood = True
        filled: list[Path] = []

        def on_sleep(_seconds: float) -> None:
            if lab.supervisor.stops and not filled:
                filled.append(fill(disk))

        lab.world.deaf, lab.world.on_sleep = True, on_sleep
        row = switch(lab, "a")
        assert filled, "the disk was not full when it mattered"
        assert row.phase is Phase.ROLLED_BACK, row.reason
        assert lab.world.launcher.read_bytes() == OLD
        assert not staged(disk)
        lab.ports.store.close()


def test_a_file_size_limit_while_staging_changes_nothing(lab: Lab) -> None:
    """The same by RLIMIT_FSIZE, for whoever may mount nothing. In a fork: limits stay lowered."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            host = lab.ports.host
            deployed = host.read(lab.lane.launcher)
            assert deployed
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
            try:
                host.stage(deployed, OLD)
            except Refused as error:
                code = 0 if "nothing changed" in error.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not staged(lab.folder)
    assert lab.world.launcher.read_bytes() == OLD


# -------------------------------------------------------------------------- the real supervisord


@pytest.fixture
def lane() -> Iterator[Bench]:
    with bench(config={"ready_timeout_s": 15, "stop_timeout_s": 3}) as made:
        yield made


def phase(lane: Bench) -> Phase | None:
    with lane.store() as store:
        row = store.unfinished(LANE)
    return row.phase if row else None


def test_supervisord_is_stopped_before(lane: Bench) -> None:
    before = lane.seen()
    os.kill(lane.rig.pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        done = lane.forge("switch", "a", "--json")
        looked = lane.forge("status", "--json")
    finally:
        os.kill(lane.rig.pid, signal.SIGCONT)
    assert (done.status, done.error["code"]) == (3, "unreachable"), done
    assert time.monotonic() - began < 60, "it has limits of its own"
    assert looked.status == 0 and looked.json[0]["program"] is None
    assert lane.seen() == before
    assert phase(lane) is None and not lane.staged() and not lane.backups()


def test_supervisord_stops_in_the_middle(lane: Bench) -> None:
    """Nothing can be restarted then: degraded, the old launcher in place, and that is said."""
    old = lane.digest()
    bystander = lane.seen().bystander
    with Command(lane.rig, "switch", "slow", "--json") as command:
        wait_for(lambda: phase(lane) is Phase.VERIFYING)
        os.kill(lane.rig.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            done = command.end(120)
        finally:
            os.kill(lane.rig.pid, signal.SIGCONT)
    assert time.monotonic() - began < 100
    assert done.status == 5, done
    assert done.json["phase"] == "degraded"
    assert "supervisord" in done.json["reason"]
    assert lane.digest() == old
    (said,) = lane.forge("status", "--json").json
    assert said["quarantined"], said
    # The way out that `status` and the command name.
    mended = lane.forge("restart", "--json")
    assert mended.status == 0, mended
    assert lane.digest() == old
    lane.check_serves()
    assert lane.seen().bystander == bystander


def test_supervisord_dies_in_the_middle(lane: Bench) -> None:
    """Its children live on, and the new one does not know them: they hold the port."""
    old = lane.digest()
    with Command(lane.rig, "switch", "slow", "--json") as command:
        wait_for(lambda: phase(lane) is Phase.VERIFYING)
        orphan = lane.rig.program()["pid"]
        os.kill(lane.rig.pid, signal.SIGKILL)
        done = command.end(120)
    assert done.status == 5, done
    assert lane.digest() == old
    assert not lane.staged()
    # A new one starts the program beside the orphan of the switch; a restart reaps that first.
    lane.rig.start()
    mended = lane.forge("restart", "--json")
    assert mended.status == 0, mended
    assert not Path(f"/proc/{orphan}/exe").exists(), "the child of the dead supervisord lives"
    assert lane.digest() == old
    lane.check_serves()


def test_the_store_is_locked_by_another_process(lane: Bench) -> None:
    before = lane.seen()
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('begin immediate'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lane.store_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as locker:
        assert locker.stdout and locker.stdout.readline() == "locked\n"
        done = lane.forge("switch", "a", "--json")
        looked = lane.forge("status", "--json")
        locker.communicate("let go")
    assert (done.status, done.error["code"]) == (3, StoreUnusable.code), done
    assert "locked" in done.error["message"]
    assert looked.status == 0, "reading waits for nobody"
    assert lane.seen() == before
    assert lane.forge("switch", "a", "--json").status == 0
