"""What doctor looks at, observed once: everything that a check may ask for.

Each fact stands on its own: where supervisord, the API, the store or a file cannot be reached, the
facts that hang on it are NotKnown, with the reason, and all the others are there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lanectl.app.diagnosis import NotKnown, T
from lanectl.app.process import Lookout, Proof, descendants, is_alive
from lanectl.core import flags
from lanectl.core.command import basename, locate
from lanectl.core.flags import Asked, ServerSettings
from lanectl.core.lane import Lane, Revision
from lanectl.core.launcher import View, show
from lanectl.core.launcher_read import Reading
from lanectl.core.render import asked_of, view_of
from lanectl.errors import LanectlError
from lanectl.ports import (
    Answer,
    Backup,
    GpuReading,
    Host,
    LaneRow,
    LauncherFile,
    Listener,
    Metrics,
    Model,
    PathFacts,
    Ports,
    Probation,
    Process,
    Program,
    ProgramSettings,
    ScriptCheck,
    SwitchRow,
)

ANSWER_S = 5.0
"""How long each question to the API may take: longer than a busy host makes it wait."""
OTHERS_MAX = 100
"""So many other programs of a supervisord are looked into."""


@dataclass(frozen=True)
class Command:
    """supervisord's `command=` in words, and what each word that is a path really is."""

    words: tuple[str, ...]
    paths: Mapping[str, str]

    def at(self, real: str) -> int | None:
        """The index of the word that is the file `real`."""
        return next((n for n, word in enumerate(self.words) if self.paths.get(word) == real), None)


@dataclass(frozen=True)
class Other:
    """Another program of the same supervisord. ports: of the servers in the script it runs."""

    program: Program
    command: Command
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Standing:
    """What the store has of the lane. `row` None: not adopted."""

    row: LaneRow | None
    current: Revision | None
    unfinished: SwitchRow | None
    holder: Mapping[str, Any] | None
    probation: Probation | None
    watched: bool


@dataclass(frozen=True)
class Stray:
    """A process that looks like a vLLM server and is not of the lane's program.

    proven: its group is a recorded one of this lane, so `repair LANE reap-orphans` ends it.
    """

    process: Process
    proven: bool


@dataclass(frozen=True)
class Facts:
    lane: Lane
    now: float
    me: int
    secrets: Mapping[str, PathFacts | NotKnown | None]
    launcher: LauncherFile | NotKnown | None
    launcher_owner: str
    folders: tuple[tuple[str, PathFacts], ...] | NotKnown
    script: ScriptCheck | NotKnown
    view: View | NotKnown
    knobs: frozenset[str] | NotKnown
    backups: list[Backup] | NotKnown
    standing: Standing | NotKnown
    supervisor: str | NotKnown
    program: Program | NotKnown
    settings: ProgramSettings | NotKnown
    command: Command | NotKnown
    others: list[Other] | NotKnown
    logs_gone: tuple[str, ...] | NotKnown
    log: str | NotKnown
    proof: Proof | NotKnown
    runs_as: PathFacts | NotKnown | None
    environ: Mapping[str, str] | NotKnown | None
    listeners: list[Listener] | NotKnown
    strays: list[Stray] | NotKnown
    health: Answer
    version: str | None
    models: list[Model] | Answer
    metrics: Metrics | None
    server: ServerSettings | NotKnown
    server_is_live: bool
    model_config: Mapping[str, Any] | None


@dataclass(frozen=True)
class HostFacts:
    """What concerns all lanes. store: None where it can be used, else why not."""

    config: PathFacts | NotKnown | None
    config_file: str
    config_secrets: tuple[str, ...]
    me: int
    store: str | None
    store_file: PathFacts | NotKnown | None
    store_url: str
    lanes: Sequence[Lane]
    launchers: Mapping[str, str]
    gpus: list[GpuReading] | None


def attempt(look: Callable[[], T]) -> T | NotKnown:
    """What `look` sees, or why it could not."""
    try:
        return look()
    except LanectlError as problem:
        return NotKnown(problem.message, problem.next_step)
    except OSError as problem:
        return NotKnown(str(problem))


def then(fact: T | NotKnown, look: Callable[[T], Any]) -> Any:
    """What `look` makes of a fact, where the fact is known."""
    return fact if isinstance(fact, NotKnown) else attempt(lambda: look(fact))


