"""`rollback` in an incident: whatever else is broken, the lane goes back, or it is said why not."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lanectl.core.switch import TERMINAL, Phase
from lanectl.demo.rig import LANE, MODEL, Rig
from tests.lanes import PROFILES, Bench, Command, bench, wait_for

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("rollback")]

MORE = {
    **PROFILES,
    "frozen": {"max_num_seqs": 9, "flags": {"--standin-mode": "frozen"}},
    "plain": {"max_num_seqs": 10, "flags": {"--standin-mode": "slow-tokens=0.2"}},
}


@pytest.fixture(scope="module")
def module_lane() -> Iterator[Bench]:
    with bench(profiles=MORE) as made:
        yield made


@pytest.fixture
def lane(module_lane: Bench) -> Bench:
    """The lane on `a`, the adopted revision (8 sequences) the only stable one, no bars."""
    made = module_lane
    wait_for(lambda: not unfinished(made), why="the change of the test before")
    standing(made, stable=("adopted",))
    assert made.forge("switch", "a", "--json").status == 0
    standing(made, stable=("adopted",))
    return made


def unfinished(lane: Bench) -> Phase | None:
    with lane.store() as store:
        row = store.unfinished(LANE)
    return row.phase if row else None


def standing(lane: Bench, *, stable: tuple[str, ...], barred: tuple[str, ...] = ()) -> None:
    """Set which profiles' revisions are stable and barred; the lane is not quarantined."""
    with lane.store() as store:
        row = store.lane(LANE)
        assert row
        store.set_quarantine(LANE, None)
        for revision in store.revisions(LANE):
            names = {revision.profile, "adopted" if revision.sha256 == row.base_sha256 else ""}
            store.set_stable(LANE, revision.sha256, bool(names & set(stable)))
            store.set_barred(LANE, revision.sha256, bool(names & set(barred)))


def base(lane: Bench) -> str:
    with lane.store() as store:
        row = store.lane(LANE)
    assert row
    return row.base_sha256


def wait_phase(lane: Bench, phase: Phase) -> None:
    wait_for(lambda: unfinished(lane) is phase, why=f"{phase}, is {unfinished(lane)}")


# ------------------------------------------------------------------------------------- the target


def test_to_the_newest_stable_revision_and_the_one_left_is_barred(lane: Bench) -> None:
    left = lane.digest()
    done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    assert (done.json["phase"], lane.digest()) == ("committed", base(lane))
    assert [event["phase"] for event in done.json["events"]] == [
        *("preparing", "installing", "restarting", "verifying", "committed")
    ], "a rollback does not drain"
    lane.check_serves()
    with lane.store() as store:
        old = store.revision(LANE, left)
        new = store.revision(LANE, base(lane))
    assert old and old.barred and not old.stable
    assert new and new.stable, "the target keeps the standing it had"
    refused = lane.forge("switch", "a", "--json")
    assert (refused.status, refused.error["code"]) == (3, "barred")
    allowed = lane.forge("switch", "a", "--barred-ok", "--json")
    assert allowed.status == 0, allowed


def test_without_a_stable_one_to_where_the_last_commit_came_from(lane: Bench) -> None:
    first = lane.digest()
    assert lane.forge("switch", "b").status == 0
    standing(lane, stable=())
    done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    assert lane.digest() == first, "back on a"
    assert not done.json["to"]["stable"]


def test_a_barred_one_is_passed_over_and_the_adopted_one_is_always_there(lane: Bench) -> None:
    assert lane.forge("switch", "b").status == 0
    standing(lane, stable=("a",), barred=("a",))
    done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    assert lane.digest() == base(lane)


def test_nothing_to_go_back_to(lane: Bench) -> None:
    assert lane.forge("rollback").status == 0
    standing(lane, stable=(), barred=("a", "b"))
    before = lane.seen()
    done = lane.forge("rollback", "--json")
    assert (done.status, done.error["code"]) == (3, "no-target"), done
    assert str(lane.backups()[-1]) in done.error["message"], "the backups are listed"
    assert "--backup FILE" in done.error["next"]
    assert lane.seen() == before


