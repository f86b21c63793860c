"""The tables of the store, in SQLAlchemy Core, and the revision of the schema they stand for.

Dialect-neutral: what only SQLite needs stands in `database.py`. Three habits run through all
tables:

- `seq`, an integer key that only ever grows, gives the order. Times are for people; clocks jump.
- `open_lane` holds the lane's name while a row is the lane's open one, and NULL afterwards. It is
  unique, NULLs are not compared, so the database itself allows one open row a lane, on SQLite and
  on PostgreSQL alike.
- a read by lane has an index (lane, seq), so that a long history costs a short one nothing.

A change here needs a migration in `migrations/versions/` and a new HEAD; tests hold them together.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

HEAD = "0001"
"""The newest migration. Numbered, four digits, so that a newer store is known by comparing text."""


class Moment(TypeDecorator[datetime]):
    """An aware time, kept and given back in UTC; SQLite has no time zones of its own."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone: {value}")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(TypeDecorator[str]):
    """Text for people, often quoted from elsewhere.

    Bytes that were no UTF-8 arrive as lone surrogates, which no database takes. A journal record
    must not fail for that, so they are written out as escapes.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.encode("utf-8", "backslashreplace").decode()


metadata = MetaData()


def _seq() -> Column[int]:
    """The ordering key. SQLite counts only a plain INTEGER key up by itself."""
    kind = BigInteger().with_variant(Integer(), "sqlite")
    return Column("seq", kind, primary_key=True, autoincrement=True)


def _table(name: str, *parts: Any) -> Table:
    # AUTOINCREMENT: without it SQLite would give a deleted last row's number out again.
    return Table(name, metadata, _seq(), *parts, sqlite_autoincrement=True)


lanes = Table(
    "lanes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("base_sha256", Text, nullable=False),
    Column("current_sha256", Text, nullable=False),
    Column("quarantined", Words),
    Column("adopted_at", Moment, nullable=False),
)

revisions = _table(
    "revisions",
    Column("lane", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("base_sha256", Text, nullable=False),
    Column("stable", Boolean, nullable=False),
    Column("barred", Boolean, nullable=False),
    # Counts up within the lane each time a revision becomes the current one; 0: never was.
    Column("current_seq", BigInteger, nullable=False),
    Column("text", LargeBinary, nullable=False),
    UniqueConstraint("lane", "sha256", name="uq_revisions_lane_sha256"),
    Index("ix_revisions_lane_current", "lane", "current_seq", "seq"),
)

switches = _table(
    "switches",
    # Half of the name people use (`s-000042-7f3a`): tells switches of two stores apart.
    Column("tag", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("open_lane", Text),
    Column("phase", Text, nullable=False),
    # Polled many times a second while a switch runs, so it stands before the long columns.
    Column("abort_asked", Words),
    Column("at", Moment, nullable=False),
    Column("reason", Words, nullable=False),
    Column("plan", Text, nullable=False),
    Column("verdict", JSON(none_as_null=True)),
    Column("confirmation", JSON(none_as_null=True)),
    Column("receipt", JSON, nullable=False),
    UniqueConstraint("open_lane", name="uq_switches_open_lane"),
    Index("ix_switches_lane_seq", "lane", "seq"),
)

events = _table(
    "events",
    Column("switch_seq", ForeignKey("switches.seq", name="fk_events_switch"), nullable=False),
    Column("phase", Text, nullable=False),
    Column("outcome", Text),
    Column("at", Moment, nullable=False),
    Column("elapsed_s", Double),
    Column("detail", JSON, nullable=False),
    Index("ix_events_switch_seq", "switch_seq", "seq"),
)

probations = _table(
    "probations",
    Column("lane", Text, nullable=False),
    Column("open_lane", Text),
    Column("switch_id", Text, nullable=False),
    Column("ends_at", Moment, nullable=False),
    Column("worker_pid", BigInteger, nullable=False),
    Column("worker_started", Double, nullable=False),
    Column("ended", Words),
    UniqueConstraint("open_lane", name="uq_probations_open_lane"),
    Index("ix_probations_switch_id", "switch_id"),
)

sightings = _table(
    "sightings",
    Column("lane", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", Double, nullable=False),
    Column("sha256", Text),
    UniqueConstraint("lane", "boot_id", "pid", "started", name="uq_sightings_process"),
    Index("ix_sightings_lane_boot_seq", "lane", "boot_id", "seq"),
)

smokes = _table(
    "smokes",
    Column("lane", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("gate", Text, nullable=False),
    Column("sha256", Text),
    Column("verdict", JSON, nullable=False),
    Index("ix_smokes_lane_seq", "lane", "seq"),
)

incidents = _table(
    "incidents",
    Column("lane", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("title", Words, nullable=False),
    Column("detail", JSON, nullable=False),
    Index("ix_incidents_lane_seq", "lane", "seq"),
)
