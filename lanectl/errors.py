"""Every error lanectl raises on purpose, drawn once.

LanectlError                      exit 1 only when nothing more exact is raised
├── ConfigError                   exit 2  usage or configuration; names key, file and line
├── Refused                       exit 3  nothing has been changed
│   ├── EditRefused                       a launcher edit that cannot be proven
│   ├── CheckFailed                       bash -n, a finding, or a rendered script that is not right
│   ├── Drift                             the deployed launcher is not the one we recorded
│   ├── LaneBusy                          another switch holds the lane
│   ├── Quarantined                       a person must release the lane first
│   ├── Barred                            the revision was rolled away from
│   ├── ApprovalMissing                   require_approval is set and nobody approved
│   ├── NoTarget                          no revision to go back to
│   ├── Unreachable                       supervisord or the lane did not answer before the change
│   └── StoreUnusable                     the store is locked, corrupt or gone
├── EffectFailed                  exit 5  asked of the lane, and it did not come about
├── Degraded                      exit 5  neither revision is right; the lane is quarantined
│   └── JournalLost                       the store failed in mid-change; the lane is left as it is
├── CheckedBad                    exit 6  smoke failed, or doctor found errors
├── CouldNotTell                  exit 7  reading only, and no verdict either way
└── Interrupted                   exit 130 the follower left; the worker goes on

`cli/errors.py` is the one place that turns these into text, JSON and exit codes.
"""

from __future__ import annotations

from typing import ClassVar


class LanectlError(Exception):
    """An error for the operator.

    message: what happened, to which lane, and the state it is in now.
    next_step: what to type next, or an empty string.
    """

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class ConfigError(LanectlError):
    """Usage or configuration. `key` is dotted (`lanes.q.program`), `line` counts from 1."""

    exit_code = 2
    code = "config"

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        file: str = "",
        line: int | None = None,
        next_step: str = "",
    ) -> None:
        place = ":".join(str(part) for part in (file, line) if part)
        prefix = " ".join(
            part for part in (f"{place}:" if place else "", key and f"{key}:") if part
        )
        super().__init__(f"{prefix} {message}" if prefix else message, next_step=next_step)
        self.key, self.file, self.line = key, file, line


class Refused(LanectlError):
    """Nothing has been changed."""

    exit_code = 3
    code = "refused"


class EditRefused(Refused):
    """A launcher edit that cannot be proven. `line` counts from 1; None: no line is at fault."""

    code = "edit-refused"

    def __init__(self, message: str, *, line: int | None = None, next_step: str = "") -> None:
        super().__init__(f"line {line}: {message}" if line else message, next_step=next_step)
        self.line = line


class CheckFailed(Refused):
    code = "check-failed"


class Drift(Refused):
    code = "drift"


class LaneBusy(Refused):
    code = "busy"


class Quarantined(Refused):
    code = "quarantined"


class Barred(Refused):
    code = "barred"


class ApprovalMissing(Refused):
    code = "approval-missing"


class NoTarget(Refused):
    code = "no-target"


class Unreachable(Refused):
    code = "unreachable"


class StoreUnusable(Refused):
    code = "store-unusable"


class EffectFailed(LanectlError):
    """Something was asked of the lane and did not come about. The engine undoes; others tell."""

    exit_code = 5
    code = "effect-failed"


class Degraded(LanectlError):
    exit_code = 5
    code = "degraded"


class JournalLost(Degraded):
    code = "journal-lost"


class CheckedBad(LanectlError):
    exit_code = 6
    code = "checked-bad"


class CouldNotTell(LanectlError):
    exit_code = 7
    code = "could-not-tell"


class Interrupted(LanectlError):
    exit_code = 130
    code = "interrupted"
