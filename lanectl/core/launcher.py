"""Read and edit a bash launcher, byte for byte.

`show` tells what the servers in it are told. `edit` changes that and gives back text in which it is
proven: the edited text, read again, starts the same servers with the asked settings and with every
other word as it was. What cannot be proven is refused with its line and its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lanectl.core.flags import ServerSettings, Speculative, Unknown
from lanectl.core.launcher_edit import edit, obstacle
from lanectl.core.launcher_findings import Finding
from lanectl.core.launcher_goals import Edit
from lanectl.core.launcher_read import Group, Reading, Server

__all__ = ("Edit", "Finding", "Server", "View", "edit", "show")


@dataclass(frozen=True)
class View:
    """What a launcher says. `why_not` is why it cannot be edited, None when it can be.

    `speculative` is the settings, False for "off", or "unknown"; `max_num_seqs` is a number, None
    where it is not set, or "unknown". With several servers and no port to choose one, both are what
    all of them agree on.
    """

    editable: bool
    server: Server | None
    servers: tuple[Server, ...]
    speculative: Speculative
    max_num_seqs: int | Literal["unknown"] | None
    container: bool
    settings: ServerSettings | None
    findings: tuple[Finding, ...]
    why_not: str | None


def show(
    source: bytes, *, port: int | None = None, environment: Mapping[str, str] | None = None
) -> View:
    """Read a launcher; any bytes will do. `port` picks one of several servers.

    environment: what it is started with, where that is known. Without it a default that the
    launcher leaves to the environment is taken to hold, and a finding says so.
    """
    reading = Reading(source, environment)
    picked = reading.pick(port)
    group = picked[0] if picked else None
    servers = tuple(one.server() for one in reading.groups)
    stands = obstacle(reading, picked, port)
    why_not = None if stands is None else stands.message
    if group is None:
        return View(False, None, servers, Unknown, Unknown, False, None, reading.findings, why_not)
    said = Group(tuple(run for one in picked for run in one.runs)).settings
    is_open = reading.misread() or not any(one.first.reached for one in picked)
    return View(
        editable=why_not is None,
        server=group.server(),
        servers=servers,
        speculative=Unknown if is_open else said.speculative,
        max_num_seqs=Unknown if is_open else said.max_num_seqs,
        container=group.container,
        settings=group.settings,
        findings=reading.findings,
        why_not=why_not,
    )
