"""The store: revisions, the journal and what was seen, in SQL (ports.Store).

Every method is one transaction. A method that changes something returns once the change is on the
disk, which is what lets the engine write the intent down before it acts. A switch, a revision or a
lane that does not exist is the caller's mistake and raises KeyError.
"""

from __future__ import annotations

import re
import secrets
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, Update, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from lanectl.adapters.database import WITHOUT_STORE, Database, open_database
from lanectl.adapters.schema import (
    events,
    incidents,
    lanes,
    probations,
    revisions,
    sightings,
    smokes,
    switches,
)
from lanectl.adapters.store_json import plan_from_json, plan_to_json
from lanectl.core.lane import Plan, Revision
from lanectl.core.switch import TERMINAL, Phase
from lanectl.errors import LaneBusy, StoreUnusable
from lanectl.ports import Event, LaneRow, Probation, Sighting, SmokeRow, SwitchRow

_ID = re.compile(r"s-([0-9]{6,18})-([0-9a-f]{4})")


def open_store(url: str, *, create: bool = True) -> SqlStore:
    """The store at `url`, its schema brought up to date first.

    create: make a SQLite file that is missing, readable by its owner only. Without it a missing
    store is StoreUnusable. ConfigError where the URL names nothing that could be a store.
    """
    return SqlStore(open_database(url, create=create))