def test_to_a_digest_prefix(lane: Bench) -> None:
    here = lane.digest()
    assert lane.forge("switch", "b").status == 0
    before = lane.seen()
    unknown = lane.forge("rollback", "--to", "fffff", "--json")
    assert (unknown.status, unknown.error["code"]) == (2, "config"), unknown
    with lane.store() as store:
        # Two revisions with the same beginning: no prefix of a real digest would do on purpose.
        first = store.revision(LANE, here)
        assert first
        twin = here[:20] + ("0" if here[20] != "0" else "1") + here[21:]
        database = sqlite3.connect(lane.store_path)
        columns = "lane, profile, base_sha256, text, stable, barred, current_seq"
        database.execute(
            f"insert into revisions (sha256, {columns}) "
            f"select ?, {columns} from revisions where sha256 = ?",
            (twin, here),
        )
        database.commit()
    try:
        both = lane.forge("rollback", "--to", here[:12], "--json")
        assert both.status == 2, both
        assert "several" in both.error["message"]
        assert lane.seen() == before
        one = lane.forge("rollback", "--to", here[:24].upper(), "--json")
        assert one.status == 0, one
        assert lane.digest() == here
    finally:
        database.execute("delete from revisions where sha256 = ?", (twin,))
        database.commit()
        database.close()
    again = lane.forge("rollback", "--to", here[:12], "--json")
    assert (again.status, again.json["phase"]) == (0, "unchanged"), again


# ------------------------------------------------------------------------ beside another change


def test_it_pre_empts_a_live_switch(lane: Bench) -> None:
    with Command(lane.rig, "switch", "slow", "--json") as switch:
        wait_phase(lane, Phase.VERIFYING)
        with Command(lane.rig, "rollback", "--json") as rollback:
            back = rollback.end()
        undone = switch.end()
    assert undone.status == 4, undone
    assert undone.json["phase"] == "rolled-back"
    assert "pre-empted by a rollback" in undone.json["reason"]
    assert back.status == 0, back
    assert (back.json["phase"], lane.digest()) == ("committed", base(lane))
    assert "told" in back.err and "to fail now" in back.err
    lane.check_serves()


def test_a_dead_switch_is_taken_as_failed(lane: Bench) -> None:
    assert lane.forge.change("switch", "b", "before store.finish(verifying)").status == -9
    done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    with lane.store() as store:
        dead = store.history(LANE, limit=2)[1]
    assert (dead.phase, dead.reason) == (Phase.ROLLED_BACK, "pre-empted by a rollback")
    assert lane.digest() == base(lane)
    lane.check_serves()


def test_a_dead_rollback_is_finished_and_not_gone_past(lane: Bench) -> None:
    assert lane.forge("switch", "b").status == 0
    assert lane.forge.change("rollback", "", "before supervisor.start").status == -9
    dead = unfinished(lane)
    done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    assert (dead, done.json["phase"]) == (Phase.RESTARTING, "committed")
    assert lane.digest() == base(lane)
    with lane.store() as store:
        row, newest = store.lane(LANE), store.history(LANE, limit=1)[0]
    assert newest.id == done.json["switch"], "one rollback, not two"
    assert row and row.quarantined is None
    lane.check_serves()


def test_beside_a_live_rollback_it_is_refused(lane: Bench) -> None:
    assert lane.forge("switch", "slow").status == 0
    slow = lane.digest()
    assert lane.forge("switch", "b").status == 0
    with Command(lane.rig, "rollback", "--to", slow[:12], "--json") as first:
        wait_phase(lane, Phase.VERIFYING)
        second = lane.forge("rollback", "--json")
        done = first.end()
    assert (second.status, second.error["code"]) == (3, "busy"), second
    assert done.status == 0, done
    assert lane.digest() == slow


def test_during_a_probation(lane: Bench) -> None:
    lane.rig.write_config(profiles=MORE, smoke={"gate": "quick"}, probation_s=600)
    try:
        assert lane.forge("switch", "b", "--json").status == 0

        def watcher() -> int:
            with lane.store() as store:
                found = store.probation(LANE)
            return found.worker_pid if found else 0

        pid = wait_for(watcher)
        done = lane.forge("rollback", "--json")
        assert done.status == 0, done
        assert lane.digest() == base(lane)
        assert watcher() == 0, "the probation has ended, and a rollback has none"
        wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), why="the watcher's end")
    finally:
        lane.rig.write_config(profiles=MORE, smoke={"gate": "quick"})


