"""doctor: check the whole chain, and say how to mend each fault."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from lanectl import wiring
from lanectl.app import doctor as checkup
from lanectl.app.documents import Document
from lanectl.cli.options import Settings, common, epilog, lane_argument
from lanectl.cli.tables import emit, paint, shown
from lanectl.config import Config, find, load
from lanectl.core import exits
from lanectl.core.lane import Lane
from lanectl.errors import ConfigError, StoreUnusable
from lanectl.ports import Ports

COLOURS = {"error": "red", "warning": "yellow", "unknown": "cyan", "info": "dim", "ok": "green"}
WIDTH = len("unknown")


@click.command(
    epilog=epilog(
        "doctor qwen38 --all",
        _0="no errors",
        _6="errors found",
        _7="nothing could be read",
    )
)
@lane_argument
@click.option("--all", "show_all", is_flag=True, help="Show also what is well.")
@common
def doctor(settings: Settings, lane: str | None, show_all: bool) -> int:
    """Check the whole chain of LANE, or of every lane, and say how to mend each fault.

    Changes nothing.
    """
    config = load(find(settings.config))
    lanes = config.lanes_to_see(lane)
    problem = _store_problem(config)
    here = wiring.local_host()
    document: list[Document] = []
    readable, boards = False, None
    for one in lanes:
        with _ports(config, one, problem) as ports:
            entry, any_read = checkup.examine(ports, here, one, problem)
            readable = readable or any_read
            document.append(entry)
            # All lanes of this version are on this machine, so one look at its boards will do.
            boards = ports.gpu.readings() if one is lanes[0] else boards
    document.append(checkup.examine_host(here, boards, config, problem))
    if settings.as_json:
        emit(document)
    else:
        for entry in document:
            _print(entry, show_all)
    if not readable:
        return exits.COULD_NOT_TELL
    return exits.CHECKED_BAD if checkup.has_errors(document) else exits.DONE


def _store_problem(config: Config) -> str | None:
    """Why the store cannot be used; None also where there is none yet, which is not made here."""
    path = checkup.store_path(config)
    if path is not None and not Path(path).exists():
        return None
    try:
        with wiring.store(config):
            return None
    except (StoreUnusable, ConfigError) as error:
        return error.message


@contextmanager
def _ports(config: Config, lane: Lane, problem: str | None) -> Iterator[Ports]:
    """The lane's ports, with an empty store where the real one is not to be had."""
    path = checkup.store_path(config)
    absent = path is not None and not Path(path).exists()
    usable = replace(
        lane,
        api_key_file=_readable(lane.api_key_file),
        supervisor_password_file=_readable(lane.supervisor_password_file),
    )
    if not problem and not absent:
        with wiring.ports(config, usable) as ports:
            yield ports
        return
    with (
        tempfile.TemporaryDirectory(prefix="lanectl-") as folder,
        wiring.ports(config, usable, store_url=f"sqlite:///{folder}/empty.db") as ports,
    ):
        yield ports


def _readable(path: str | None) -> str | None:
    """The path of a secret that can be read; `secret-files` tells of the others."""
    try:
        return path if path and Path(path).read_bytes() else None
    except OSError:
        return None


def _print(entry: Document, show_all: bool) -> None:
    checks = entry["checks"]
    counts = Counter(said["severity"] for said in checks)
    told = ", ".join(f"{counts[name]} {name}" for name in COLOURS if counts[name])
    name = f"lane {entry['lane']}" if entry["lane"] else "this host"
    print(paint(f"{name}: {told}", "bold"))
    wanted = [said for said in checks if show_all or said["severity"] != "ok"]
    width = max((len(said["check"]) for said in wanted), default=0)
    for said in wanted:
        severity = paint(said["severity"].ljust(WIDTH), COLOURS[said["severity"]])
        source = f" ({said['source']})" if said["source"] else ""
        message = shown(f"{said['message']}{source}")
        print(f"  {severity}  {said['check'].ljust(width)}  {message}")
        if said["mend"]:
            print(f"  {' ' * WIDTH}  {' ' * width}  -> {shown(said['mend'])}")
