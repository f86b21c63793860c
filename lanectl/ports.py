"""What the application needs from the world. One Protocol a port; `adapters/` holds the real ones.

Rules for every implementation: each call has a time limit of its own and ends; times are seconds;
a process is named by pid *and* start time, so that a reused pid is never mistaken for it; "cannot
be known" is None, never 0 or an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from lanectl.core.lane import Plan, Revision
from lanectl.core.smoke import ProbeRequest, Reply
from lanectl.core.switch import Phase

# --------------------------------------------------------------------------------------------- host


@dataclass(frozen=True)
class LauncherFile:
    """A file as it stands. `path` has links followed; `asked` is the path that was configured."""

    asked: str
    path: str
    text: bytes = field(repr=False)
    sha256: str
    mode: int
    uid: int
    gid: int
    changed_at: float
    """The later of mtime and ctime, seconds since the epoch."""


@dataclass(frozen=True)
class Backup:
    path: str
    sha256: str
    written_at: float


@dataclass(frozen=True)
class ScriptCheck:
    """What the host's own shell says of a script. `ok` is False when stderr is not empty."""

    ok: bool
    interpreter: str
    stderr: str


@dataclass(frozen=True)
class Process:
    """started: seconds since the epoch, from the kernel's boot-relative ticks (10 ms steps).

    argv is empty where it cannot be read or was overwritten by a renamed process (field note 11);
    name is the kernel's 15-character command name; state is the kernel's letter (Z: zombie).
    """

    pid: int
    ppid: int
    pgid: int
    started: float
    name: str
    state: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listener:
    """One listening TCP socket. `pids` holds every process with it open; None: cannot be known."""

    address: str
    port: int
    pids: frozenset[int] | None


@dataclass(frozen=True)
class PathFacts:
    """What a path is, links followed. `real` has every link resolved; `is_link` is of the end.

    mode holds the permission bits with sticky and set-id; owner is the user's name, or the number.
    """

    real: str
    mode: int
    uid: int
    gid: int
    owner: str
    is_link: bool
    is_folder: bool


class Host(Protocol):
    """The machine a lane runs on: its files, its shell, its processes."""

    def read(self, path: str) -> LauncherFile | None:
        """The file, one symbolic link followed; None when absent. ConfigError for a folder."""

    def stage(self, beside: LauncherFile, text: bytes) -> str:
        """Write `text` to a private file beside the launcher, same mode and owner, synced.

        Reads it back and compares; returns its path. Refused on a full or unwritable disk, and
        then nothing is left behind.
        """

    def discard(self, staged: str) -> None:
        """Remove a staged file; gone already is fine."""

    def discard_stale(self, path: str) -> None:
        """Remove staged files that dead switches of this launcher left. Call under the lock."""

    def replace(self, path: str, staged: str, expect: frozenset[str]) -> str:
        """Rename `staged` over `path` if the digest there is in `expect`; sync the folder.

        Returns the digest that stands there afterwards, re-read. Raises Drift otherwise.
        """

    def back_up(self, source: LauncherFile, profile: str, at: datetime) -> str:
        """Copy to `<launcher>.bak-YYYYMMDD-HHMMSS-<profile>` (`-2`, `-3` on collision)."""

    def backups(self, path: str) -> list[Backup]:
        """The backups beside the launcher, newest name first."""

    def remove_backup(self, path: str) -> None: ...

    def exists(self, path: str) -> bool:
        """Whether the path names a file, links followed."""

    def stat_path(self, path: str) -> PathFacts | None:
        """What the path is; None when absent. Refused when it may not be looked at."""

    def save_log(self, pid: int, path: str, at: datetime) -> str | None:
        """Copy what `pid` holds open of `path`, deleted or not, to a private file beside it.

        Returns the copy's path, `<path>.saved-YYYYMMDD-HHMMSS`; None when `pid` holds none.
        """

    def check_script(self, text: bytes) -> ScriptCheck:
        """`bash -n` and, where the shebang names another shell, that shell's `-n` as well."""

    def lock(self, path: str, holder: Mapping[str, Any]) -> AbstractContextManager[None]:
        """flock on `<launcher>.lanectl.lock`, `holder` written into it. Raises LaneBusy."""

    def lock_holder(self, path: str) -> Mapping[str, Any] | None:
        """What the live holder wrote, or None when nobody holds the lock."""

    def boot_id(self) -> str: ...

    def processes(self) -> list[Process]:
        """Every process that can be seen, argv left empty: cheap enough to poll."""

    def process(self, pid: int) -> Process | None:
        """One process with its argv; None when it is gone."""

    def environ(self, pid: int) -> Mapping[str, str] | None: ...

    def listeners(self, port: int) -> list[Listener]:
        """Every listening TCP socket on `port`, IPv4 and IPv6."""

    def signal(self, process: Process, signal: int) -> bool:
        """Send to this very process; False when it is gone or the pid is another's by now."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> tuple[int, str, str]:
        """Run a command without a shell: exit status, stdout, stderr. 124 on the time limit."""


# --------------------------------------------------------------------------------------- supervisor


@dataclass(frozen=True)
class Program:
    """A supervisord program as `getProcessInfo` tells it. pid is None when none runs.

    started and stopped: seconds since the epoch in whole seconds, None for never.
    """

    name: str
    group: str
    state: str
    pid: int | None
    started: int | None
    stopped: int | None
    exit_status: int
    spawn_error: str
    stdout_log: str
    stderr_log: str

    @property
    def full_name(self) -> str:
        return self.name if self.name == self.group else f"{self.group}:{self.name}"


UP = frozenset({"STARTING", "RUNNING"})
DOWN = frozenset({"STOPPED", "EXITED", "FATAL", "BACKOFF", "UNKNOWN"})


@dataclass(frozen=True)
class ProgramSettings:
    """`getAllConfigInfo` of one program; None where this supervisord does not tell."""

    command: str
    directory: str
    start_secs: float
    stop_wait_secs: float
    stop_signal: int
    stop_as_group: bool | None
    kill_as_group: bool | None
    auto_start: bool
    auto_restart: str | None
    redirect_stderr: bool
    stdout_log: str
    stderr_log: str
    environment: Mapping[str, str] | None = None


class Supervisor(Protocol):
    """One supervisord. Every method raises Unreachable when it does not answer in time."""

    def version(self) -> str: ...

    def pid(self) -> int: ...

    def programs(self) -> list[Program]: ...

    def program(self, name: str) -> Program:
        """ConfigError naming the near names when there is none of that name."""

    def settings(self, name: str) -> ProgramSettings: ...

    def stop(self, name: str) -> None:
        """Ask for a stop and return at once. Not running, or stopping already: success."""

    def start(self, name: str) -> None:
        """Ask for a start and return at once. Raises EffectFailed when supervisord says no.

        A start counts only with a new pid: that is for the caller to see.
        """

    def log_tail(self, name: str, *, max_bytes: int = 16384) -> str:
        """The end of stdout and stderr logs, decoded with replacement; "" when unreadable."""

    def log_mark(self, name: str) -> tuple[int, int]:
        """Where stdout and stderr logs end now; (0, 0) when unreadable. For `log_since`."""

    def log_since(self, name: str, mark: tuple[int, int], *, max_bytes: int = 65536) -> str:
        """What both logs gained since the mark; a log that shrank (rotated) is read whole."""

    def clear_logs(self, name: str) -> None: ...


# ----------------------------------------------------------------------------------------- lane API


@dataclass(frozen=True)
class Answer:
    """One bounded GET. status None: nothing answered, and `error` says why."""

    status: int | None
    body: str = ""
    error: str = ""


@dataclass(frozen=True)
class Metrics:
    """`/metrics` read and summed over engines. None: the lane does not tell."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    iteration_tokens: float | None = None
    spec_draft_tokens: float | None = None
    spec_accepted_tokens: float | None = None
    speculative: bool | None = None
    """Whether any speculation metric exists: off is proven at run time only (note 15)."""
    requests_finished: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def load(self) -> float | None:
        """Requests running and waiting; None when either is unknown."""
        if self.running is None or self.waiting is None:
            return None
        return self.running + self.waiting


