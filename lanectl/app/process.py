"""The lane's processes: which are its own, whether the right one answers, stop and start.

supervisord's word is not enough (field notes 11, 19 to 22): it calls RUNNING what an orphan of the
old launcher answers for, and `stopped` what lives on. So the tree is read from the kernel, every
listening socket is traced to its holders, and a start counts only with a new pid.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lanectl.core.flags import Asked, find_server, mismatches
from lanectl.core.lane import Lane, Profile
from lanectl.core.render import asked_of
from lanectl.core.text import mask, mask_argv
from lanectl.errors import EffectFailed
from lanectl.ports import DOWN, UP, Ports, Process, Program, Sighting

EXITED_LOOKS = 3
POLL_S = 0.02
"""How often the kernel is asked: a dead launcher is noticed within a few of these."""
SUPERVISOR_POLL_S = 0.1
STARTING_GRACE_S = 5.0
"""A server that is still starting loses SIGTERM (note 11b) and has no requests to finish."""
ORPHAN_GRACE_S = 10.0
"""An orphaned engine heeds SIGTERM in 5 to 10 s (note 11b)."""
KILL_GRACE_S = 10.0
START_GRACE_S = 10.0
GPU_RELEASE_S = 30.0
GPU_POLL_S = 0.5


class NeedsReboot(EffectFailed):
    """A process survived SIGKILL: the kernel holds it, and only a reboot ends it."""

    code = "needs-reboot"


def same(a: Process | Sighting, b: Process | Sighting) -> bool:
    """Pid and start time agree; start times come in steps of 10 ms."""
    return a.pid == b.pid and abs(a.started - b.started) < 0.05


def is_alive(process: Process) -> bool:
    return process.state not in ("Z", "X")


def descendants(processes: Iterable[Process], root: int) -> list[Process]:
    """`root` and everything below it, and every member of the group that it leads."""
    processes = list(processes)
    inside = {root}
    grown = True
    while grown:
        more = {p.pid for p in processes if p.ppid in inside or p.pgid == root} - inside
        grown = bool(more)
        inside |= more
    return [p for p in processes if p.pid in inside]


def orphans(
    processes: Iterable[Process], sightings: Sequence[Sighting], main: int | None
) -> list[Process]:
    """Live members of a recorded main process's group, begun after it, outside today's tree.

    Nothing else is ever proven to be ours, so nothing else is ever killed (design section 4).
    """
    processes = list(processes)
    today = {p.pid for p in descendants(processes, main)} if main else set()
    leaders = {p.pid: p for p in processes}
    # The kernel gives a pid anew only when its group is empty: another leader, another group.
    sightings = [s for s in sightings if s.pid not in leaders or same(leaders[s.pid], s)]
    found: list[Process] = []
    for process in processes:
        if process.pid in today or not is_alive(process):
            continue
        for seen in sightings:
            if process.pgid == seen.pid and process.started >= seen.started - 0.05:
                found.append(process)
                break
    return found


@dataclass(frozen=True)
class Proof:
    """Whether the process that answers is the one that was started. No problems: it is.

    server: the process that carries the server's command line; argv is masked.
    """

    problems: tuple[str, ...]
    listening: bool
    main: Process | None
    server: Process | None
    argv: tuple[str, ...]
    mismatches: tuple[str, ...] = ()


class Lookout:
    """Watches one lane's processes, stops them and starts them."""

    def __init__(self, ports: Ports, lane: Lane) -> None:
        self.ports, self.lane = ports, lane
        self._boot = ports.host.boot_id()

    # ---------------------------------------------------------------------------------- observing

    def program(self) -> Program:
        return self.ports.supervisor.program(self.lane.program)

    def main_process(self, program: Program) -> Process | None:
        """The live process that supervisord started, or None."""
        if program.pid is None:
            return None
        process = self.ports.host.process(program.pid)
        return process if process is not None and is_alive(process) else None

    def record(self, process: Process, sha256: str | None) -> None:
        sighting = Sighting(process.pid, process.started, self._boot, sha256)
        self.ports.store.see(self.lane.name, sighting)

    def sightings(self) -> list[Sighting]:
        return self.ports.store.sightings(self.lane.name, self._boot)

    def environment(self) -> Mapping[str, str] | None:
        """What supervisord starts the program with: its own environment and `environment=`."""
        given = self.ports.supervisor.settings(self.lane.program).environment
        own = self.ports.host.environ(self.ports.supervisor.pid()) if given is not None else None
        return None if own is None or given is None else {**own, **given}

    def asked_of(self, text: bytes, profile: Profile | None) -> Asked:
        """What a command line started from `text` must carry, with this supervisord."""
        return asked_of(text, profile, port=self.lane.port, environment=self.environment())

    def orphans(self, main: int | None) -> list[Process]:
        return orphans(self.ports.host.processes(), self.sightings(), main)

    def strangers(self) -> list[Process]:
        """Who else listens on the port: not of the program's tree, and not proven to be orphans."""
        host = self.ports.host
        held = {pid for one in host.listeners(self.lane.port) for pid in one.pids or ()}
        if not held:
            return []
        main = self.main_process(self.program())
        processes = host.processes()
        ours = {p.pid for p in orphans(processes, self.sightings(), main.pid if main else None)}
        if main is not None:
            ours |= {p.pid for p in descendants(processes, main.pid)}
        return [p for pid in sorted(held - ours) if (p := host.process(pid)) and is_alive(p)]

    def prove(self, asked: Asked, *, expect: Process | Sighting | None = None) -> Proof:
        """Every socket on the port is held by the program's tree alone, and its words are right.

        expect: the main process that was started; another one (an automatic restart) is a problem.
        """
        host, lane = self.ports.host, self.lane
        program = self.program()
        main = self.main_process(program)
        if main is None:
            return Proof((f"{lane.program} is {program.state}",), False, None, None, ())
        problems: list[str] = []
        if expect is not None and not same(main, expect):
            problems.append(
                f"{lane.program} is pid {main.pid}, not pid {expect.pid} that was started"
            )
        processes = host.processes()
        tree = {p.pid: p for p in descendants(processes, main.pid)}
        listeners = host.listeners(lane.port)
        holders: set[int] = set()
        for listener in listeners:
            if not listener.pids:
                problems.append(
                    f"who listens on {listener.address}:{listener.port} cannot be seen; "
                    "run lanectl as the lane's user or as root"
                )
                continue
            for pid in sorted(listener.pids - tree.keys()):
                stranger = host.process(pid)
                words = " ".join(mask_argv(stranger.argv)) if stranger else ""
                problems.append(
                    f"port {lane.port} is held by pid {pid}, which is not of {lane.program}"
                    + (f": {words[:200]}" if words else "")
                )
            holders |= listener.pids & tree.keys()
        problems += [
            f"pid {pid} listens on port {lane.port} and began before {lane.program} did"
            for pid in sorted(holders)
            if tree[pid].started < main.started - 0.05
        ]
        server = self._server(holders or {main.pid}, tree)
        argv = server.argv if server else ()
        wrong = tuple(mask(text) for text in mismatches(argv, asked)) if server else ()
        if not server and holders:
            problems.append(
                f"no command line of a vLLM server stands above what listens on port {lane.port}"
            )
        return Proof(
            tuple(problems), bool(holders), main, server, tuple(mask_argv(argv)), mismatches=wrong
        )

    def _server(self, pids: Iterable[int], tree: dict[int, Process]) -> Process | None:
        """The nearest ancestor, within the tree, whose words are still those of a server."""
        for pid in sorted(pids):
            at: int | None = pid
            while at in tree:
                process = self.ports.host.process(at)
                if process is None:
                    break
                if find_server(process.argv) is not None:
                    return process
                at = process.ppid if process.ppid in tree and process.ppid != at else None
        return None

    # ----------------------------------------------------------------------------------- stopping

    def stop_all(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Stop the program and its whole old tree, reap proven orphans, see the port free.

        Returns what was done, for the receipt. Raises NeedsReboot, EffectFailed.
        """
        supervisor, lane = self.ports.supervisor, self.lane
        done: dict[str, Any] = {"killed": [], "orphans": []}
        boards: dict[str, set[int]] = {}
        tree: list[Process] = []
        deadline = self.ports.clock.monotonic() + 2 * lane.stop_timeout_s + KILL_GRACE_S
        while True:
            program = self.program()
            main = self.main_process(program)
            if main is not None:
                tree += self._stop_tree(program, main, done, boards, say)
            elif program.state in ("BACKOFF", "STARTING", "RUNNING", "STOPPING"):
                supervisor.stop(program.full_name)
            if self._wait_down(lane.stop_timeout_s + KILL_GRACE_S, tree):
                break
            if self.ports.clock.monotonic() >= deadline:
                raise EffectFailed(f"supervisord starts {lane.program} again after every stop")
        done["orphans"] = self.reap(say)
        self._wait_port_free()
        self._wait_gpu(boards, {p.pid for p in tree}, say)
        self._forget_ended()
        return done

    def _forget_ended(self) -> None:
        """A group that is empty may be given to anybody: it proves nothing from here on."""
        groups = {p.pgid for p in self.ports.host.processes()}
        for seen in self.sightings():
            if seen.pid not in groups:
                self.ports.store.forget(self.lane.name, seen)

    def _stop_tree(
        self,
        program: Program,
        main: Process,
        done: dict[str, Any],
        boards: dict[str, set[int]],
        say: Callable[[str], None],
    ) -> list[Process]:
        """Stop the program's main process with all that is below it; returns that tree."""
        host, lane = self.ports.host, self.lane
        self.record(main, None)
        tree = descendants(host.processes(), main.pid)
        starting = not any(
            listener.pids and listener.pids & {p.pid for p in tree}
            for listener in host.listeners(lane.port)
        )
        self.ports.supervisor.stop(program.full_name)
        # Looked at while it ends: asking the driver can take longer than the stop may wait.
        boards.update(self._boards())
        done["starting"] = starting
        if starting:
            self._signal(descendants(host.processes(), main.pid), signal.SIGTERM, main.pid)
        limit = min(lane.stop_timeout_s, STARTING_GRACE_S) if starting else lane.stop_timeout_s
        say(f"waiting for {len(tree)} processes of {lane.program} to end")
        left = self._wait_gone(tree, main.pid, limit)
        if left:
            done["killed"] += [p.pid for p in left]
            say(f"killing the process group {main.pid}")
            # Those of the group are proven; a member that left it is waited for only.
            left = self._kill(tree, main.pid)
        if left:
            names = ", ".join(f"{p.pid} ({p.name}, {p.state})" for p in left)
            if all(p.pgid != main.pid for p in left):
                raise EffectFailed(
                    f"{names} left the process group of {lane.program} and did not end with it",
                    next_step=f"end them by hand, then: lanectl restart {lane.name}",
                )
            raise NeedsReboot(
                f"{names} survived SIGKILL on lane {lane.name}",
                next_step="reboot the host, then: lanectl restart " + lane.name,
            )
        return tree

    def reap(self, say: Callable[[str], None]) -> list[int]:
        """End proven orphans: SIGTERM, then SIGKILL. Returns their pids; raises NeedsReboot."""
        main = self.program().pid
        found = self.orphans(main)
        if not found:
            return []
        say(f"ending {len(found)} orphans of an earlier start")
        pids = [p.pid for p in found]
        for signum, grace in ((signal.SIGTERM, ORPHAN_GRACE_S), (signal.SIGKILL, KILL_GRACE_S)):
            for process in self.orphans(main):
                self.ports.host.signal(process, signum)
            if self._until(grace, lambda: not self.orphans(main)):
                return pids
        left = ", ".join(str(p.pid) for p in self.orphans(main))
        raise NeedsReboot(
            f"orphans {left} of lane {self.lane.name} survived SIGKILL",
            next_step="reboot the host, then: lanectl restart " + self.lane.name,
        )

    def _remaining(self, tree: Sequence[Process], group: int) -> list[Process]:
        known = {p.pid: p for p in tree}
        return [
            p
            for p in self.ports.host.processes()
            if is_alive(p)
            and ((p.pid in known and same(p, known[p.pid])) or self._of_group(p, tree, group))
        ]

    @staticmethod
    def _of_group(process: Process, tree: Sequence[Process], group: int) -> bool:
        began = min((p.started for p in tree), default=0.0)
        return process.pgid == group and process.started >= began - 0.05

    def _wait_gone(self, tree: Sequence[Process], group: int, limit_s: float) -> list[Process]:
        left: list[Process] = []
        last_poke = self.ports.clock.monotonic()

        def gone() -> bool:
            nonlocal left, last_poke
            left = self._remaining(tree, group)
            if self.ports.clock.monotonic() - last_poke > SUPERVISOR_POLL_S:
                # A call wakes supervisord's loop, which otherwise reaps once a second.
                last_poke = self.ports.clock.monotonic()
                self.program()
            return not left

        self._until(limit_s, gone)
        return left

    def _kill(self, tree: Sequence[Process], group: int) -> list[Process]:
        # A group that forks while it is being killed needs more than one look.
        left = self._remaining(tree, group)
        deadline = self.ports.clock.monotonic() + KILL_GRACE_S
        while left and self.ports.clock.monotonic() < deadline:
            self._signal(left, signal.SIGKILL, group)
            self.ports.clock.sleep(POLL_S)
            left = self._remaining(tree, group)
        return left

    def _signal(self, processes: Iterable[Process], signum: int, group: int) -> None:
        for process in processes:
            if process.pgid == group:
                self.ports.host.signal(process, signum)

    def _wait_down(self, limit_s: float, tree: Sequence[Process]) -> bool:
        """See the program down. False: supervisord has started it anew, or is about to."""
        state, again, exited = "", False, 0

        def down() -> bool:
            nonlocal state, again, exited
            program = self.program()
            state, main = program.state, self.main_process(program)
            anew = state in UP and main is not None and not any(same(main, p) for p in tree)
            again = anew or state == "BACKOFF"
            # One that ended by itself is EXITED for a moment before supervisord starts it again;
            # each call lets its loop go round once.
            exited = exited + 1 if state == "EXITED" else 0
            return again or exited >= EXITED_LOOKS or (state in DOWN and state != "EXITED")

        if not self._until(limit_s, down):
            raise EffectFailed(
                f"supervisord calls {self.lane.program} {state} {limit_s:.0f} s after its stop"
            )
        return not again

    def _wait_port_free(self) -> None:
        holders = ""

        def free() -> bool:
            nonlocal holders
            listeners = self.ports.host.listeners(self.lane.port)
            pids = sorted({pid for one in listeners for pid in one.pids or ()})
            holders = ", ".join(map(str, pids)) or "a process that cannot be seen"
            return not listeners

        if not self._until(KILL_GRACE_S, free):
            raise EffectFailed(
                f"port {self.lane.port} is still held by {holders}, which is not proven to be of "
                f"lane {self.lane.name}",
                next_step=f"lanectl doctor {self.lane.name}",
            )

    def _boards(self) -> dict[str, set[int]]:
        """The processes on each board, as far as NVML tells (field note 34)."""
        readings = self.ports.gpu.readings() or []
        return {r.uuid: set(r.pids) for r in readings if r.pids}

    def _wait_gpu(
        self, boards: dict[str, set[int]], tree: set[int], say: Callable[[str], None]
    ) -> None:
        """Wait until NVML lists none of the old tree; where it told nothing, there is no wait."""
        if not any(pids & tree for pids in boards.values()):
            return
        say("waiting for the GPU to give the memory back")

        def free() -> bool:
            readings = self.ports.gpu.readings()
            return readings is None or not any((r.pids or set()) & tree for r in readings)

        if not self._until(GPU_RELEASE_S, free, GPU_POLL_S):
            raise EffectFailed(
                f"the GPU still lists processes of {self.lane.program} after they ended"
            )

    # ----------------------------------------------------------------------------------- starting

    def start(self, sha256: str, not_pid: Process | None) -> Process:
        """Start the program and see a new process. Records it; raises EffectFailed."""
        began = self.ports.clock.now().timestamp()
        self.ports.supervisor.start(self.program().full_name)
        found: Process | None = None
        state = ""

        def new() -> bool:
            nonlocal found, state
            program = self.program()
            state = program.state
            process = self.main_process(program)
            if process and state in UP and not (not_pid and same(process, not_pid)):
                found = process
            return found is not None or state in ("FATAL", "EXITED", "BACKOFF")

        self._until(START_GRACE_S, new)
        if found is None:
            raise EffectFailed(f"{self.lane.program} did not start: supervisord says {state}")
        if found.started < began - 1.0:
            raise EffectFailed(f"pid {found.pid} of {self.lane.program} began before the start")
        self.record(found, sha256)
        return found

    # ------------------------------------------------------------------------------------ waiting

    def _until(self, limit_s: float, done: Callable[[], bool], every_s: float = POLL_S) -> bool:
        """Look until `done` or the limit. Stopping is never cut short: half a stop helps nobody."""
        deadline = self.ports.clock.monotonic() + limit_s
        while True:
            if done():
                return True
            if self.ports.clock.monotonic() >= deadline:
                return False
            self.ports.clock.sleep(every_s)
