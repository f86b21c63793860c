"""SIGKILL at every step of every change: the lane is whole again after the next command.

Real files, a real supervisord, a real store. A step is the moment before or after one effect
(`driver.py`). Whatever the step: the launcher is one of the two texts, byte for byte; nothing
staged is left; what runs is what is deployed, and it serves; the bystander was not touched; the
journal is closed, in the phase that design section 4 says; and where nothing had been changed,
nothing was restarted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lanectl.core.lane import Kind
from lanectl.core.switch import Phase
from lanectl.demo.rig import LANE
from lanectl.ports import SwitchRow
from tests.lanes import Answer, Bench, Seen, bench

MANY = 200
"""More steps than any change has."""
UNTOUCHED = {Phase.PREPARING, Phase.DRAINING}
UNDOING = {Phase.REVERTING, Phase.RESTORING, Phase.CONFIRMING}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def lane() -> Iterator[Bench]:
    with bench() as made:
        yield made


def set_up(lane: Bench, profile: str | None = None) -> None:
    """No bars, the adopted revision stable, and the lane on that profile."""
    with lane.store() as store:
        for revision in store.revisions(LANE):
            store.set_barred(LANE, revision.sha256, False)
        row = store.lane(LANE)
        assert row
        store.set_stable(LANE, row.base_sha256, True)
    if profile is not None:
        done = lane.forge.change("switch", profile)
        assert "ended committed" in done.out or "ended unchanged" in done.out, done


def unfinished(lane: Bench) -> SwitchRow | None:
    with lane.store() as store:
        return store.unfinished(LANE)


def expected(dead: SwitchRow, sha256: str, preempted: bool) -> Phase:
    """How recovery must close it: the table of the design, put another way.

    sha256: the digest found in place. The crash may have come before or after the rename.
    """
    plan = dead.plan
    if dead.phase in UNTOUCHED:
        return Phase.ABORTED
    if dead.phase is Phase.INSTALLING and sha256 == plan.from_sha256:
        return Phase.ABORTED
    if plan.kind is Kind.ROLLBACK:
        return Phase.COMMITTED
    if dead.phase in UNDOING:
        return Phase.ROLLED_BACK
    if dead.phase is Phase.VERIFYING and not preempted and plan.to_profile != "flood":
        verified = sum(1 for event in dead.events if event.phase is Phase.VERIFYING)
        return Phase.COMMITTED if verified < 2 else Phase.ROLLED_BACK
    return Phase.ROLLED_BACK


def check_told(lane: Bench, dead: SwitchRow) -> None:
    """Before the recovery, `status` shows the unfinished change and what closes it."""
    (said,) = lane.forge("status", "--json").json
    assert (said["unfinished"], said["unfinished_phase"]) == (dead.id, str(dead.phase)), said
    assert said["unfinished_holder"] is None, "nobody holds the lane: its process is dead"
    if dead.seq % 4 == 0:
        text = lane.forge("status").out
        assert dead.id in text and "lanectl r" in text, text


def check_whole(
    lane: Bench, dead: SwitchRow, before: Seen, crashed: Seen, command: str, own: int
) -> None:
    """own: how many starts the closing command itself is allowed, besides those of the recovery."""
    with lane.store() as store:
        row, closed = store.lane(LANE), store.switch(dead.id)
        assert store.unfinished(LANE) is None, "the journal is still open"
    assert row and closed
    should = expected(dead, crashed.sha256, command == "rollback")
    assert closed.phase is should, f"closed as {closed.phase}, not {should}: {closed.reason}"
    assert row.quarantined is None, row.quarantined
    now = lane.seen()
    assert now.sha256 == row.current_sha256, "what is recorded is not what is deployed"
    if command == "repair":
        end = dead.plan.to_sha256 if should is Phase.COMMITTED else dead.plan.from_sha256
        assert now.sha256 == end, "the wrong one of the two texts"
    if should is Phase.ABORTED:
        assert crashed.spawned == before.spawned
        assert now.spawned - before.spawned == own, "restarted although nothing had changed"
        if not own:
            assert (now.pid, now.started) == (before.pid, before.started)
    assert now.bystander == before.bystander, "the bystander was touched"
    assert not lane.staged(), "a staged file is left"
    lane.check_serves()


def crash_everywhere(
    lane: Bench, kind: str, targets: tuple[str, ...], start: str | None = None
) -> int:
    """Crash the change at each of its steps in turn; returns how many there were.

    targets: profiles, of which one that is not deployed is switched to. start: the profile the
    lane is put on before each crash; None: wherever the last recovery left it.
    """
    commands = (
        ("repair", "reap-orphans"),
        ("restart",),
        ("switch", "TARGET", "--barred-ok"),
        ("rollback",),
    )
    for step in range(1, MANY):
        set_up(lane, start)
        before = lane.seen()
        profile = next_target(lane, targets)
        died = lane.forge.change(kind, profile, step)
        told = f"{kind}, step {step}: {died.out.splitlines()[-1:]}"
        if died.status == 0:
            assert "ended" in died.out, died
            lane.check_serves()
            return step
        assert died.status == -9, died
        dead, crashed = unfinished(lane), lane.seen()
        # Where a change could be taken for untouched, look closely; else any command may close it.
        number = 0 if step % 2 and dead and dead.phase in UNTOUCHED else step % len(commands)
        command = tuple("b" if word == "TARGET" else word for word in commands[number])
        try:
            if dead is None:
                # Before the journal is opened, or after it is closed.
                closed = "after store.enter(" in died.out.splitlines()[-1]
                assert closed or crashed == before, "changed without a journal"
                lane.check_serves()
                continue
            assert crashed.sha256 in (dead.plan.from_sha256, dead.plan.to_sha256)
            check_told(lane, dead)
            done = lane.forge(*command, "--json")
            assert done.status == 0, done
            own = 0 if command[0] == "repair" or done.json["phase"] == "unchanged" else 1
            check_whole(lane, dead, before, crashed, command[0], own)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{told}; then {' '.join(command)}: {error}") from error
    raise AssertionError(f"{kind} has more than {MANY} steps")


def next_target(lane: Bench, targets: tuple[str, ...]) -> str:
    with lane.store() as store:
        row = store.lane(LANE)
        current = store.revision(LANE, row.current_sha256) if row else None
    assert current
    return next(name for name in targets if name != current.profile)


def test_a_switch_that_commits(lane: Bench) -> None:
    assert crash_everywhere(lane, "switch", ("a", "b")) > 25


def test_a_switch_that_fails_its_gate(lane: Bench) -> None:
    assert crash_everywhere(lane, "switch", ("flood",)) > 35


def test_a_rollback(lane: Bench) -> None:
    assert crash_everywhere(lane, "rollback", ("-",), start="a") > 25


def test_a_restart(lane: Bench) -> None:
    assert crash_everywhere(lane, "restart", ("-",)) > 20


@pytest.mark.parametrize(
    ("profile", "first"),
    [
        ("a", "before store.finish(verifying)"),
        ("flood", "after store.enter(reverting)"),
    ],
)
def test_a_second_crash_in_the_recovery(lane: Bench, profile: str, first: str) -> None:
    for step in range(1, MANY):
        set_up(lane, "b")
        before = lane.seen()
        assert lane.forge.change("switch", profile, first).status == -9
        again: Answer = lane.forge.change("recover", fatal=step)
        told = f"died at {first}, then at step {step}: {again.out.splitlines()[-1:]}"
        if again.status == 0:
            assert step > 8, f"a recovery of {step} steps"
            return
        assert again.status == -9, again
        dead, crashed = unfinished(lane), lane.seen()
        if dead is None:
            assert "closed" in told or "after store.enter(" in told, told
            continue
        done = lane.forge("repair", "reap-orphans", "--json")
        try:
            assert done.status == 0, done
            check_whole(lane, dead, before, crashed, "repair", 0)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{told}: {error}") from error
    raise AssertionError("the recovery has no end")
