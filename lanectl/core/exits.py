"""What a command exits with when it ends by saying what became of a lane (design section 6).

Errors know their own code (`lanectl.errors`); these are for what ends without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lanectl.core.switch import Phase
from lanectl.core.verdict import Result
from lanectl.errors import CheckedBad, CouldNotTell, Degraded, Refused

DONE: Final = 0
BUG: Final = 1
USAGE: Final = 2
RESTORED: Final = 4
CHECKED_BAD: Final = CheckedBad.exit_code
COULD_NOT_TELL: Final = CouldNotTell.exit_code
INTERRUPTED: Final = 130

FILE_RESTORED: Final = Degraded.exit_code
"""`rollback --backup` without supervisord: the file is in place, what runs is not."""
WORKER_KILLED: Final = BUG

OF_PHASE: Final[Mapping[Phase, int]] = {
    Phase.COMMITTED: DONE,
    Phase.ABORTED: Refused.exit_code,
    Phase.ROLLED_BACK: RESTORED,
    Phase.DEGRADED: Degraded.exit_code,
}
OF_RESULT: Final[Mapping[Result, int]] = {
    Result.PASSED: DONE,
    Result.FAILED: CHECKED_BAD,
    Result.ERROR: COULD_NOT_TELL,
    Result.INCONCLUSIVE: COULD_NOT_TELL,
}
