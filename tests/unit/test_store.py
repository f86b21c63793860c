"""The store, method by method, on a real SQLite file; crashes are in tests/integration."""

from __future__ import annotations

import json
import sqlite3
import string
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

import lanectl.adapters
from lanectl.adapters import database, schema
from lanectl.adapters.store_json import plan_from_json, plan_to_json, to_json
from lanectl.adapters.store_sql import SqlStore, open_store
from lanectl.core.lane import ADOPTED, Kind, Lane, Plan, Profile, Revision, SmokeSettings, digest
from lanectl.core.switch import Phase
from lanectl.errors import ConfigError, LaneBusy, StoreUnusable
from lanectl.ports import Probation, Sighting, SmokeRow, Store

NOW = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
OLD, NEW = "a" * 64, "b" * 64


def a_lane(name: str = "q", **more: Any) -> Lane:
    return Lane(
        name=name,
        host="local",
        launcher="/srv/serve.sh",
        supervisor="unix:///run/supervisor.sock",
        program="vllm",
        api="http://127.0.0.1:8000/v1",
        **more,
    )


def a_plan(lane: str = "q", **more: Any) -> Plan:
    return Plan(
        kind=Kind.SWITCH,
        lane=a_lane(lane),
        from_sha256=OLD,
        from_profile=ADOPTED,
        to_sha256=NEW,
        to_profile="reliability",
        gate="switch",
        who="kit",
        **more,
    )


