"""From `store.url` to a database ready for use: a safe place, bounded waits, the right schema.

What only SQLite needs stands here and nowhere else. Alembic takes as long to import as all the
rest, so it is imported only when the schema really has to change.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, exc, inspect, text
from sqlalchemy.engine import URL, make_url

from lanectl.adapters import schema
from lanectl.adapters.store_json import to_json
from lanectl.errors import ConfigError, StoreUnusable

BUSY_S = 5.0
"""How long to wait for another process's write before giving up."""

WITHOUT_STORE = "`lanectl rollback LANE --backup FILE` works without the store"

_OUR_FAULT = (exc.ProgrammingError, exc.IntegrityError, exc.DataError, exc.NotSupportedError)
"""Database errors that speak of a bug in lanectl, not of the state the store is in."""


class Database:
    """Transactions on one store. Errors of its state leave here as StoreUnusable.

    A write is on the disk when its block ends. Writers wait for each other, for BUSY_S at most;
    readers see one consistent moment and wait for nobody.
    """

    def __init__(self, engine: Engine, name: str, file: Path | None) -> None:
        self._engine = engine
        self._writer = engine.execution_options(lanectl_write=True)
        self._name = name
        self._file = file
        self._identity = _identity(file) if file else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with _usable(self._name):
            self._check_still_there()
            with self._engine.connect() as connection:
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with _usable(self._name):
            self._check_still_there()
            with self._writer.begin() as connection:
                yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _check_still_there(self) -> None:
        """SQLite would go on writing, without a complaint, to a file that has been removed."""
        if self._file and _identity(self._file) != self._identity:
            raise _unusable(self._name, "the file was replaced while in use")


def open_database(url: str, *, create: bool) -> Database:
    """Open the database at `url`, its schema brought up to date.

    create: make file and folder where there are none (0600 in 0700, whatever the umask).
    Raises StoreUnusable, and ConfigError for a URL that names no usable kind of store.
    """
    try:
        parsed = make_url(url)
        name = parsed.render_as_string(hide_password=True)
        file = None
        if parsed.get_backend_name() == "sqlite":
            asked = _sqlite_path(parsed)
            file = asked.resolve()
            name = str(file)
            with _usable(name):
                _prepare_file(asked, file, create=create)
            parsed = parsed.set(database=name)
        engine = _engine(parsed)
    except (exc.ArgumentError, ImportError) as error:
        raise ConfigError(f"not a usable store: {error}", key="store.url") from error
    database = None
    try:
        with _usable(name):
            database = Database(engine, name, file)
        _bring_up_to_date(database, name)
    except BaseException:
        engine.dispose()
        raise
    return database


# ------------------------------------------------------------------------------------------- schema


def _bring_up_to_date(database: Database, name: str) -> None:
    with database.read() as connection:
        if _stamp(connection, name) == schema.HEAD:
            return
    with database.write() as connection:
        # All in one transaction under the write lock: of two processes that get here at once, the
        # second waits, and then Alembic finds nothing left to do.
        _upgrade(connection, name)


def _stamp(connection: Connection, name: str) -> str | None:
    """The revision the schema has, None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if found is not None and found > schema.HEAD:
        raise _unusable(
            name,
            f"its schema {found} is newer than the {schema.HEAD} this lanectl knows;"
            " install the lanectl that wrote it",
        )
    return None if found is None else str(found)


def _upgrade(connection: Connection, name: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    # The option is read with %-interpolation, and a folder may have a % in its name.
    folder = str(Path(__file__).with_name("migrations")).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise _unusable(name, f"its schema cannot be brought up to date: {error}") from error


# ------------------------------------------------------------------------------------------- engine


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, json_serializer=to_json)
    engine = create_engine(
        url, json_serializer=to_json, connect_args={"timeout": BUSY_S}, pool_timeout=BUSY_S
    )
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_sqlite_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    connection.execute("PRAGMA foreign_keys = ON")
    # In WAL mode anything less than FULL may lose the last commits when the power fails.
    connection.execute("PRAGMA synchronous = FULL")
    mode = _use_wal(connection)
    if mode != "wal":
        raise sqlite3.OperationalError(f"no write-ahead log in this place (journal mode {mode})")


def _use_wal(connection: sqlite3.Connection) -> str:
    """The mode is kept in the file, so only a fresh one changes here.

    Several processes opening a fresh file collide in a way that SQLite's own wait does not cover.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _on_sqlite_begin(connection: Connection) -> None:
    """A write takes the lock at once: upgrading a read later would fail instead of waiting."""
    writes = connection.get_execution_options().get("lanectl_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# -------------------------------------------------------------------------------------------- place


def _sqlite_path(url: URL) -> Path:
    database = url.database
    if not database or database == ":memory:" or database.startswith("file:") or url.query:
        raise ConfigError(
            "must be sqlite:///FILE: the journal has to outlive the process", key="store.url"
        )
    return Path(database).expanduser().absolute()


def _prepare_file(asked: Path, file: Path, *, create: bool) -> None:
    """Make the file where it is asked for, and refuse one that strangers could exchange.

    asked: the path as configured; it may be a link to `file`, and is checked as well.
    """
    if create:
        _make_folder(file.parent)
    if not file.parent.is_dir():
        raise OSError(f"there is no folder {file.parent}")
    shared = [place for place in (asked, file) if _anyone_adds_files(place.parent)]
    if create:
        _make_file(file)
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")
    if found.st_mode & stat.S_IWOTH:
        raise OSError("anyone may write to it; take that right away with `chmod o-w`")
    if any(place.lstat().st_uid != os.geteuid() for place in shared):
        raise OSError("another user put it there, in a folder that anyone may write to")


def _make_folder(folder: Path) -> None:
    if folder.exists():
        return
    _make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    folder.chmod(0o700)  # a strict umask must not take away our own rights


def _anyone_adds_files(folder: Path) -> bool:
    """As in /tmp. Refused where anyone may also remove or rename ours."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise OSError(f"anyone may replace files in {folder}; take that right away first")
    return bool(mode & stat.S_IWOTH)


def _make_file(file: Path) -> None:
    # SQLite gives its -wal and -shm files the mode of this one.
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _identity(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_dev, found.st_ino


# ------------------------------------------------------------------------------------------- errors


@contextmanager
def _usable(name: str) -> Iterator[None]:
    """Turn what speaks of the store's state into StoreUnusable; bugs pass through as they are."""
    try:
        yield
    except _OUR_FAULT:
        raise
    except exc.DBAPIError as error:
        raise _unusable(name, _cause(str(error.orig))) from error
    except exc.TimeoutError as error:
        raise _unusable(name, "all of its connections are in use") from error
    except OSError as error:
        raise _unusable(name, error.strerror or str(error)) from error


def _cause(said: str) -> str:
    for words, cause in (
        ("is locked", f"another process has kept it locked for more than {BUSY_S:g} s"),
        ("not a database", "the file is damaged, or is no lanectl store"),
        ("malformed", "the file is damaged"),
        ("is full", "the disk is full"),
        ("readonly", "it may not be written to"),
        ("I/O error", "reading or writing the disk failed"),
    ):
        if words in said:
            return f"{cause} ({said})"
    return said


def _unusable(name: str, cause: str) -> StoreUnusable:
    return StoreUnusable(f"the store {name} cannot be used: {cause}", next_step=WITHOUT_STORE)
