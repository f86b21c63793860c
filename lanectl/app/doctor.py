"""doctor: check the whole chain from supervisord to the reply, and say how to mend each fault.

`gather` observes, the checks below judge. A check takes the facts and yields what it has to say;
its name is the stable code in the document. One that meets an unknown fact says so: no check is
ever skipped in silence. Nothing here changes anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from lanectl.app import doctor_checks_host as of_host
from lanectl.app import doctor_checks_launcher as of_launcher
from lanectl.app import doctor_checks_process as of_process
from lanectl.app import doctor_checks_server as of_server
from lanectl.app import doctor_checks_supervisor as of_supervisor
from lanectl.app.diagnosis import WORST_FIRST, Diagnosis, NotKnown, Untold, unknown
from lanectl.app.doctor_facts import Facts, HostFacts, attempt, gather, whoami
from lanectl.app.documents import Document
from lanectl.config import Config
from lanectl.core.lane import Lane
from lanectl.core.text import mask, printable
from lanectl.ports import GpuReading, Host, PathFacts, Ports

F = TypeVar("F", Facts, HostFacts)

LANE_CHECKS: Final[tuple[Callable[[Facts], Iterator[Diagnosis]], ...]] = (
    of_host.secret_files,
    # supervisord
    of_supervisor.supervisord,
    of_supervisor.program,
    of_supervisor.program_state,
    of_supervisor.runs_this_launcher,
    of_supervisor.command_shell,
    of_supervisor.command_arguments,
    of_supervisor.environment,
    of_supervisor.stopasgroup,
    of_supervisor.killasgroup,
    of_supervisor.stopwaitsecs,
    of_supervisor.stopsignal,
    of_supervisor.shutdown_timeout,
    of_supervisor.startsecs,
    of_supervisor.autorestart,
    of_supervisor.autostart,
    of_supervisor.log_files,
    of_supervisor.log_unlinked,
    of_supervisor.shared_with_other_programs,
    # the launcher
    of_launcher.launcher,
    of_launcher.launcher_mode,
    of_launcher.launcher_owner,
    of_launcher.launcher_folder,
    of_launcher.launcher_syntax,
    of_launcher.launcher_text,
    of_launcher.launcher_editable,
    of_launcher.launcher_port,
    of_launcher.launcher_newer,
    of_launcher.program_user,
    of_launcher.clock,
    of_launcher.drift,
    of_launcher.standing,
    of_launcher.backups,
    # processes and the port
    of_process.port_owner,
    of_process.several_listeners,
    of_process.running_command,
    of_process.orphans,
    # the server
    of_server.health,
    of_server.api_key,
    of_server.api_key_shown,
    of_server.model,
    of_server.version,
    of_server.metrics,
    of_server.prefix_cache_counters,
    of_server.speculation,
    of_server.draft_acceptance,
    of_server.concurrency,
    of_server.tool_call_flags,
    of_server.reasoning_parser,
    of_server.known_hazards,
)

HOST_CHECKS: Final[tuple[Callable[[HostFacts], Iterator[Diagnosis]], ...]] = (
    of_host.config_file,
    of_host.lanes_apart,
    of_host.store,
    of_host.gpu,
)

TEXT_MAX = 600


def run(checks: Iterable[Callable[[F], Iterator[Diagnosis]]], facts: F) -> list[Diagnosis]:
    """Every check on the facts, the worst first, else in the order of the list."""
    found: list[Diagnosis] = []
    for check in checks:
        code = check.__name__.replace("_", "-")
        try:
            for said in check(facts):
                found.append(replace(said, check=said.check or code))
        except Untold as untold:
            found.append(replace(unknown(untold.fact.why, untold.fact.mend), check=code))
    return sorted(found, key=lambda said: WORST_FIRST.index(said.severity))


def examine(
    ports: Ports, here: Host, lane: Lane, store_problem: str | None
) -> tuple[Document, bool]:
    """One lane's entry of the document, and whether anything at all of the lane could be read.

    store_problem: why `ports.store` is not the configured store, None when it is.
    """
    facts = gather(ports, here, lane, store_problem)
    readable = not (
        isinstance(facts.launcher, NotKnown)
        and isinstance(facts.supervisor, NotKnown)
        and facts.health.status is None
    )
    return _entry(lane.name, run(LANE_CHECKS, facts)), readable


def examine_host(
    here: Host, boards: list[GpuReading] | None, config: Config, store_problem: str | None
) -> Document:
    """What concerns all lanes together; its `lane` is null."""
    path = store_path(config)
    facts = HostFacts(
        config=attempt(lambda: here.stat_path(str(config.file))),
        config_file=str(config.file),
        config_secrets=_passwords(config),
        me=whoami(here),
        store=store_problem,
        store_file=NotKnown("the store is no file of this machine")
        if path is None
        else attempt(lambda: here.stat_path(path)),
        store_url=mask(config.store_url),
        lanes=tuple(config.lanes.values()),
        launchers={lane.name: _real(here, lane.launcher) for lane in config.lanes.values()},
        gpus=boards,
    )
    return _entry(None, run(HOST_CHECKS, facts))


def store_path(config: Config) -> str | None:
    """The file of a SQLite store; None for other kinds."""
    found = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", config.store_url)
    return found[1] if found else None


def has_errors(document: list[Document]) -> bool:
    return any(said["severity"] == "error" for entry in document for said in entry["checks"])


def _entry(lane: str | None, found: list[Diagnosis]) -> Document:
    return {
        "lane": lane,
        "checks": [
            {
                "check": said.check,
                "severity": said.severity,
                "message": printable(mask(said.message), TEXT_MAX),
                "mend": printable(mask(said.mend), TEXT_MAX),
                "source": said.source or None,
            }
            for said in found
        ],
    }


def _passwords(config: Config) -> tuple[str, ...]:
    """The keys of lanectl.toml whose address holds a password."""
    urls = {"store.url": config.store_url}
    for lane in config.lanes.values():
        urls[f"lanes.{lane.name}.supervisor"] = lane.supervisor
        urls[f"lanes.{lane.name}.api"] = lane.api
    return tuple(key for key, url in urls.items() if re.match(r"[a-z0-9+]+://[^/@:]*:[^/@]+@", url))


def _real(here: Host, path: str) -> str:
    found = attempt(lambda: here.stat_path(path))
    return found.real if isinstance(found, PathFacts) else path