def a_revision(text: bytes, lane: str = "q", **more: Any) -> Revision:
    return Revision(
        lane=lane, sha256=digest(text), profile="p", base_sha256=digest(b"base"), text=text, **more
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lanectl.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{path}")
    yield store
    store.close()


def test_it_is_a_store(store: SqlStore) -> None:
    port: Store = store
    assert port.lane("q") is None


# ------------------------------------------------------------------------------ lanes and revisions


def test_adopt_records_lane_and_revision(store: SqlStore) -> None:
    base = Revision("q", digest(b"base"), ADOPTED, digest(b"base"), b"base")
    store.adopt(base, NOW)
    row = store.lane("q")
    assert row is not None
    assert (row.name, row.base_sha256, row.current_sha256) == ("q", base.sha256, base.sha256)
    assert row.quarantined is None
    assert row.adopted_at == NOW and row.adopted_at.tzinfo is UTC
    assert store.revision("q", base.sha256) == base
    assert store.revisions("q") == [base]
    assert store.revisions("other") == [] and store.revision("other", base.sha256) is None


def test_adopting_again_replaces_the_base_and_keeps_what_was_earned(store: SqlStore) -> None:
    first, second = a_revision(b"1"), a_revision(b"2", stable=True)
    store.adopt(replace(first, stable=True), NOW)
    store.set_barred("q", first.sha256, True)
    store.set_quarantine("q", "flood")
    store.adopt(second, NOW + timedelta(days=1))
    store.adopt(replace(first, base_sha256=first.sha256), NOW + timedelta(days=2))
    row = store.lane("q")
    assert row is not None
    assert (row.base_sha256, row.current_sha256) == (first.sha256, first.sha256)
    assert (row.quarantined, row.adopted_at) == ("flood", NOW + timedelta(days=2))
    assert store.revision("q", first.sha256) == replace(first, stable=True, barred=True)


def test_adopting_a_proven_text_makes_a_known_revision_stable(store: SqlStore) -> None:
    revision = a_revision(b"1")
    store.adopt(revision, NOW)
    store.adopt(replace(revision, stable=True), NOW)
    assert store.revision("q", revision.sha256) == replace(revision, stable=True)


def test_save_revision_keeps_the_known_one(store: SqlStore) -> None:
    revision = a_revision(bytes(range(256)))
    store.save_revision(replace(revision, stable=True))
    store.save_revision(replace(revision, profile="again", barred=True))
    assert store.revision("q", revision.sha256) == replace(revision, stable=True)


def test_revisions_come_newest_standing_first(store: SqlStore) -> None:
    texts = [a_revision(text) for text in (b"1", b"2", b"3", b"4")]
    one, two, never, later = texts
    store.adopt(one, NOW)
    for revision in (two, never, later):
        store.save_revision(revision)
    store.adopt(a_revision(b"elsewhere", lane="other"), NOW)
    store.set_current("q", two.sha256)
    store.set_current("q", later.sha256)
    store.set_current("q", one.sha256)
    assert store.revisions("q") == [one, later, two, never]
    row = store.lane("q")
    assert row is not None and row.current_sha256 == one.sha256


def test_standing_and_quarantine_are_set_and_taken_back(store: SqlStore) -> None:
    revision = a_revision(b"1")
    store.adopt(revision, NOW)
    store.set_stable("q", revision.sha256, True)
    store.set_barred("q", revision.sha256, True)
    assert store.revision("q", revision.sha256) == replace(revision, stable=True, barred=True)
    store.set_stable("q", revision.sha256, False)
    store.set_barred("q", revision.sha256, False)
    assert store.revision("q", revision.sha256) == revision
    store.set_quarantine("q", "smoke failed")
    row = store.lane("q")
    assert row is not None and row.quarantined == "smoke failed"
    store.set_quarantine("q", None)
    row = store.lane("q")
    assert row is not None and row.quarantined is None


def test_what_is_not_there_cannot_be_changed(store: SqlStore) -> None:
    """A bar or a quarantine that went nowhere must not look like one that holds."""
    store.adopt(a_revision(b"1"), NOW)
    for change in (
        lambda: store.set_quarantine("other", "why"),
        lambda: store.set_current("other", OLD),
        lambda: store.set_current("q", OLD),
        lambda: store.set_stable("q", OLD, True),
        lambda: store.set_barred("q", OLD, True),
        lambda: store.enter("s-000009-0000", Phase.DRAINING, NOW),
        lambda: store.finish("s-000009-0000", Phase.DRAINING, "ok", 1.0, {}),
        lambda: store.note("s-000009-0000", reason="why"),
        lambda: store.ask_abort("nonsense", "why"),
        lambda: store.abort_asked("s-000009-0000"),
    ):
        with pytest.raises(KeyError):
            change()
    row = store.lane("q")
    assert row is not None and row.current_sha256 == digest(b"1"), "half of set_current stayed"


# ------------------------------------------------------------------------------------------ journal


def test_a_switch_from_open_to_close(store: SqlStore) -> None:
    plan = a_plan(reason="floods", cut=True)
    opened = store.open_switch(plan, NOW)
    assert opened.plan == plan and opened.at == NOW and opened.phase is Phase.PREPARING
    assert opened.id.startswith("s-000001-")
    assert (opened.reason, opened.abort_asked, opened.verdict) == ("", None, None)
    assert (opened.confirmation, opened.receipt) == (None, {})
    assert [entered.phase for entered in opened.events] == [Phase.PREPARING]
    assert opened.events[0].outcome is None and opened.events[0].elapsed_s is None
    assert store.switch(opened.id) == opened == store.unfinished("q")

    store.finish(opened.id, Phase.PREPARING, "ok", 0.1, {"backup": "/srv/x.bak"})
    store.enter(opened.id, Phase.DRAINING, NOW - timedelta(hours=1))  # the clock was set back
    store.finish(opened.id, Phase.DRAINING, "failed", 2.5, {})
    store.enter(opened.id, Phase.ABORTED, NOW)
    closed = store.switch(opened.id)
    assert closed is not None
    assert [(entered.phase, entered.outcome, entered.elapsed_s) for entered in closed.events] == [
        (Phase.PREPARING, "ok", 0.1),
        (Phase.DRAINING, "failed", 2.5),
        (Phase.ABORTED, None, None),
    ]
    assert closed.events[0].detail == {"backup": "/srv/x.bak"}
    assert closed.events[1].at == NOW - timedelta(hours=1)
    assert closed.phase is Phase.ABORTED
    assert store.unfinished("q") is None
    store.finish(opened.id, Phase.ABORTED, "ok", 0.0, {})  # how the end went may come after it


def test_one_open_switch_a_lane(store: SqlStore) -> None:
    first = store.open_switch(a_plan(), NOW)
    with pytest.raises(LaneBusy, match=first.id) as busy:
        store.open_switch(a_plan(), NOW)
    assert "kit" in busy.value.message and busy.value.next_step == "lanectl status q"
    other = store.open_switch(a_plan("other"), NOW)
    store.enter(first.id, Phase.COMMITTED, NOW)
    second = store.open_switch(a_plan(), NOW)
    assert first.seq < other.seq < second.seq
    assert store.unfinished("q") == second and store.unfinished("other") == other


def test_a_closed_switch_is_entered_no_more(store: SqlStore) -> None:
    """A worker taken for dead wakes up after recovery closed its switch."""
    opened = store.open_switch(a_plan(), NOW)
    store.enter(opened.id, Phase.ABORTED, NOW)
    with pytest.raises(LaneBusy, match=opened.id):
        store.enter(opened.id, Phase.INSTALLING, NOW)
    closed = store.switch(opened.id)
    assert closed is not None and closed.phase is Phase.ABORTED and len(closed.events) == 2


def test_finish_means_the_last_time_the_phase_was_entered(store: SqlStore) -> None:
    switch_id = store.open_switch(a_plan(), NOW).id
    store.enter(switch_id, Phase.VERIFYING, NOW)
    store.finish(switch_id, Phase.VERIFYING, "crashed", 1.0, {})
    store.enter(switch_id, Phase.VERIFYING, NOW)
    store.finish(switch_id, Phase.VERIFYING, "ok", 2.0, {})
    row = store.switch(switch_id)
    assert row is not None
    assert [entered.outcome for entered in row.events] == [None, "crashed", "ok"]
    with pytest.raises(KeyError):
        store.finish(switch_id, Phase.RESTORING, "ok", 1.0, {})


def test_notes_are_merged(store: SqlStore) -> None:
    switch_id = store.open_switch(a_plan(), NOW).id
    store.note(switch_id, receipt={"backup": "/b", "pids": {"before": 1}}, reason="first")
    store.note(switch_id, receipt={"pids": {"after": 2}}, verdict={"outcome": "failed"})
    store.note(switch_id, confirmation={"outcome": "passed"})
    store.note(switch_id)
    row = store.switch(switch_id)
    assert row is not None
    assert row.receipt == {"backup": "/b", "pids": {"after": 2}}
    assert (row.reason, row.verdict) == ("first", {"outcome": "failed"})
    assert row.confirmation == {"outcome": "passed"}


def test_receipts_hold_what_the_engine_has_at_hand(store: SqlStore) -> None:
    switch_id = store.open_switch(a_plan(), NOW).id
    receipt = {
        "phase": Phase.VERIFYING,
        "smoke": SmokeSettings(),
        "env": MappingProxyType({"A": "1"}),
        "pids": frozenset({3, 1, 2}),
        "at": NOW,
        "log": "torn \udcff\x00 é",
    }
    store.note(switch_id, receipt=receipt, reason="bytes \udcff")
    row = store.switch(switch_id)
    assert row is not None
    assert row.receipt["phase"] == "verifying" and row.receipt["smoke"]["gate"] == "switch"
    assert row.receipt["env"] == {"A": "1"} and row.receipt["pids"] == [1, 2, 3]
    assert row.receipt["at"] == NOW.isoformat() and row.receipt["log"] == "torn \udcff\x00 é"
    assert row.reason == r"bytes \udcff"
    with pytest.raises(TypeError, match="object"):
        to_json({"x": object()})


def test_abort_is_asked_by_one_and_read_by_another(store: SqlStore, path: Path) -> None:
    switch_id = store.open_switch(a_plan(), NOW).id
    assert store.abort_asked(switch_id) is None
    other = open_store(f"sqlite:///{path}")
    other.ask_abort(switch_id, "Ctrl-C")
    assert store.abort_asked(switch_id) == "Ctrl-C"
    other.ask_abort(switch_id, "rollback")
    other.close()
    row = store.switch(switch_id)
    assert row is not None and row.abort_asked == "rollback" == store.abort_asked(switch_id)


def test_unknown_switches_are_none(store: SqlStore) -> None:
    opened = store.open_switch(a_plan(), NOW)
    foreign = opened.id[:-4] + ("0000" if opened.id[-4:] != "0000" else "1111")
    for name in (foreign, "s-000002-0000", "", "s-1-2", f"s-{'9' * 30}-0000"):
        assert store.switch(name) is None


def test_history_is_newest_first_and_bounded(store: SqlStore) -> None:
    for number in range(5):
        opened = store.open_switch(a_plan(reason=str(number)), NOW - timedelta(hours=number))
        store.enter(opened.id, Phase.COMMITTED, NOW)
    store.open_switch(a_plan("other"), NOW)
    assert [row.plan.reason for row in store.history("q")] == ["4", "3", "2", "1", "0"]
    assert [row.plan.reason for row in store.history("q", limit=2)] == ["4", "3"]
    assert all(row.events == () for row in store.history("q"))


def test_phase_times_are_medians_of_the_last_finished(store: SqlStore) -> None:
    assert store.phase_times("q") == {}

    def run(seconds: float, lane: str = "q", close: bool = True) -> None:
        switch_id = store.open_switch(a_plan(lane), NOW).id
        store.finish(switch_id, Phase.PREPARING, "ok", seconds, {})
        store.enter(switch_id, Phase.DRAINING, NOW)
        if close:
            store.enter(switch_id, Phase.ABORTED, NOW)

    for seconds in (1000.0, 1.0, 2.0, 30.0):
        run(seconds)
    run(500.0, lane="other")
    assert store.phase_times("q", last=3) == {Phase.PREPARING: 2.0}
    run(9999.0, close=False)
    assert store.phase_times("q", last=3) == {Phase.PREPARING: 2.0}
    assert store.phase_times("q") == {Phase.PREPARING: 16.0}


# ------------------------------------------------------------------------------------ what was seen


def test_sightings_are_kept_once(store: SqlStore) -> None:
    first = Sighting(pid=7, started=1700000000.12, boot_id="boot", sha256=OLD)
    again = replace(first, started=1700000001.34, sha256=None)
    for sighting in (first, again, first, replace(first, boot_id="other")):
        store.see("q", sighting)
    assert store.sightings("q", "boot") == [first, again]
    assert store.sightings("q", "none") == [] == store.sightings("other", "boot")


def test_last_smoke_is_the_newest_recorded(store: SqlStore) -> None:
    assert store.last_smoke("q") is None
    first = SmokeRow(NOW, "switch", NEW, {"outcome": "passed"})
    last = SmokeRow(NOW - timedelta(days=1), "quick", None, {"outcome": "failed", "probes": [1.5]})
    store.record_smoke("q", first)
    store.record_smoke("q", last)
    store.record_smoke("other", first)
    assert store.last_smoke("q") == last


def test_incidents_are_recorded(store: SqlStore, path: Path) -> None:
    store.open_incident("q", NOW, "degraded", {"log": ["a", "b"]})
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT lane, title, detail FROM incidents").fetchall()
    assert rows == [("q", "degraded", '{"log":["a","b"]}')]


def test_times_come_back_in_utc(store: SqlStore) -> None:
    there = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    opened = store.open_switch(a_plan(), there)
    assert opened.at == NOW and opened.at.tzinfo is UTC
    with pytest.raises(Exception, match="without a zone"):
        store.enter(opened.id, Phase.DRAINING, NOW.replace(tzinfo=None))


# ---------------------------------------------------------------------------------------- probation


def test_probation_runs_is_extended_and_ends(store: SqlStore, path: Path) -> None:
    assert store.probation("q") is None
    store.end_probation("q", "nothing runs")
    probation = Probation("s-000001-abcd", NOW, 42, 1700000000.25, None)
    store.start_probation("q", probation)
    store.start_probation("other", replace(probation, switch_id="s-000002-abcd"))
    assert store.probation("q") == probation
    store.extend_probation("s-000001-abcd", NOW + timedelta(minutes=5))
    assert store.probation("q") == replace(probation, ends_at=NOW + timedelta(minutes=5))
    store.end_probation("q", "stable")
    assert store.probation("q") is None and store.probation("other") is not None
    store.extend_probation("s-000001-abcd", NOW)  # ended meanwhile: stays as it was
    with sqlite3.connect(path) as connection:
        found = "SELECT ended, ends_at FROM probations WHERE lane = 'q'"
        assert connection.execute(found).fetchall() == [("stable", "2026-03-29 01:35:00.123456")]


def test_a_new_probation_ends_the_one_before(store: SqlStore, path: Path) -> None:
    first = Probation("s-000001-abcd", NOW, 42, 1.5, None)
    second = replace(first, switch_id="s-000002-abcd")
    store.start_probation("q", first)
    store.start_probation("q", second)
    assert store.probation("q") == second
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT switch_id, ended FROM probations ORDER BY seq")
        assert rows.fetchall() == [("s-000001-abcd", "replaced"), ("s-000002-abcd", None)]


# --------------------------------------------------------------------------------------------- JSON

TEXTS = st.text(max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
PROFILES = st.builds(
    Profile,
    speculative=st.none() | st.just(False) | st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
    env=st.dictionaries(TEXTS, TEXTS, max_size=3),
    flags=st.dictionaries(TEXTS, TEXTS | st.booleans(), max_size=3),
)
LANES = st.builds(Lane, profiles=st.dictionaries(TEXTS, PROFILES, max_size=3))
SURROGATES = st.characters(categories=["Cs"])
PLANS = st.builds(
    lambda plan: replace(plan, lane=_with_its_profiles(plan)),
    st.builds(Plan, lane=LANES, reason=TEXTS | SURROGATES),
)


def _with_its_profiles(plan: Plan) -> Lane:
    """The plan's lane, its profiles under the two names that the plan holds."""
    names = (plan.from_profile, plan.to_profile)
    return replace(plan.lane, profiles=dict(zip(names, plan.lane.profiles.values(), strict=False)))


@given(PLANS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_comes_back_as_it_went(plan: Plan) -> None:
    back = plan_from_json(plan_to_json(plan))
    assert back == plan
    for name, profile in plan.lane.profiles.items():  # 0 == False, but only one is a setting
        assert (back.lane.profiles[name].speculative is False) is (profile.speculative is False)
    assert back.kind is plan.kind


def test_read_only_mappings_are_written_too() -> None:
    profile = Profile("p", speculative=MappingProxyType({"method": "mtp"}))
    plan = replace(a_plan(), lane=a_lane(profiles=MappingProxyType({"p": profile})))
    plan = replace(plan, to_profile="p")
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_plan_keeps_no_profile_that_it_does_not_name() -> None:
    profiles = {name: Profile(name, env={"HF_TOKEN": name}) for name in ("old", "new", "other")}
    plan = replace(a_plan(), lane=a_lane(profiles=profiles), from_profile="old", to_profile="new")
    back = plan_from_json(plan_to_json(plan))
    assert set(back.lane.profiles) == {"old", "new"}
    assert back.lane.profiles["new"] == profiles["new"]


def test_a_plan_of_another_version_is_read() -> None:
    """Only what the first version wrote is needed; what a later one added is passed over."""
    data = json.loads(plan_to_json(a_plan()))
    for part, kind in ((data, Plan), (data["lane"], Lane)):
        for field in fields(kind):
            if field.default is not MISSING or field.default_factory is not MISSING:
                del part[field.name]
        part["from_the_future"] = {"x": 1}
    assert plan_from_json(json.dumps(data)) == a_plan()
    data["lane"]["smoke"] = {"concurrency": 2, "new": 1}
    data["lane"]["profiles"] = {"p": {"name": "p", "new": 1}}
    lane = plan_from_json(json.dumps(data)).lane
    assert lane.smoke == SmokeSettings(concurrency=2)
    assert lane.profiles == {"p": Profile("p")}


def test_a_plan_as_written_by_the_first_version() -> None:
    """Frozen text: a change of the core values that cannot read it breaks recovery."""
    text = (
        '{"kind":"restart","lane":{"name":"q","host":"local","launcher":"/srv/serve.sh",'
        '"supervisor":"unix:///run/supervisor.sock","program":"vllm",'
        '"api":"http://127.0.0.1:8000/v1","min_uptime_s":null,"smoke":{"gate":"quick"},'
        '"profiles":{"p":{"name":"p","speculative":false,"flags":{"--x":true}}}},'
        f'"from_sha256":"{OLD}","from_profile":"adopted","to_sha256":"{NEW}","to_profile":"p",'
        '"gate":"quick","who":"kit"}'
    )
    plan = plan_from_json(text)
    assert plan.kind is Kind.RESTART and plan.lane.smoke.gate == "quick"
    assert plan.lane.profiles["p"] == Profile("p", speculative=False, flags={"--x": True})


def test_a_journal_that_cannot_be_read_says_so(store: SqlStore, path: Path) -> None:
    switch_id = store.open_switch(a_plan(), NOW).id
    for plan in ("{", "[]", "{}", '{"kind":"x","lane":{}}'):
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE switches SET plan = ?", (plan,))
        with pytest.raises(StoreUnusable, match=switch_id) as unusable:
            store.unfinished("q")
        assert "--backup" in unusable.value.next_step


# ------------------------------------------------------------------------------------------- schema


def alembic_config(**attributes: Any) -> Config:
    config = Config(attributes=attributes)
    folder = Path(lanectl.adapters.__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder))
    return config


def script() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config())


def test_head_is_the_newest_migration() -> None:
    assert script().get_heads() == [schema.HEAD]
    for revision in script().walk_revisions():
        assert len(revision.revision) == 4 and set(revision.revision) <= set(string.digits)


@pytest.mark.parametrize("start", [None, *(r.revision for r in script().walk_revisions())])
def test_every_schema_is_brought_up_to_the_tables(path: Path, start: str | None) -> None:
    path.parent.mkdir()
    url = f"sqlite:///{path}"
    if start:
        engine = create_engine(url)
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection=connection), start)
        engine.dispose()
    open_store(url).close()
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert context.get_current_revision() == schema.HEAD
        assert compare_metadata(context, schema.metadata) == []
        tables = "SELECT sql FROM sqlite_master WHERE type = 'table' AND sql LIKE '%seq INTEGER%'"
        created = connection.exec_driver_sql(tables).scalars().all()
        assert len(created) == len(schema.metadata.tables) - 1
        assert all("AUTOINCREMENT" in sql for sql in created)
    engine.dispose()