def whoami(host: Host) -> int:
    """The user we act as on that host."""
    me = host.stat_path("/proc/self")
    return me.uid if me is not None else -1


def gather(ports: Ports, here: Host, lane: Lane, store_problem: str | None) -> Facts:
    """Look at one lane. `here` is the machine lanectl runs on, where the secret files lie.

    store_problem: why `ports.store` is not the configured store; its facts are NotKnown then.
    """
    host, supervisor, api = ports.host, ports.supervisor, ports.api
    lookout = Lookout(ports, lane)
    launcher = attempt(lambda: host.read(lane.launcher))
    if launcher is None:
        nothing = NotKnown(f"there is no launcher {lane.launcher}")
        text: bytes | NotKnown = nothing
    else:
        text = then(launcher, lambda file: file.text)
    program = attempt(lookout.program)
    settings = then(program, lambda it: supervisor.settings(it.full_name))
    command = then(settings, lambda it: read_command(host, it.command, it.directory))
    view = then(text, lambda it: view_of(it, lane.port))
    proof = then(program, lambda _: _prove(lookout, lane, text))
    running = None if isinstance(proof, NotKnown) else proof.server
    server = flags.settings(running.argv) if running else then(view, _server_of)
    health = api.health(timeout_s=ANSWER_S)
    answers = health.status is not None
    no_answer = Answer(None, error=health.error)
    return Facts(
        lane=lane,
        now=ports.clock.now().timestamp(),
        me=whoami(here),
        secrets={
            path: attempt(lambda path=path: here.stat_path(path))  # type: ignore[misc]
            for path in (lane.api_key_file, lane.supervisor_password_file)
            if path
        },
        launcher=launcher,
        launcher_owner=_owner(host, launcher),
        folders=then(launcher, lambda file: _folders(host, lane, file)),
        script=then(text, host.check_script),
        view=view,
        knobs=then(text, lambda it: frozenset(Reading(it).shell.notes.defaults)),
        backups=attempt(lambda: host.backups(lane.launcher)),
        standing=NotKnown(store_problem)
        if store_problem
        else attempt(lambda: _standing(ports, lane)),
        supervisor=attempt(supervisor.version),
        program=program,
        settings=settings,
        command=command,
        others=then(program, lambda it: _others(ports, it)),
        logs_gone=then(program, lambda it: _logs_gone(host, it)),
        log=then(program, lambda it: supervisor.log_tail(it.full_name)),
        proof=proof,
        runs_as=then(proof, lambda it: it.main and host.stat_path(f"/proc/{it.main.pid}")),
        environ=then(proof, lambda it: it.main and host.environ(it.main.pid)),
        listeners=attempt(lambda: host.listeners(lane.port)),
        strays=attempt(lambda: _strays(ports, lookout, store_problem)),
        health=health,
        version=api.version(timeout_s=ANSWER_S) if answers else None,
        models=api.models(timeout_s=ANSWER_S) if answers else no_answer,
        metrics=api.metrics(timeout_s=ANSWER_S) if answers else None,
        server=server,
        server_is_live=running is not None,
        model_config=_model_config(host, server),
    )


def read_command(host: Host, command: str, directory: str) -> Command:
    """Take `command=` apart; a relative path starts at the program's `directory`."""
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        words = tuple(command.split())
    paths: dict[str, str] = {}
    for word in words:
        if "/" not in word:
            continue
        path = word if word.startswith("/") else f"{directory or '.'}/{word}"
        found = attempt(lambda path=path: host.stat_path(path))  # type: ignore[misc]
        if isinstance(found, PathFacts) and not found.is_folder:
            paths[word] = found.real
    return Command(words, paths)


def looks_like_vllm(process: Process) -> bool:
    """By the name that vLLM gives its processes, or by a server's words."""
    return process.name.startswith("VLLM::") or flags.find_server(process.argv) is not None


def _prove(lookout: Lookout, lane: Lane, text: bytes | NotKnown) -> Proof:
    asked = Asked() if isinstance(text, NotKnown) else asked_of(text, None, port=lane.port)
    return lookout.prove(asked)


def _server_of(view: View) -> ServerSettings | NotKnown:
    return view.settings or NotKnown("the launcher starts no server that can be read")


