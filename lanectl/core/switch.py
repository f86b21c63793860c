"""The switch as a table: which phase follows which outcome, and where a dead switch goes on.

Pure. `app/engine.py` is the only loop that walks it. The table is the one of design section 4:

| phase      | ok          | failed    | crashed                            |
| ---------- | ----------- | --------- | ---------------------------------- |
| preparing  | draining    | aborted   | aborted                            |
| draining   | installing  | aborted   | aborted                            |
| installing | restarting  | reverting | reverting                          |
| restarting | verifying   | reverting | reverting                          |
| verifying  | committed   | reverting | verifying (second time: reverting) |
| reverting  | restoring   | degraded  | reverting                          |
| restoring  | confirming  | degraded  | restoring                          |
| confirming | rolled-back | degraded  | confirming                         |

A `rollback` does not drain and does not revert: its failure is `degraded` with the target left in
place, and after a crash it goes on where it was, because each of its effects converges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from lanectl.core.lane import Kind


class Phase(StrEnum):
    PREPARING = "preparing"
    DRAINING = "draining"
    INSTALLING = "installing"
    RESTARTING = "restarting"
    VERIFYING = "verifying"
    REVERTING = "reverting"
    RESTORING = "restoring"
    CONFIRMING = "confirming"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"
    ABORTED = "aborted"
    DEGRADED = "degraded"


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    CRASHED = "crashed"


TERMINAL = frozenset({Phase.COMMITTED, Phase.ROLLED_BACK, Phase.ABORTED, Phase.DEGRADED})
UNDOING = frozenset({Phase.REVERTING, Phase.RESTORING, Phase.CONFIRMING})
"""Phases in which a wish to undo changes nothing: it is being undone already."""
UNTOUCHED = frozenset({Phase.PREPARING, Phase.DRAINING})
"""Phases that leave launcher and program as they were."""

Table = Mapping[tuple[Phase, Outcome], Phase]


def _table(rows: str) -> Table:
    """Read `phase ok failed crashed` rows into a mapping."""
    cells: dict[tuple[Phase, Outcome], Phase] = {}
    for row in rows.split("\n"):
        if row.strip():
            phase, *ends = (Phase(word) for word in row.split())
            cells |= {(phase, outcome): end for outcome, end in zip(Outcome, ends, strict=True)}
    return MappingProxyType(cells)


SWITCH: Table = _table("""
    preparing   draining    aborted    aborted
    draining    installing  aborted    aborted
    installing  restarting  reverting  reverting
    restarting  verifying   reverting  reverting
    verifying   committed   reverting  verifying
    reverting   restoring   degraded   reverting
    restoring   confirming  degraded   restoring
    confirming  rolled-back degraded   confirming
""")

ROLLBACK: Table = _table("""
    preparing   installing  aborted    aborted
    installing  restarting  degraded   installing
    restarting  verifying   degraded   restarting
    verifying   committed   degraded   verifying
""")

TABLES: Mapping[Kind, Table] = MappingProxyType(
    {Kind.SWITCH: SWITCH, Kind.RESTART: SWITCH, Kind.ROLLBACK: ROLLBACK}
)

VERIFY_CRASHES = 2
"""So many crashes in `verifying` count as a failure: the verification itself may be what dies."""


@dataclass(frozen=True)
class Facts:
    """What was observed of the lane when the outcome was known.

    old_in_place: the deployed digest is the Plan's `from`.
    not_renamed: the replace was refused before its rename, whatever stands there.
    program_unchanged: the program's pid and start time are those of the baseline.
    """

    old_in_place: bool = False
    not_renamed: bool = False
    program_unchanged: bool = False


def after(
    kind: Kind, phase: Phase, outcome: Outcome, facts: Facts, entered: Sequence[Phase] = ()
) -> Phase:
    """The phase that follows `phase`.

    entered: every phase the journal records, oldest first, `phase` the last of them. It tells a
    second crash in `verifying` from the first.
    Raises KeyError for a phase that the kind of change never enters, which is a bug.
    """
    table = TABLES[kind]
    follows = table[phase, outcome]
    if outcome is Outcome.OK:
        return follows
    untouched = facts.old_in_place or facts.not_renamed
    if phase is Phase.INSTALLING and untouched and facts.program_unchanged:
        # It died before the rename: nothing has been changed, so there is nothing to undo.
        return Phase.ABORTED
    if (
        phase is Phase.VERIFYING
        and outcome is Outcome.CRASHED
        and sum(1 for past in entered if past is Phase.VERIFYING) >= VERIFY_CRASHES
    ):
        return table[phase, Outcome.FAILED]
    return follows
