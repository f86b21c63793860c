"""A lane that is not there: processes, supervisord, API and clock as ordinary classes.

Files are real, below a test's own folder, and so is the store. `World` holds what the fake ports
share; a test bends it: a deaf process, one that survives SIGKILL, a clock that jumps.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lanectl.adapters.host_local import LocalHost
from lanectl.adapters.store_sql import open_store
from lanectl.config import Config, load
from lanectl.core.lane import Lane
from lanectl.core.smoke import ProbeRequest, Reply, ToolCall
from lanectl.errors import StoreUnusable, Unreachable
from lanectl.ports import (
    Alert,
    Answer,
    GpuReading,
    Listener,
    Metrics,
    Model,
    Ports,
    Process,
    Program,
    ProgramSettings,
)

PORT = 8123
PROGRAM = "lane"
MODEL = "tiny"
BOOT = "fake-boot"


def launcher_text(seqs: int = 8) -> str:
    return (
        "#!/usr/bin/env bash\n"
        f"exec vllm serve {MODEL} --port {PORT} --served-model-name {MODEL} --max-num-seqs {seqs}\n"
    )


@dataclass
class World:
    """deaf: the running process heeds no SIGTERM; unkillable: nor SIGKILL."""

    launcher: Path
    deaf: bool = False
    unkillable: bool = False
    flood: bool = False
    supervisord_up: bool = True
    now: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    monotonic: float = 1000.0
    processes: dict[int, Process] = field(default_factory=dict)
    main: int | None = None
    state: str = "STOPPED"
    next_pid: int = 5000
    starts: int = 0
    signals: list[tuple[int, int]] = field(default_factory=list)
    on_sleep: Callable[[float], None] = lambda _seconds: None
    on_tool_call: Callable[[], None] = lambda: None

    def spawn(self) -> None:
        words = shlex.split(self.launcher.read_text().splitlines()[-1])
        argv = ("/usr/bin/python3", "/usr/bin/vllm", *words[2:])
        self.next_pid += 1
        pid = self.main = self.next_pid
        started = self.now.timestamp()
        self.processes[pid] = Process(pid, 1, pid, started, "vllm", "S", argv)
        self.state = "RUNNING"
        self.starts += 1

    def end(self, pid: int) -> None:
        self.processes.pop(pid, None)
        if pid == self.main:
            self.main, self.state = None, "STOPPED"


class FakeClock:
    """Time passes only in `sleep`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def now(self) -> datetime:
        return self.world.now

    def monotonic(self) -> float:
        return self.world.monotonic

    def sleep(self, seconds: float) -> None:
        self.world.monotonic += seconds
        self.world.now += timedelta(seconds=seconds)
        self.world.on_sleep(seconds)


class FakeHost(LocalHost):
    """Real files, imagined processes."""

    def __init__(self, world: World) -> None:
        self.world = world

    def boot_id(self) -> str:
        return BOOT

    def processes(self) -> list[Process]:
        return list(self.world.processes.values())

    def process(self, pid: int) -> Process | None:
        return self.world.processes.get(pid)

    def listeners(self, port: int) -> list[Listener]:
        main = self.world.main
        return [Listener("127.0.0.1", PORT, frozenset({main}))] if main and port == PORT else []

    def signal(self, process: Process, signal: int) -> bool:
        self.world.signals.append((process.pid, signal))
        if process.pid not in self.world.processes:
            return False
        if not self._survives(signal):
            self.world.end(process.pid)
        return True

    def _survives(self, signum: int) -> bool:
        if signum == signal.SIGKILL:
            return self.world.unkillable
        return self.world.deaf or self.world.unkillable


class FakeSupervisor:
    def __init__(self, world: World) -> None:
        self.world = world
        self.stops = 0

    def _answer(self) -> None:
        if not self.world.supervisord_up:
            raise Unreachable("supervisord does not answer")

    def version(self) -> str:
        self._answer()
        return "4.3.0"

    def pid(self) -> int:
        return 4999

    def programs(self) -> list[Program]:
        other = Program(
            "bystander", "bystander", "RUNNING", 4000, 1_700_000_000, None, 0, "", "", ""
        )
        return [self.program(PROGRAM), other]

    def program(self, name: str) -> Program:
        self._answer()
        world = self.world
        started = int(world.processes[world.main].started) if world.main else None
        return Program(name, name, world.state, world.main, started, None, 0, "", "", "")

    def settings(self, name: str) -> ProgramSettings:
        self._answer()
        return ProgramSettings(
            "", "/", 1.0, 10.0, 15, True, True, True, "unexpected", True, "", "", {}
        )

    def stop(self, name: str) -> None:
        self._answer()
        self.stops += 1
        if self.world.main is None:
            return
        if self.world.deaf or self.world.unkillable:
            self.world.state = "STOPPING"
        else:
            self.world.end(self.world.main)

    def start(self, name: str) -> None:
        self._answer()
        self.world.spawn()

    def log_tail(self, name: str, *, max_bytes: int = 16384) -> str:
        return ""

    def log_mark(self, name: str) -> tuple[int, int]:
        return (0, 0)

    def log_since(self, name: str, mark: tuple[int, int], *, max_bytes: int = 65536) -> str:
        self._answer()
        return ""

    def clear_logs(self, name: str) -> None: ...