@dataclass(frozen=True)
class Model:
    id: str
    max_model_len: int | None


class LaneApi(Protocol):
    """The lane's HTTP API. Nothing here raises for what the lane does wrong; it is told as data."""

    def health(self, *, timeout_s: float = 2.0) -> Answer: ...

    def version(self, *, timeout_s: float = 2.0) -> str | None: ...

    def models(self, *, timeout_s: float = 2.0) -> list[Model] | Answer:
        """The models served, or the answer that was no model list."""

    def metrics(self, *, timeout_s: float = 2.0) -> Metrics | None: ...

    def chat(self, requests: Sequence[ProbeRequest], stop: Callable[[], bool]) -> list[Reply]:
        """Send all requests at once, streamed, and wait for all; replies in the same order.

        Each request keeps its own limits; `stop` is polled several times a second and cuts all
        of them when it turns true.
        """

    def close(self) -> None: ...


# ---------------------------------------------------------------------------------------------- gpu


@dataclass(frozen=True)
class GpuReading:
    """One board. Each field on its own: None where the driver does not tell (field note 34)."""

    uuid: str
    name: str
    memory_used: int | None
    memory_total: int | None
    power_w: float | None
    temperature_c: float | None
    utilization_pct: float | None
    pids: frozenset[int] | None


class Gpu(Protocol):
    def readings(self) -> list[GpuReading] | None:
        """All boards, or None when there is no driver or it did not answer in time."""


# -------------------------------------------------------------------------------------------- store


@dataclass(frozen=True)
class Sighting:
    """A program's main process, seen running: what proves an orphan's group later."""

    pid: int
    started: float
    boot_id: str
    sha256: str | None


@dataclass(frozen=True)
class Event:
    """One phase entered. outcome and elapsed_s are None while it is under way."""

    seq: int
    phase: Phase
    outcome: str | None
    at: datetime
    elapsed_s: float | None
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class SwitchRow:
    """One change as the journal has it. `seq` orders; `id` names it outside."""

    seq: int
    id: str
    plan: Plan
    at: datetime
    phase: Phase
    reason: str
    abort_asked: str | None
    verdict: Mapping[str, Any] | None
    confirmation: Mapping[str, Any] | None
    receipt: Mapping[str, Any]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Probation:
    """A committed revision on trial. ended is None while it runs."""

    switch_id: str
    ends_at: datetime
    worker_pid: int
    worker_started: float
    ended: str | None