class SqlStore:
    """ports.Store on any database that SQLAlchemy reaches; safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        self._database.close()

    # ----------------------------------------------------------------------- lanes and revisions

    def lane(self, name: str) -> LaneRow | None:
        with self._database.read() as connection:
            row = connection.execute(select(lanes).where(lanes.c.name == name)).one_or_none()
        return None if row is None else LaneRow(**row._mapping)

    def adopt(self, revision: Revision, at: datetime) -> None:
        """Record base, revision and the lane's current digest in one transaction.

        Adopting once more replaces base and current; quarantine, bars and earned standing stay.
        """
        row = {
            "base_sha256": revision.base_sha256,
            "current_sha256": revision.sha256,
            "adopted_at": at,
        }
        lane, sha256 = revision.lane, revision.sha256
        with self._database.write() as connection:
            known = connection.execute(update(lanes).where(lanes.c.name == lane).values(row))
            if not known.rowcount:
                connection.execute(insert(lanes).values(row | {"name": lane, "quarantined": None}))
            _save_revision(connection, revision)
            if revision.stable:
                _change(connection, _one_revision(lane, sha256).values(stable=True), sha256)
            _make_newest(connection, lane, sha256)

    def set_current(self, lane: str, sha256: str, profile: str | None = None) -> None:
        with self._database.write() as connection:
            # First the lane's row: it is the lock under which the lane's revisions count up.
            _change(connection, _one_lane(lane).values(current_sha256=sha256), lane)
            _make_newest(connection, lane, sha256)
            if profile is not None:
                named = _one_revision(lane, sha256).values(profile=profile)
                _change(connection, named, sha256)

    def set_quarantine(self, lane: str, reason: str | None) -> None:
        with self._database.write() as connection:
            _change(connection, _one_lane(lane).values(quarantined=reason), lane)

    def save_revision(self, revision: Revision) -> None:
        with self._database.write() as connection:
            _save_revision(connection, revision)

    def revision(self, lane: str, sha256: str) -> Revision | None:
        found = _select_revisions(lane).where(revisions.c.sha256 == sha256)
        with self._database.read() as connection:
            row = connection.execute(found).one_or_none()
        return None if row is None else Revision(**row._mapping)

    def revisions(self, lane: str) -> list[Revision]:
        """Newest standing first; those that were never current come last."""
        newest_first = (revisions.c.current_seq.desc(), revisions.c.seq.desc())
        with self._database.read() as connection:
            rows = connection.execute(_select_revisions(lane).order_by(*newest_first)).all()
        return [Revision(**row._mapping) for row in rows]

    def set_stable(self, lane: str, sha256: str, stable: bool) -> None:
        with self._database.write() as connection:
            _change(connection, _one_revision(lane, sha256).values(stable=stable), sha256)

    def set_barred(self, lane: str, sha256: str, barred: bool) -> None:
        with self._database.write() as connection:
            _change(connection, _one_revision(lane, sha256).values(barred=barred), sha256)

    # ----------------------------------------------------------------------------------- journal

    def open_switch(self, plan: Plan, at: datetime) -> SwitchRow:
        lane = plan.lane.name
        row = {
            "tag": secrets.token_hex(2),
            "lane": lane,
            "open_lane": lane,
            "phase": Phase.PREPARING.value,
            "at": at,
            "reason": "",
            "plan": plan_to_json(plan),
            "receipt": {},
        }
        try:
            with self._database.write() as connection:
                opened = insert(switches).values(row).returning(switches.c.seq)
                seq: int = connection.execute(opened).scalar_one()
                _add_event(connection, seq, Phase.PREPARING, at)
                return _load_switch(connection, seq)
        except IntegrityError as error:
            # `open_lane` is unique: the lane is taken.
            raise _busy(lane, self.unfinished(lane)) from error

    def enter(self, switch_id: str, phase: Phase, at: datetime) -> None:
        """The durable record that comes before a phase's effect. A terminal phase closes it.

        Raises LaneBusy for a switch that is closed: a worker that was taken for dead and comes
        back to life must not go on with a switch that recovery has ended.
        """
        values: dict[str, Any] = {"phase": phase.value}
        if phase in TERMINAL:
            values["open_lane"] = None
        still_open = switches.c.open_lane.is_not(None)
        with self._database.write() as connection:
            seq = _find(connection, switch_id)
            entered = connection.execute(
                update(switches).where(switches.c.seq == seq, still_open).values(values)
            )
            if not entered.rowcount:
                raise LaneBusy(
                    f"the switch {switch_id} has been closed by another process,"
                    f" so it does not enter {phase.value}",
                    next_step="lanectl status",
                )
            _add_event(connection, seq, phase, at)

    def finish(
        self,
        switch_id: str,
        phase: Phase,
        outcome: str,
        elapsed_s: float,
        detail: Mapping[str, Any],
    ) -> None:
        """How that phase went, the last time it was entered."""
        with self._database.write() as connection:
            last = select(func.max(events.c.seq)).where(
                events.c.switch_seq == _find(connection, switch_id),
                events.c.phase == phase.value,
            )
            finished = update(events).where(events.c.seq == last.scalar_subquery())
            values = {"outcome": outcome, "elapsed_s": elapsed_s, "detail": detail}
            _change(connection, finished.values(values), f"{switch_id} {phase.value}")

    def note(
        self,
        switch_id: str,
        *,
        reason: str | None = None,
        receipt: Mapping[str, Any] | None = None,
        verdict: Mapping[str, Any] | None = None,
        confirmation: Mapping[str, Any] | None = None,
    ) -> None:
        given = {"reason": reason, "verdict": verdict, "confirmation": confirmation}
        values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        with self._database.write() as connection:
            seq = _find(connection, switch_id)
            if receipt:
                # Locked, because what is read here is written back.
                found = select(switches.c.receipt).where(switches.c.seq == seq).with_for_update()
                values["receipt"] = {**connection.execute(found).scalar_one(), **receipt}
            if values:
                connection.execute(update(switches).where(switches.c.seq == seq).values(values))

    def ask_abort(self, switch_id: str, why: str) -> None:
        """Asked twice, the later reason stands: a rollback outranks a Ctrl-C."""
        with self._database.write() as connection:
            seq = _find(connection, switch_id)
            connection.execute(
                update(switches).where(switches.c.seq == seq).values(abort_asked=why)
            )

    def abort_asked(self, switch_id: str) -> str | None:
        asked = select(switches.c.abort_asked).where(*_named(switch_id))
        with self._database.read() as connection:
            row = connection.execute(asked).one_or_none()
        if row is None:
            raise KeyError(switch_id)
        asked_for: str | None = row.abort_asked
        return asked_for

    def switch(self, switch_id: str) -> SwitchRow | None:
        with self._database.read() as connection:
            try:
                seq = _find(connection, switch_id)
            except KeyError:
                return None
            return _load_switch(connection, seq)

    def unfinished(self, lane: str) -> SwitchRow | None:
        open_one = select(switches.c.seq).where(switches.c.open_lane == lane)
        with self._database.read() as connection:
            seq = connection.execute(open_one).scalar_one_or_none()
            return None if seq is None else _load_switch(connection, seq)

    def history(self, lane: str, *, limit: int = 50) -> list[SwitchRow]:
        newest_first = (
            select(switches)
            .where(switches.c.lane == lane)
            .order_by(switches.c.seq.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_switch_row(row) for row in connection.execute(newest_first)]

    def phase_times(self, lane: str, *, last: int = 5) -> Mapping[Phase, float]:
        # One more than asked for: the newest may be the open one. Asking the database for closed
        # ones would tempt SQLite to walk `open_lane`, through every switch there ever was.
        newest = (
            select(switches.c.seq, switches.c.open_lane)
            .where(switches.c.lane == lane)
            .order_by(switches.c.seq.desc())
            .limit(last + 1)
        )
        seconds: dict[Phase, list[float]] = defaultdict(list)
        with self._database.read() as connection:
            rows = connection.execute(newest).all()
            finished = [row.seq for row in rows if row.open_lane is None][:last]
            timed = select(events.c.phase, events.c.elapsed_s).where(
                events.c.switch_seq.in_(finished), events.c.elapsed_s.is_not(None)
            )
            for phase, elapsed_s in connection.execute(timed):
                seconds[Phase(phase)].append(elapsed_s)
        return {phase: statistics.median(times) for phase, times in seconds.items()}

    # ----------------------------------------------------------------------------- what was seen

    def see(self, lane: str, sighting: Sighting) -> None:
        row = {
            "lane": lane,
            "boot_id": sighting.boot_id,
            "pid": sighting.pid,
            "started": sighting.started,
            "sha256": sighting.sha256,
        }
        with self._database.write() as connection:
            _insert_once(connection, insert(sightings).values(row))

    def forget(self, lane: str, sighting: Sighting) -> None:
        gone = delete(sightings).where(
            sightings.c.lane == lane,
            sightings.c.boot_id == sighting.boot_id,
            sightings.c.pid == sighting.pid,
            sightings.c.started == sighting.started,
        )
        with self._database.write() as connection:
            connection.execute(gone)

    def sightings(self, lane: str, boot_id: str) -> list[Sighting]:
        found = (
            select(sightings.c.pid, sightings.c.started, sightings.c.boot_id, sightings.c.sha256)
            .where(sightings.c.lane == lane, sightings.c.boot_id == boot_id)
            .order_by(sightings.c.seq)
        )
        with self._database.read() as connection:
            return [Sighting(**row._mapping) for row in connection.execute(found)]

    def record_smoke(self, lane: str, row: SmokeRow) -> None:
        values = {
            "lane": lane,
            "at": row.at,
            "gate": row.gate,
            "sha256": row.sha256,
            "verdict": row.verdict,
        }
        with self._database.write() as connection:
            connection.execute(insert(smokes).values(values))

    def last_smoke(self, lane: str) -> SmokeRow | None:
        newest = (
            select(smokes.c.at, smokes.c.gate, smokes.c.sha256, smokes.c.verdict)
            .where(smokes.c.lane == lane)
            .order_by(smokes.c.seq.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(newest).one_or_none()
        return None if row is None else SmokeRow(**row._mapping)

    def open_incident(self, lane: str, at: datetime, title: str, detail: Mapping[str, Any]) -> None:
        values = {"lane": lane, "at": at, "title": title, "detail": detail}
        with self._database.write() as connection:
            connection.execute(insert(incidents).values(values))

    # --------------------------------------------------------------------------------- probation

    def start_probation(self, lane: str, probation: Probation) -> None:
        """One that still runs on the lane ends here, as `replaced`."""
        values = {
            "lane": lane,
            "open_lane": lane,
            "switch_id": probation.switch_id,
            "ends_at": probation.ends_at,
            "worker_pid": probation.worker_pid,
            "worker_started": probation.worker_started,
        }
        with self._database.write() as connection:
            _end_probation(connection, lane, "replaced")
            connection.execute(insert(probations).values(values))

    def probation(self, lane: str) -> Probation | None:
        found = select(
            probations.c.switch_id,
            probations.c.ends_at,
            probations.c.worker_pid,
            probations.c.worker_started,
            probations.c.ended,
        ).where(probations.c.open_lane == lane)
        with self._database.read() as connection:
            row = connection.execute(found).one_or_none()
        return None if row is None else Probation(**row._mapping)

    def extend_probation(self, switch_id: str, ends_at: datetime) -> None:
        """One that was ended meanwhile stays so."""
        running = (probations.c.switch_id == switch_id, probations.c.open_lane.is_not(None))
        with self._database.write() as connection:
            connection.execute(update(probations).where(*running).values(ends_at=ends_at))

    def end_probation(self, lane: str, how: str) -> None:
        """Nothing happens when none runs."""
        with self._database.write() as connection:
            _end_probation(connection, lane, how)


# ------------------------------------------------------------------------------ lanes and revisions


def _one_lane(name: str) -> Update:
    return update(lanes).where(lanes.c.name == name)


def _one_revision(lane: str, sha256: str) -> Update:
    return update(revisions).where(revisions.c.lane == lane, revisions.c.sha256 == sha256)


def _select_revisions(lane: str) -> Select[Any]:
    return select(
        revisions.c.lane,
        revisions.c.sha256,
        revisions.c.profile,
        revisions.c.base_sha256,
        revisions.c.text,
        revisions.c.stable,
        revisions.c.barred,
    ).where(revisions.c.lane == lane)


def _save_revision(connection: Connection, revision: Revision) -> None:
    row = {
        "lane": revision.lane,
        "sha256": revision.sha256,
        "profile": revision.profile,
        "base_sha256": revision.base_sha256,
        "stable": revision.stable,
        "barred": revision.barred,
        "current_seq": 0,
        "text": revision.text,
    }
    _insert_once(connection, insert(revisions).values(row))


def _make_newest(connection: Connection, lane: str, sha256: str) -> None:
    newest = select(func.max(revisions.c.current_seq)).where(revisions.c.lane == lane)
    next_seq = connection.execute(newest).scalar_one_or_none() or 0
    _change(connection, _one_revision(lane, sha256).values(current_seq=next_seq + 1), sha256)


# ------------------------------------------------------------------------------------------ journal


def _switch_id(seq: int, tag: str) -> str:
    """The name of a switch: sortable by eye, and not to be taken for another store's."""
    return f"s-{seq:06d}-{tag}"