class FakeApi:
    """Answers whenever the main process runs."""

    def __init__(self, world: World) -> None:
        self.world = world

    def _get(self, body: str = "") -> Answer:
        return Answer(200, body) if self.world.main else Answer(None, error="refused")

    def health(self, *, timeout_s: float = 2.0) -> Answer:
        return self._get()

    def version(self, *, timeout_s: float = 2.0) -> str | None:
        return "0.27.1"

    def models(self, *, timeout_s: float = 2.0) -> list[Model] | Answer:
        return [Model(MODEL, 32768)] if self.world.main else self._get()

    def metrics(self, *, timeout_s: float = 2.0) -> Metrics | None:
        return Metrics(running=0.0, waiting=0.0) if self.world.main else None

    def chat(self, requests: Sequence[ProbeRequest], stop: Callable[[], bool]) -> list[Reply]:
        if any(request.tool for request in requests):
            self.world.on_tool_call()
        return [self._reply(request) for request in requests]

    def _reply(self, request: ProbeRequest) -> Reply:
        if not self.world.main:
            return Reply(None, fault="unreachable", body_excerpt="refused")
        if request.tool is None:
            return Reply(200, content="x", finish_reason="length")
        if self._floods():
            return Reply(200, content="!" * 300, repetition="'!' x 256 in content", fault="aborted")
        call = ToolCall(request.tool, '{"service": "lane"}')
        return Reply(200, tool_calls=(call,), finish_reason="tool_calls")

    def _floods(self) -> bool:
        """As asked: every start but the first one, so that the baseline passes."""
        return self.world.flood and "--max-num-seqs 8" not in self.world.launcher.read_text()

    def close(self) -> None: ...


class NoGpu:
    def readings(self) -> list[GpuReading] | None:
        return None


class Told:
    """Remembers what the owner was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []

    def tell(self, lane: str, title: str, body: str) -> None:
        self.heard.append((lane, title, body))

    def last(self, lane: str) -> Alert | None:
        return None


class FailingStore:
    """The real store until the `after`-th write; then every call is refused until it is mended."""

    WRITES = ("open_switch", "enter", "finish", "note", "set_current", "set_barred", "see")

    def __init__(self, real: Any, after: int) -> None:
        self._real, self._left, self.mended = real, after, False
        self.failed_in = ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found) or name == "close":
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            if not self.mended:
                if name in self.WRITES:
                    self._left -= 1
                if self._left < 0:
                    self.failed_in = self.failed_in or f"{name}{args[1:2]}"
                    raise StoreUnusable("the store is gone", next_step="look at it")
            return found(*args, **kwargs)

        return called


@dataclass
class Lab:
    """A lane of fakes: `make` gives one on an adopted launcher with its program running."""

    folder: Path
    world: World
    config: Config
    lane: Lane
    ports: Ports
    supervisor: FakeSupervisor
    told: Told

    @classmethod
    def make(cls, folder: Path, *, lane: Mapping[str, Any] | None = None) -> Lab:
        launcher = folder / "serve.sh"
        launcher.write_text(launcher_text())
        launcher.chmod(0o755)
        keys: dict[str, Any] = {
            "min_uptime_s": 0,
            "probation_s": 0,
            "stop_timeout_s": 5,
            "ready_timeout_s": 20,
            **(lane or {}),
        }
        file = folder / "lanectl.toml"
        file.write_text(
            f'[store]\nurl = "sqlite:///{folder}/lanectl.db"\n'
            f'[lanes.demo]\nlauncher = "{launcher}"\nsupervisor = "unix:///nowhere.sock"\n'
            f'program = "{PROGRAM}"\napi = "http://127.0.0.1:{PORT}/v1"\n'
            + "".join(f"{key} = {value}\n" for key, value in keys.items())
            + '[lanes.demo.smoke]\ngate = "quick"\n'
            + "[lanes.demo.profiles.a]\nmax_num_seqs = 4\n"
            + "[lanes.demo.profiles.b]\nmax_num_seqs = 6\n"
        )
        config = load(file)
        world, told = World(launcher), Told()
        supervisor = FakeSupervisor(world)
        ports = Ports(
            host=FakeHost(world),
            supervisor=supervisor,
            api=FakeApi(world),
            gpu=NoGpu(),
            store=open_store(config.store_url),
            clock=FakeClock(world),
            notifier=told,
        )
        world.spawn()
        world.now += timedelta(minutes=5)
        world.starts = 0
        return cls(folder, world, config, config.lane(None), ports, supervisor, told)
