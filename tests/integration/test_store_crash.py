"""The store against the world: other processes, kills, locks, full disks, unsafe places."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from lanectl.adapters import database
from lanectl.adapters.store_sql import SqlStore, open_store
from lanectl.core.lane import Kind, Lane, Plan
from lanectl.core.switch import Phase
from lanectl.errors import LaneBusy, StoreUnusable
from lanectl.ports import SmokeRow

NOW = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
FORK = multiprocessing.get_context("fork")  # no second import of SQLAlchemy
ANYONE = 65534


def a_plan(who: str = "kit") -> Plan:
    lane = Lane("q", "local", "/srv/serve.sh", "unix:///s", "vllm", "http://127.0.0.1:8000/v1")
    return Plan(Kind.SWITCH, lane, "a" * 64, "adopted", "b" * 64, "new", "switch", who)


def smoke(number: int) -> SmokeRow:
    return SmokeRow(NOW, "quick", None, {"number": number, "text": "x" * 500})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lanectl.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.3)


def fork(target: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    """Start `target(pipe, *args)` in a process of its own."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=target, args=(theirs, *args))
    process.start()
    theirs.close()
    return process, ours


def check_whole(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


# ------------------------------------------------------------------------------------ two at a time


def open_one(pipe: Connection, url: str) -> None:
    try:
        store = open_store(url)
        pipe.recv()
        pipe.send(store.open_switch(a_plan(str(os.getpid())), NOW).id)
    except (LaneBusy, StoreUnusable) as error:
        pipe.send(error)


def test_four_open_a_fresh_store_and_race_for_the_lane(tmp_path: Path) -> None:
    for round_ in range(3):
        url = f"sqlite:///{tmp_path}/{round_}/state/lanectl.db"
        racers = [fork(open_one, url) for _ in range(4)]
        for _, pipe in racers:
            pipe.send("go")
        said = [pipe.recv() for _, pipe in racers]
        for process, _ in racers:
            process.join()
        winners = [answer for answer in said if isinstance(answer, str)]
        losers = [answer for answer in said if not isinstance(answer, str)]
        assert len(winners) == 1, said
        assert [type(answer) for answer in losers] == [LaneBusy] * 3, said
        store = open_store(url, create=False)
        unfinished = store.unfinished("q")
        assert unfinished is not None and unfinished.id == winners[0]
        assert all(winners[0] in answer.message for answer in losers)
        store.close()


def test_first_openings_that_collide_try_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one race of hundreds SQLite says "locked" at once, without its wait; here always."""

    class Colliding(sqlite3.Connection):
        refusals = 3

        def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql and self.refusals:
                self.refusals -= 1
                raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *more)

    assert database._use_wal(sqlite3.connect(path, factory=Colliding)) == "wal"
    monkeypatch.setattr(database, "BUSY_S", 0.0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        database._use_wal(sqlite3.connect(path, factory=Colliding))


def write_many(pipe: Connection, url: str, count: int) -> None:
    store = open_store(url)
    for number in range(count):
        store.record_smoke("q", smoke(number))
    pipe.send(count)


def test_writers_wait_for_each_other(store: SqlStore, url: str, path: Path) -> None:
    writers = [fork(write_many, url, 50) for _ in range(3)]
    assert [pipe.recv() for _, pipe in writers] == [50] * 3
    for process, _ in writers:
        process.join()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM smokes").fetchone() == (150,)


def test_a_follower_reads_while_another_writes(store: SqlStore, path: Path) -> None:
    switch_id = store.open_switch(a_plan(), NOW).id
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE switches SET abort_asked = 'not committed yet'")
    assert store.abort_asked(switch_id) is None
    open_store(f"sqlite:///{path}").close()  # nor does opening wait for the writer
    row = store.switch(switch_id)
    assert row is not None and row.phase is Phase.PREPARING
    other.execute("COMMIT")
    other.close()
    assert store.abort_asked(switch_id) == "not committed yet"


# -------------------------------------------------------------------------------------------- kills


def journal(pipe: Connection, url: str) -> None:
    """Write switch after switch; tell of each record once the store has acknowledged it."""
    store = open_store(url)
    opened = store.unfinished("q")
    while True:
        if opened is None:
            opened = store.open_switch(a_plan(), NOW)
            pipe.send((opened.id, Phase.PREPARING))
        for phase in (Phase.DRAINING, Phase.INSTALLING, Phase.COMMITTED):
            store.enter(opened.id, phase, NOW)
            pipe.send((opened.id, phase))
            store.note(opened.id, receipt={phase.value: "x" * 3000})
        opened = None


def test_a_killed_writer_loses_nothing_it_acknowledged(url: str, path: Path) -> None:
    acknowledged: list[tuple[str, Phase]] = []
    dice = random.Random(7)
    for _ in range(12):
        process, pipe = fork(journal, url)
        for _ in range(dice.randint(1, 12)):
            acknowledged.append(pipe.recv())
        time.sleep(dice.uniform(0, 0.01))  # so that it dies in the midst of any step
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while pipe.poll():
            try:
                acknowledged.append(pipe.recv())
            except EOFError:
                break
        check_whole(path)
    store = open_store(url, create=False)
    for switch_id, phase in acknowledged:
        row = store.switch(switch_id)
        assert row is not None
        assert phase in [entered.phase for entered in row.events], (switch_id, phase)
    store.close()


def test_a_killed_first_opening_leaves_nothing_half_made(tmp_path: Path) -> None:
    def only_open(pipe: Connection, url: str) -> None:
        pipe.send("started")
        open_store(url)

    for round_, delay in enumerate((0.0, 0.01, 0.03, 0.05, 0.08)):
        url = f"sqlite:///{tmp_path}/{round_}.db"
        process, pipe = fork(only_open, url)
        pipe.recv()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        store = open_store(url)
        assert store.open_switch(a_plan(), NOW).seq == 1
        store.close()


# ------------------------------------------------------------------------------------------- broken


def test_commits_reach_the_disk_and_keys_are_checked(store: SqlStore) -> None:
    with store._database.write() as connection:
        for pragma, value in (("synchronous", 2), ("foreign_keys", 1), ("busy_timeout", 5000)):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.usefixtures("impatient")
def test_a_locked_store_is_given_up_in_time(url: str, path: Path) -> None:
    store = open_store(url)
    switch_id = store.open_switch(a_plan(), NOW).id
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    with pytest.raises(StoreUnusable, match="locked") as unusable:
        store.enter(switch_id, Phase.DRAINING, NOW)
    assert 0.2 < time.monotonic() - started < 1.5
    assert str(path) in unusable.value.message
    assert "`lanectl rollback LANE --backup FILE`" in unusable.value.next_step
    other.execute("ROLLBACK")
    other.close()
    store.enter(switch_id, Phase.DRAINING, NOW)  # and it is usable again
    store.close()


@pytest.mark.usefixtures("impatient")
def test_a_fresh_store_locked_by_another_is_given_up_in_time(url: str, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    with pytest.raises(StoreUnusable, match="locked"):
        open_store(url)
    assert time.monotonic() - started < 1.5
    other.close()


def test_what_is_no_database(url: str, path: Path) -> None:
    path.write_bytes(b"not a database, but longer than the header of one" * 100)
    with pytest.raises(StoreUnusable, match="damaged") as unusable:
        open_store(url)
    assert "--backup" in unusable.value.next_step


def test_a_damaged_database(url: str, path: Path) -> None:
    store = open_store(url)
    for number in range(50):
        store.record_smoke("q", smoke(number))
    store.close()
    text = bytearray(path.read_bytes())
    for start in range(4096, len(text), 4096):  # every page but the first
        text[start : start + 64] = b"\xff" * 64
    path.write_bytes(text)
    with pytest.raises(StoreUnusable, match="damaged"):
        open_store(url).last_smoke("q")


def test_a_store_removed_or_replaced_under_us(store: SqlStore, path: Path) -> None:
    store.open_switch(a_plan(), NOW)
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreUnusable, match="No such file"):
        store.record_smoke("q", smoke(1))
    path.touch()
    for use in (lambda: store.unfinished("q"), lambda: store.record_smoke("q", smoke(1))):
        with pytest.raises(StoreUnusable, match="replaced"):
            use()


def test_a_full_disk(store: SqlStore) -> None:
    store.record_smoke("q", smoke(0))
    with store._database.read() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # SQLite: not below what it has
    with pytest.raises(StoreUnusable, match="disk is full"):
        for number in range(1, 1000):
            store.record_smoke("q", smoke(number))
    row = store.last_smoke("q")
    assert row is not None and row.verdict["text"] == "x" * 500


def test_a_disk_that_takes_no_more(url: str, path: Path) -> None:
    """The limit on a file's size stands in for a full disk: the write itself fails."""

    def write_until_refused(pipe: Connection) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = open_store(url)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        written = 0
        try:
            while True:
                store.record_smoke("q", smoke(written))
                written += 1
        except StoreUnusable as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            store.record_smoke("q", smoke(written))  # space again: it goes on
            pipe.send((written, error.message))

    process, pipe = fork(write_until_refused)
    written, message = pipe.recv()
    process.join()
    assert "disk failed" in message or "disk is full" in message
    check_whole(path)
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT count(*) FROM smokes").fetchone()
    assert written > 5 and rows == (written + 1,)


def test_a_store_that_may_not_be_written(store: SqlStore) -> None:
    with store._database.read() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreUnusable, match="may not be written"):
        store.record_smoke("q", smoke(1))