def _owner(host: Host, launcher: LauncherFile | NotKnown | None) -> str:
    if not isinstance(launcher, LauncherFile):
        return ""
    found = attempt(lambda: host.stat_path(launcher.path))
    return found.owner if isinstance(found, PathFacts) else str(launcher.uid)


def _folders(
    host: Host, lane: Lane, launcher: LauncherFile | None
) -> tuple[tuple[str, PathFacts], ...]:
    """The folder of the launcher and, where it is a link, that of the file it names."""
    files = [lane.launcher, *([launcher.path] if launcher else [])]
    found = {path.rpartition("/")[0] or "/": None for path in files}
    looked = ((path, host.stat_path(path)) for path in found)
    return tuple((path, facts) for path, facts in looked if facts is not None)


def _standing(ports: Ports, lane: Lane) -> Standing:
    store, host = ports.store, ports.host
    row = store.lane(lane.name)
    if row is None:
        return Standing(None, None, None, None, None, False)
    probation = store.probation(lane.name)
    worker = host.process(probation.worker_pid) if probation else None
    return Standing(
        row=row,
        current=store.revision(lane.name, row.current_sha256),
        unfinished=store.unfinished(lane.name),
        holder=host.lock_holder(lane.launcher),
        probation=probation,
        watched=worker is not None and is_alive(worker),
    )


def _others(ports: Ports, mine: Program) -> list[Other]:
    found: list[Other] = []
    for program in ports.supervisor.programs()[:OTHERS_MAX]:
        if program.full_name == mine.full_name:
            continue
        told = ports.supervisor.settings(program.full_name)
        command = read_command(ports.host, told.command, told.directory)
        found.append(Other(program, command, _ports_of(ports.host, command)))
    return found


def _ports_of(host: Host, command: Command) -> tuple[int, ...]:
    """The ports of the vLLM servers that a command line, or the script it names, starts."""
    location = locate(command.words)
    if location is not None and location.script is None:
        return (flags.settings(command.words).port or 8000,)
    found: set[int] = set()
    for word, path in command.paths.items():
        if basename(word) in ("bash", "sh", "dash", "env"):
            continue
        file = attempt(lambda path=path: host.read(path))  # type: ignore[misc]
        if isinstance(file, LauncherFile) and file.text.startswith(b"#!"):
            found |= {server.port or 8000 for server in show(file.text).servers}
    return tuple(sorted(found))


def _logs_gone(host: Host, program: Program) -> tuple[str, ...]:
    paths = (program.stdout_log, program.stderr_log)
    return tuple(path for path in paths if path.startswith("/") and not host.exists(path))


def _strays(ports: Ports, lookout: Lookout, store_problem: str | None) -> list[Stray]:
    """Processes that look like vLLM and hang on nothing: left by an earlier start, or by hand."""
    host = ports.host
    processes = [process for process in host.processes() if is_alive(process)]
    programs = attempt(ports.supervisor.programs)
    known = [] if isinstance(programs, NotKnown) else programs
    program = attempt(lookout.program)
    main = None if isinstance(program, NotKnown) else program.pid
    proven = [] if store_problem else lookout.orphans(main)
    kept = {p.pid for one in known if one.pid for p in descendants(processes, one.pid)}
    ours = {process.pid for process in proven}
    loose: list[Process] = []
    for process in processes:
        # A process whose parent is no init hangs on something: a shell, another supervisord.
        # Only an engine may not: its parent ought to be a server's process.
        if process.pid in kept | ours or (
            process.ppid != 1 and not process.name.startswith("VLLM::")
        ):
            continue
        looked = host.process(process.pid)
        if looked is None or not looks_like_vllm(looked):
            continue
        parent = host.process(process.ppid)
        if process.ppid == 1 or parent is None or not looks_like_vllm(parent):
            loose.append(looked)
    return [Stray(p, True) for p in proven] + [Stray(p, False) for p in loose]


def _model_config(host: Host, server: ServerSettings | NotKnown) -> Mapping[str, Any] | None:
    """The checkpoint's config.json, where the model is a folder of that machine."""
    model = None if isinstance(server, NotKnown) else server.model
    if model is None or not model.startswith("/"):
        return None
    file = attempt(lambda: host.read(f"{model}/config.json"))
    if not isinstance(file, LauncherFile):
        return None
    try:
        found = json.loads(file.text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