def test_a_current_store_opens_without_alembic(
    path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("upgraded what was current")

    monkeypatch.setattr(database, "_upgrade", never)
    open_store(f"sqlite:///{path}").close()


@pytest.mark.parametrize(("stamp", "words"), [("9999", "newer"), ("0000", "up to date")])
def test_a_schema_unknown_here_is_refused(
    path: Path, store: SqlStore, stamp: str, words: str
) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (stamp,))
    with pytest.raises(StoreUnusable, match=words) as unusable:
        open_store(f"sqlite:///{path}")
    assert str(path) in unusable.value.message and "--backup" in unusable.value.next_step


def test_the_tables_are_ones_that_postgresql_takes() -> None:
    dialect = postgresql.dialect()
    for table in schema.metadata.sorted_tables:
        assert "seq BIGSERIAL" in str(CreateTable(table).compile(dialect=dialect)) or (
            table is schema.lanes
        )
        for index in table.indexes:
            CreateIndex(index).compile(dialect=dialect)


# ------------------------------------------------------------------------------------------ indices


def test_every_statement_finds_its_rows_by_an_index(store: SqlStore, path: Path) -> None:
    """No timing: SQLite's own plan for each statement the store sends, once all are known."""
    seen: dict[str, Any] = {}

    def note(_c: object, _cu: object, statement: str, parameters: Any, *_: object) -> None:
        seen[statement] = parameters

    event.listen(store._database._engine, "before_cursor_execute", note)
    revision = a_revision(b"1")
    store.adopt(revision, NOW)
    store.set_current("q", revision.sha256)
    store.set_quarantine("q", None)
    store.set_stable("q", revision.sha256, True)
    store.set_barred("q", revision.sha256, True)
    store.lane("q")
    store.revision("q", revision.sha256)
    store.revisions("q")
    switch_id = store.open_switch(a_plan(), NOW).id
    store.finish(switch_id, Phase.PREPARING, "ok", 1.0, {})
    store.note(switch_id, reason="r", receipt={"a": 1}, verdict={}, confirmation={})
    store.ask_abort(switch_id, "why")
    store.abort_asked(switch_id)
    store.switch(switch_id)
    store.unfinished("q")
    store.enter(switch_id, Phase.COMMITTED, NOW)
    store.history("q")
    assert store.phase_times("q")
    store.see("q", Sighting(1, 1.0, "boot", None))
    store.sightings("q", "boot")
    store.record_smoke("q", SmokeRow(NOW, "quick", None, {}))
    store.last_smoke("q")
    store.start_probation("q", Probation(switch_id, NOW, 1, 1.0, None))
    store.probation("q")
    store.extend_probation(switch_id, NOW)
    store.end_probation("q", "stable")

    plans = {}
    with sqlite3.connect(path) as connection:
        for statement, parameters in seen.items():
            if statement.startswith(("SELECT", "UPDATE")):
                rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
                plans[statement] = [row[3] for row in rows]
    assert len(plans) > 20
    for statement, steps in plans.items():
        assert steps, statement
        for step in steps:
            assert not step.startswith("SCAN") and "TEMP B-TREE" not in step, (statement, steps)
    lane_reads = [steps for sql, steps in plans.items() if "switches.lane = ?" in sql]
    assert len(lane_reads) == 2  # history and phase_times: never through every finished switch
    for steps in lane_reads:
        assert steps[0].startswith("SEARCH switches USING INDEX ix_switches_lane_seq"), steps


# -------------------------------------------------------------------------------------------- place


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x", "what:///x"]
)
def test_urls_that_name_no_store(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url"):
        open_store(url)


def test_a_missing_store_is_made_only_when_asked(path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no folder"):
        open_store(f"sqlite:///{path}", create=False)
    path.parent.mkdir()
    with pytest.raises(StoreUnusable, match="No such file"):
        open_store(f"sqlite:///{path}", create=False)
    assert list(path.parent.iterdir()) == []
    open_store(f"sqlite:///{path}").close()
    open_store(f"sqlite:///{path}", create=False).close()