# ----------------------------------------------------------------------------- what else is broken


@contextmanager
def hanging_client(rig: Rig) -> Iterator[None]:
    """A request that is read slowly and never to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=60)
    body = {
        "model": LANE,
        "stream": True,
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "Tell me everything there is. " * 50}],
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    try:
        yield
    finally:
        connection.close()


def deployed_by_hand(lane: Bench, profile: str) -> None:
    """The lane runs that profile and is recorded so, although no gate would let it pass."""
    done = lane.forge("switch", profile, "--barred-ok", "--json")
    assert done.status == 4, done
    with lane.store() as store:
        revision = store.revision(LANE, done.json["to"]["sha256"])
        assert revision
        lane.rig.write_launcher(revision.text)
        store.set_current(LANE, revision.sha256)
    with lane.rig.rpc() as supervisord:
        supervisord.supervisor.stopProcess("lane")
        supervisord.supervisor.startProcess("lane")
    lane.rig.wait_listening()


def test_from_a_flood(lane: Bench) -> None:
    deployed_by_hand(lane, "flood")
    done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    assert lane.digest() == base(lane)
    lane.check_serves()


def test_from_a_frozen_lane(lane: Bench) -> None:
    lane.rig.write_config(profiles=MORE, smoke={"gate": "quick", "request_timeout_s": 2})
    try:
        deployed_by_hand(lane, "frozen")
        began = time.monotonic()
        done = lane.forge("rollback", "--json")
        assert done.status == 0, done
        assert lane.digest() == base(lane)
        assert time.monotonic() - began < 30, "a frozen lane is not asked for its opinion"
    finally:
        lane.rig.write_config(profiles=MORE, smoke={"gate": "quick"})


def test_a_queue_that_never_drains_is_not_waited_for(lane: Bench) -> None:
    assert lane.forge("switch", "plain", "--json").status == 0
    standing(lane, stable=("adopted",))
    with hanging_client(lane.rig):
        wait_for(lambda: (lane.forge("status", "--json").json[0]["running"] or 0) > 0)
        done = lane.forge("rollback", "--json")
    assert done.status == 0, done
    assert "draining" not in done.json["receipt"]["timings"]
    assert done.json["receipt"]["requests_cut"] >= 1, "what was cut is counted"
    assert lane.digest() == base(lane)


def test_from_a_failing_target_it_stays_there_degraded(lane: Bench) -> None:
    done = lane.forge("switch", "crash", "--json")
    assert done.status == 4, done
    bad = done.json["to"]["sha256"]
    back = lane.forge("rollback", "--to", bad[:12], "--json")
    assert back.status == 5, back
    assert (back.json["phase"], lane.digest()) == ("degraded", bad)
    (said,) = lane.forge("status", "--json").json
    assert said["quarantined"] and said["sha256"] == bad
    blocked = lane.forge("switch", "b", "--json")
    assert (blocked.status, blocked.error["code"]) == (3, "quarantined")
    assert lane.forge("rollback", "--json").status == 0, "a rollback still works"
    lane.check_serves()
    assert lane.forge("release", "--json").status == 0


# ---------------------------------------------------------------------------------------- drift


def test_drift_is_overwritten_only_when_it_is_named(lane: Bench) -> None:
    edited = lane.rig.launcher.read_bytes() + b"# by hand\n"
    lane.rig.write_launcher(edited)
    drifted, before = lane.digest(), lane.seen()
    refused = lane.forge("rollback", "--json")
    assert (refused.status, refused.error["code"]) == (3, "drift"), refused
    assert f"--accept-drift {drifted[:12]}" in refused.error["next"]
    other = lane.forge("rollback", "--accept-drift", "0123456789ab", "--json")
    assert (other.status, other.error["code"]) == (3, "drift"), other
    assert lane.seen() == before
    done = lane.forge("rollback", "--accept-drift", drifted[:12], "--json")
    assert done.status == 0, done
    assert lane.digest() == base(lane)
    kept = [b for b in lane.backups() if b.read_bytes() == edited]
    assert kept, "what was overwritten has a backup"


# --------------------------------------------------------------------------- from the files alone


def test_from_a_backup(lane: Bench) -> None:
    copy = lane.rig.folder / "kept.sh"
    shutil.copy2(lane.rig.launcher, copy)
    here = lane.digest()
    assert lane.forge("switch", "b").status == 0
    done = lane.forge("rollback", "--backup", str(copy), "--json")
    assert done.status == 0, done
    assert lane.digest() == here
    lane.check_serves()
    missing = lane.forge("rollback", "--backup", str(copy) + "-not", "--json")
    assert missing.status == 2, missing


def lock_store(lane: Bench) -> subprocess.Popen[str]:
    """A process that keeps the store's write lock until it is written to."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('begin immediate'); print('locked', flush=True); sys.stdin.read()"
    )
    locker = subprocess.Popen(
        [sys.executable, "-c", code, str(lane.store_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert locker.stdout and locker.stdout.readline() == "locked\n"
    return locker


@pytest.mark.parametrize("how", ["gone", "corrupt", "locked"])
def test_without_the_store(lane: Bench, how: str) -> None:
    assert lane.forge("switch", "b").status == 0
    backup = next(path for path in reversed(lane.backups()) if path.name.endswith("-a"))
    whole = lane.rig.folder / "whole.db"
    holder = sqlite3.connect(lane.store_path, isolation_level=None)
    holder.execute("pragma wal_checkpoint(truncate)")
    shutil.copy2(lane.store_path, whole)
    try:
        holder.close()
        if how == "locked":
            locker = lock_store(lane)
        else:
            for name in ("", "-wal", "-shm"):
                (lane.rig.folder / f"lanectl.db{name}").unlink(missing_ok=True)
            if how == "gone":
                lane.store_path.mkdir()  # Not even a new one can be made there.
            else:
                lane.store_path.write_bytes(b"not a database at all\n" * 100)
        plain = lane.forge("rollback", "--json")
        assert (plain.status, plain.error["code"]) == (3, "store-unusable"), plain
        assert "--backup FILE" in plain.error["next"]
        done = lane.forge("rollback", "--backup", str(backup), "--json")
        assert done.status == 0, done
        assert done.json["phase"] == "committed"
        assert lane.rig.launcher.read_bytes() == backup.read_bytes()
        assert "from the files alone" in done.err
        lane.check_serves()
    finally:
        if how == "locked":
            locker.communicate("let go")
        if lane.store_path.is_dir():
            lane.store_path.rmdir()
        for name in ("-wal", "-shm"):
            (lane.rig.folder / f"lanectl.db{name}").unlink(missing_ok=True)
        shutil.copy2(whole, lane.store_path)
        with lane.store() as store:
            store.set_current(LANE, lane.digest())


def test_without_supervisord(lane: Bench) -> None:
    assert lane.forge("switch", "b").status == 0
    backup = next(path for path in reversed(lane.backups()) if path.name.endswith("-a"))
    before = lane.seen()
    os.kill(lane.rig.pid, signal.SIGSTOP)
    try:
        refused = lane.forge("rollback", "--json")
        assert (refused.status, refused.error["code"]) == (3, "unreachable"), refused
        assert lane.digest() == before.sha256
        done = lane.forge("rollback", "--backup", str(backup), "--json")
    finally:
        os.kill(lane.rig.pid, signal.SIGCONT)
    assert done.status == 5, done
    assert done.error["code"] == "file-restored"
    assert "lanectl restart" in done.error["next"], "what is left to do is said"
    assert lane.rig.launcher.read_bytes() == backup.read_bytes()
    now = lane.seen()
    assert (now.pid, now.started) == (before.pid, before.started), "no process was touched"
    assert not lane.staged()
    # What was said is left to do is possible: the restored text is taken up again.
    left = lane.forge("restart", "--json")
    assert left.status == 0, left
    lane.check_serves()


def test_the_journal_of_a_killed_rollback_ends(lane: Bench) -> None:
    """Every change of this file is closed, whatever was done to it."""
    with lane.store() as store:
        open_ones = [r.id for r in store.history(LANE, limit=200) if r.phase not in TERMINAL]
    assert open_ones == []
    assert MODEL in lane.rig.launcher.read_text()