@dataclass(frozen=True)
class LaneRow:
    """What is recorded of a lane. None before `adopt`."""

    name: str
    base_sha256: str
    current_sha256: str
    quarantined: str | None
    """The reason, or None."""
    adopted_at: datetime


@dataclass(frozen=True)
class SmokeRow:
    at: datetime
    gate: str
    sha256: str | None
    verdict: Mapping[str, Any]


class Store(Protocol):
    """Revisions, the journal, and what was seen. Every write is durable when it returns.

    Raises StoreUnusable when the store is locked, corrupt or gone.
    """

    # lanes and revisions
    def lane(self, name: str) -> LaneRow | None: ...
    def adopt(self, revision: Revision, at: datetime) -> None:
        """Record base, revision and the lane's current digest in one transaction."""

    def set_current(self, lane: str, sha256: str, profile: str | None = None) -> None:
        """Make a known revision the lane's current one; `profile`: the name it was asked by.

        Two profiles can render to one digest: the revision goes by the name asked for last.
        """

    def set_quarantine(self, lane: str, reason: str | None) -> None: ...
    def save_revision(self, revision: Revision) -> None:
        """Insert if the lane has none of that digest; standing of a known one is kept."""

    def revision(self, lane: str, sha256: str) -> Revision | None: ...
    def revisions(self, lane: str) -> list[Revision]:
        """Newest standing first: by the sequence in which they were last current."""

    def set_stable(self, lane: str, sha256: str, stable: bool) -> None: ...
    def set_barred(self, lane: str, sha256: str, barred: bool) -> None: ...

    # journal
    def open_switch(self, plan: Plan, at: datetime) -> SwitchRow:
        """Write the Plan and the record of `preparing`, in one durable transaction.

        Raises LaneBusy when the lane has an unfinished switch.
        """

    def enter(self, switch_id: str, phase: Phase, at: datetime) -> None:
        """The durable record that comes before a phase's effect. A terminal phase closes it."""

    def finish(
        self,
        switch_id: str,
        phase: Phase,
        outcome: str,
        elapsed_s: float,
        detail: Mapping[str, Any],
    ) -> None:
        """How the phase entered last went."""

    def note(
        self,
        switch_id: str,
        *,
        reason: str | None = None,
        receipt: Mapping[str, Any] | None = None,
        verdict: Mapping[str, Any] | None = None,
        confirmation: Mapping[str, Any] | None = None,
    ) -> None:
        """Merge into the row; `receipt` keys are added one by one."""

    def ask_abort(self, switch_id: str, why: str) -> None: ...
    def abort_asked(self, switch_id: str) -> str | None: ...
    def switch(self, switch_id: str) -> SwitchRow | None: ...
    def unfinished(self, lane: str) -> SwitchRow | None: ...
    def history(self, lane: str, *, limit: int = 50) -> list[SwitchRow]:
        """Newest first, events left empty."""

    def phase_times(self, lane: str, *, last: int = 5) -> Mapping[Phase, float]:
        """Median seconds of each phase over the last finished switches."""

    # what was seen
    def see(self, lane: str, sighting: Sighting) -> None:
        """Record a main process once."""

    def forget(self, lane: str, sighting: Sighting) -> None:
        """Its process group has ended: the pid may be another's from here on."""

    def sightings(self, lane: str, boot_id: str) -> list[Sighting]: ...
    def record_smoke(self, lane: str, row: SmokeRow) -> None: ...
    def last_smoke(self, lane: str) -> SmokeRow | None: ...
    def open_incident(
        self, lane: str, at: datetime, title: str, detail: Mapping[str, Any]
    ) -> None: ...

    # probation
    def start_probation(self, lane: str, probation: Probation) -> None: ...
    def probation(self, lane: str) -> Probation | None:
        """The one still running, or None."""

    def extend_probation(self, switch_id: str, ends_at: datetime) -> None: ...
    def end_probation(self, lane: str, how: str) -> None: ...

    def close(self) -> None: ...


# ---------------------------------------------------------------------------------- clock, notifier


class Clock(Protocol):
    def now(self) -> datetime:
        """UTC, aware."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Alert:
    """What the owner was told of a lane."""

    at: datetime
    title: str
    body: str


class Notifier(Protocol):
    """Tells the owner. Never raises and never delays: a failing notifier holds up no rollback."""

    def tell(self, lane: str, title: str, body: str) -> None: ...
    def last(self, lane: str) -> Alert | None:
        """The newest thing told of the lane, as far as it is remembered."""


@dataclass(frozen=True)
class Ports:
    """Everything a use case of one lane needs, put together by `wiring`."""

    host: Host
    supervisor: Supervisor
    api: LaneApi
    gpu: Gpu
    store: Store
    clock: Clock
    notifier: Notifier
