"""The table of design section 4, cell by cell, and where the table alone would go wrong."""

from __future__ import annotations

import pytest

from lanectl.core.lane import Kind
from lanectl.core.switch import ROLLBACK, SWITCH, TERMINAL, Facts, Outcome, Phase, after

CELLS = """
preparing   ok draining      failed aborted   crashed aborted
draining    ok installing    failed aborted   crashed aborted
installing  ok restarting    failed reverting crashed reverting
restarting  ok verifying     failed reverting crashed reverting
verifying   ok committed     failed reverting crashed verifying
reverting   ok restoring     failed degraded  crashed reverting
restoring   ok confirming    failed degraded  crashed restoring
confirming  ok rolled-back   failed degraded  crashed confirming
"""


def cells() -> list[tuple[str, str, str]]:
    found = []
    for row in CELLS.strip().splitlines():
        phase, *ends = row.split()
        found += [(phase, ends[n], ends[n + 1]) for n in range(0, 6, 2)]
    return found


@pytest.mark.parametrize(("phase", "outcome", "follows"), cells())
@pytest.mark.parametrize("kind", [Kind.SWITCH, Kind.RESTART])
def test_the_table_of_the_design(kind: Kind, phase: str, outcome: str, follows: str) -> None:
    entered = [Phase(phase)]
    assert after(kind, Phase(phase), Outcome(outcome), Facts(), entered) is Phase(follows)


def test_every_phase_that_is_not_an_end_has_three_outcomes() -> None:
    assert set(SWITCH) == {(p, o) for p in Phase if p not in TERMINAL for o in Outcome}


def test_before_the_rename_there_is_nothing_to_undo() -> None:
    untouched = Facts(old_in_place=True, program_unchanged=True)
    for outcome in (Outcome.FAILED, Outcome.CRASHED):
        for kind in Kind:
            end = after(kind, Phase.INSTALLING, outcome, untouched, [Phase.INSTALLING])
            assert end is Phase.ABORTED


@pytest.mark.parametrize(
    "facts", [Facts(old_in_place=True), Facts(program_unchanged=True), Facts()]
)
def test_a_rename_or_a_new_process_is_something_to_undo(facts: Facts) -> None:
    end = after(Kind.SWITCH, Phase.INSTALLING, Outcome.CRASHED, facts, [Phase.INSTALLING])
    assert end is Phase.REVERTING


def test_the_second_crash_in_verifying_counts_as_a_failure() -> None:
    once = [Phase.RESTARTING, Phase.VERIFYING]
    assert after(Kind.SWITCH, Phase.VERIFYING, Outcome.CRASHED, Facts(), once) is Phase.VERIFYING
    twice = [*once, Phase.VERIFYING]
    assert after(Kind.SWITCH, Phase.VERIFYING, Outcome.CRASHED, Facts(), twice) is Phase.REVERTING
    end = after(Kind.ROLLBACK, Phase.VERIFYING, Outcome.CRASHED, Facts(), twice)
    assert end is Phase.DEGRADED


def test_a_rollback_neither_drains_nor_reverts() -> None:
    assert {phase for phase, _ in ROLLBACK} == {
        Phase.PREPARING,
        Phase.INSTALLING,
        Phase.RESTARTING,
        Phase.VERIFYING,
    }
    for phase in (Phase.INSTALLING, Phase.RESTARTING, Phase.VERIFYING):
        assert after(Kind.ROLLBACK, phase, Outcome.FAILED, Facts(), [phase]) is Phase.DEGRADED
    # A dead rollback goes on where it was: its effects converge.
    for phase in (Phase.INSTALLING, Phase.RESTARTING, Phase.VERIFYING):
        assert after(Kind.ROLLBACK, phase, Outcome.CRASHED, Facts(), [phase]) is phase


@pytest.mark.parametrize("kind", list(Kind))
def test_every_walk_ends(kind: Kind) -> None:
    """With any outcomes whatever, but no endless crashing, a terminal phase is reached."""
    seen: set[tuple[Phase, ...]] = set()
    walks: list[tuple[Phase, ...]] = [(Phase.PREPARING,)]
    while walks:
        walk = walks.pop()
        if walk in seen or walk[-1] in TERMINAL:
            continue
        seen.add(walk)
        assert len(walk) < 16
        for outcome in Outcome:
            if outcome is Outcome.CRASHED and len(walk) > 1 and walk[-1] == walk[-2]:
                continue
            walks.append((*walk, after(kind, walk[-1], outcome, Facts(), walk)))
