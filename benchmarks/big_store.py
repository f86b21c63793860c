"""A store with a long past: 100,000 switches and 1,000,000 probe results, copied from real ones.

Fills a store that a few real switches have made, by SQL, so that every row is of the kind that
lanectl writes.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

SWITCHES = 100_000
PROBE_RESULTS = 1_000_000

_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"


def fill(path: Path, *, switches: int = SWITCHES, probe_results: int = PROBE_RESULTS) -> None:
    """Copy the store's newest switch, with its events, and its newest probe result so often."""
    with sqlite3.connect(path) as store:
        (newest,) = store.execute("SELECT max(seq) FROM switches").fetchone()
        copied = _columns(store, "switches")
        store.execute(
            f"{_NUMBERS} INSERT INTO switches (seq, {copied}) SELECT ? + i, {copied} "
            "FROM n CROSS JOIN switches WHERE seq = ?",
            (switches, newest, newest),
        )
        copied = _columns(store, "events", "switch_seq")
        store.execute(
            f"{_NUMBERS} INSERT INTO events (switch_seq, {copied}) SELECT ? + i, {copied} "
            "FROM n CROSS JOIN events WHERE switch_seq = ? ORDER BY i, seq",
            (switches, newest, newest),
        )
        copied = _columns(store, "smokes")
        store.execute(
            f"{_NUMBERS} INSERT INTO smokes ({copied}) SELECT {copied} "
            "FROM n CROSS JOIN smokes WHERE seq = (SELECT max(seq) FROM smokes)",
            (probe_results,),
        )
    with sqlite3.connect(path) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _columns(store: sqlite3.Connection, table: str, *without: str) -> str:
    names = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
    return ", ".join(name for name in names if name not in ("seq", *without))