def _named(switch_id: str) -> tuple[Any, Any]:
    """The conditions that pick the switch of that name. KeyError for what is no such name."""
    match = _ID.fullmatch(switch_id)
    if match is None:
        raise KeyError(switch_id)
    return switches.c.seq == int(match[1]), switches.c.tag == match[2]


def _find(connection: Connection, switch_id: str) -> int:
    found = select(switches.c.seq).where(*_named(switch_id))
    seq: int | None = connection.execute(found).scalar_one_or_none()
    if seq is None:
        raise KeyError(switch_id)
    return seq


def _add_event(connection: Connection, seq: int, phase: Phase, at: datetime) -> None:
    row: dict[str, Any] = {"switch_seq": seq, "phase": phase.value, "at": at, "detail": {}}
    connection.execute(insert(events).values(row))


def _load_switch(connection: Connection, seq: int) -> SwitchRow:
    found = select(switches).where(switches.c.seq == seq)
    of_switch = select(events).where(events.c.switch_seq == seq).order_by(events.c.seq)
    return _switch_row(connection.execute(found).one(), connection.execute(of_switch).all())


def _switch_row(row: Row[Any], event_rows: Sequence[Row[Any]] = ()) -> SwitchRow:
    switch_id = _switch_id(row.seq, row.tag)
    try:
        return SwitchRow(
            seq=row.seq,
            id=switch_id,
            plan=plan_from_json(row.plan),
            at=row.at,
            phase=Phase(row.phase),
            reason=row.reason,
            abort_asked=row.abort_asked,
            verdict=row.verdict,
            confirmation=row.confirmation,
            receipt=row.receipt,
            events=tuple(_event(event_row) for event_row in event_rows),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnusable(
            f"the journal of the switch {switch_id} cannot be read: {error!r}",
            next_step=WITHOUT_STORE,
        ) from error


def _event(row: Row[Any]) -> Event:
    return Event(
        seq=row.seq,
        phase=Phase(row.phase),
        outcome=row.outcome,
        at=row.at,
        elapsed_s=row.elapsed_s,
        detail=row.detail,
    )


def _busy(lane: str, holder: SwitchRow | None) -> LaneBusy:
    if holder is None:  # closed between our attempt and this look
        return LaneBusy(f"another switch of {lane} ended just now", next_step="try again")
    return LaneBusy(
        f"{lane} has an unfinished switch, {holder.id}: to {holder.plan.to_profile},"
        f" {holder.phase.value}, asked for by {holder.plan.who} at {holder.at:%Y-%m-%d %H:%M:%S}Z",
        next_step=f"lanectl status {lane}",
    )


# ----------------------------------------------------------------------------------------- the rest


def _end_probation(connection: Connection, lane: str, how: str) -> None:
    running = update(probations).where(probations.c.open_lane == lane)
    connection.execute(running.values(open_lane=None, ended=how))


def _change(connection: Connection, statement: Update, what: str) -> None:
    """Run an update that must find its row."""
    if not connection.execute(statement).rowcount:
        raise KeyError(what)


def _insert_once(connection: Connection, statement: Any) -> None:
    """Insert unless a row of that unique key is there; also where two processes try at once."""
    try:
        with connection.begin_nested():
            connection.execute(statement)
    except IntegrityError:
        pass