# -------------------------------------------------------------------------------------------- place


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_files_are_the_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    folder = tmp_path / "state" / "lanectl"
    before = os.umask(mask)
    try:
        store = open_store(f"sqlite:///{folder}/lanectl.db")
        store.record_smoke("q", smoke(1))
    finally:
        os.umask(before)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}
    assert modes == dict.fromkeys(("lanectl.db", "lanectl.db-wal", "lanectl.db-shm"), 0o600)
    assert [stat.S_IMODE(made.stat().st_mode) for made in (folder, folder.parent)] == [0o700] * 2
    store.close()


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    for url in (f"sqlite:///{tmp_path}/state/lanectl.db", f"sqlite:///{tmp_path}/state/a/b.db"):
        with pytest.raises(StoreUnusable) as unusable:
            open_store(url)
        assert "state" in unusable.value.message


def test_a_folder_in_place_of_the_file(path: Path, url: str) -> None:
    path.mkdir()
    with pytest.raises(StoreUnusable, match="not a regular file"):
        open_store(url)


def test_a_folder_where_anyone_may_replace_the_store(tmp_path: Path, path: Path, url: str) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StoreUnusable, match="anyone may replace"):
        open_store(url)
    assert not path.exists()
    tmp_path.chmod(0o1777)
    open_store(url).close()


def test_a_link_out_of_such_a_folder(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    own.mkdir()
    (shared / "link.db").symlink_to(own / "lanectl.db")
    url = f"sqlite:///{shared}/link.db"
    open_store(url).close()
    assert (own / "lanectl.db").is_file()
    shared.chmod(0o777)
    with pytest.raises(StoreUnusable, match="anyone may replace"):
        open_store(url)


def test_a_file_that_anyone_may_write(path: Path, url: str) -> None:
    open_store(url).close()
    path.chmod(0o666)
    with pytest.raises(StoreUnusable, match="chmod o-w"):
        open_store(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_file_that_another_user_put_into_tmp(tmp_path: Path, path: Path, url: str) -> None:
    open_store(url).close()
    os.chown(path, ANYONE, ANYONE)
    open_store(url).close()  # in our own folder somebody had to put it there on purpose
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreUnusable, match="another user"):
        open_store(url)
