"""What a lane is and what one change of it intends: Lane, Profile, Revision, Plan.

Values only. A `Plan` is written to the journal before the first effect and holds everything that
recovery needs, so that a dead switch can be closed even after lanectl.toml was edited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal
from urllib.parse import urlsplit

ADOPTED = "adopted"
"""The profile name of the text that `adopt` found in place."""


def digest(text: bytes) -> str:
    """SHA-256 of `text`, 64 lower-case hex digits: what `sha256sum` prints."""
    return hashlib.sha256(text).hexdigest()


@dataclass(frozen=True)
class SmokeSettings:
    """How hard a gate pushes. Times in seconds, lengths in characters or tokens."""

    gate: str = "switch"
    concurrency: int = 4
    prompt_chars: int = 40000
    max_tokens: int = 512
    thinking_max_tokens: int = 4096
    request_timeout_s: float = 60.0
    deadline_s: float = 300.0
    soak_s: float = 600.0


@dataclass(frozen=True)
class Profile:
    """A named desired state. None means: leave it as the base has it.

    flags: a string sets the value, True a bare flag, False removes it.
    script: path of a whole launcher that replaces the base, or None.
    """

    name: str
    speculative: Literal[False] | Mapping[str, Any] | None = None
    max_num_seqs: int | None = None
    model: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str | bool] = field(default_factory=dict)
    script: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Lane:
    """One vLLM server: host + launcher + supervisor program + API address. Times in seconds."""

    name: str
    host: str
    launcher: str
    supervisor: str
    program: str
    api: str
    supervisor_user: str | None = None
    supervisor_password_file: str | None = None
    api_key_file: str | None = None
    model: str | None = None
    ready_timeout_s: float = 900.0
    stop_timeout_s: float = 60.0
    drain_timeout_s: float = 120.0
    min_uptime_s: float | None = None
    probation_s: float = 1800.0
    keep_backups: int = 20
    require_approval: bool = False
    smoke: SmokeSettings = field(default_factory=SmokeSettings)
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The TCP port of the API address."""
        parts = urlsplit(self.api)
        return parts.port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True)
class Revision:
    """An immutable launcher text. `sha256` is the digest of `text`."""

    lane: str
    sha256: str
    profile: str
    base_sha256: str
    text: bytes = field(repr=False)
    stable: bool = False
    barred: bool = False


class Kind(StrEnum):
    """What a journaled change is for; each has its own column in `core.switch`."""

    SWITCH = "switch"
    ROLLBACK = "rollback"
    RESTART = "restart"


@dataclass(frozen=True)
class Plan:
    """The intent of one change, written before anything is touched.

    lane: the lane as configured when the change was asked for.
    from_sha256: the digest in place; what a revert puts back.
    to_sha256: the digest to install.
    accept_drift: a digest that may be overwritten although we did not record it.
    """

    kind: Kind
    lane: Lane
    from_sha256: str
    from_profile: str
    to_sha256: str
    to_profile: str
    gate: str
    who: str
    reason: str = ""
    approved_by: str = ""
    cut: bool = False
    accept_drift: str | None = None
