"""The first schema.

Written out rather than taken from `schema.py`: a migration says what was, whatever comes later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _seq() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("seq", kind, primary_key=True, autoincrement=True)


def _moment() -> sa.DateTime:
    return sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "lanes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("base_sha256", sa.Text, nullable=False),
        sa.Column("current_sha256", sa.Text, nullable=False),
        sa.Column("quarantined", sa.Text),
        sa.Column("adopted_at", _moment(), nullable=False),
    )
    op.create_table(
        "revisions",
        _seq(),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("base_sha256", sa.Text, nullable=False),
        sa.Column("stable", sa.Boolean, nullable=False),
        sa.Column("barred", sa.Boolean, nullable=False),
        sa.Column("current_seq", sa.BigInteger, nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("lane", "sha256", name="uq_revisions_lane_sha256"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_revisions_lane_current", "revisions", ["lane", "current_seq", "seq"])
    op.create_table(
        "switches",
        _seq(),
        sa.Column("tag", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("open_lane", sa.Text),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("abort_asked", sa.Text),
        sa.Column("at", _moment(), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("verdict", sa.JSON),
        sa.Column("confirmation", sa.JSON),
        sa.Column("receipt", sa.JSON, nullable=False),
        sa.UniqueConstraint("open_lane", name="uq_switches_open_lane"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_switches_lane_seq", "switches", ["lane", "seq"])
    op.create_table(
        "events",
        _seq(),
        sa.Column(
            "switch_seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.ForeignKey("switches.seq", name="fk_events_switch"),
            nullable=False,
        ),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text),
        sa.Column("at", _moment(), nullable=False),
        sa.Column("elapsed_s", sa.Double),
        sa.Column("detail", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_switch_seq", "events", ["switch_seq", "seq"])
    op.create_table(
        "probations",
        _seq(),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("open_lane", sa.Text),
        sa.Column("switch_id", sa.Text, nullable=False),
        sa.Column("ends_at", _moment(), nullable=False),
        sa.Column("worker_pid", sa.BigInteger, nullable=False),
        sa.Column("worker_started", sa.Double, nullable=False),
        sa.Column("ended", sa.Text),
        sa.UniqueConstraint("open_lane", name="uq_probations_open_lane"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_probations_switch_id", "probations", ["switch_id"])
    op.create_table(
        "sightings",
        _seq(),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("sha256", sa.Text),
        sa.UniqueConstraint("lane", "boot_id", "pid", "started", name="uq_sightings_process"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_sightings_lane_boot_seq", "sightings", ["lane", "boot_id", "seq"])
    op.create_table(
        "smokes",
        _seq(),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("at", _moment(), nullable=False),
        sa.Column("gate", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text),
        sa.Column("verdict", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_smokes_lane_seq", "smokes", ["lane", "seq"])
    op.create_table(
        "incidents",
        _seq(),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("at", _moment(), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_incidents_lane_seq", "incidents", ["lane", "seq"])
