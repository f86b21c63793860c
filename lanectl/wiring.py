"""The only module that imports adapters: it puts a lane's ports together."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from lanectl.adapters.gpu_nvml import NvmlGpu
from lanectl.adapters.host_local import LocalHost
from lanectl.adapters.lane_http import HttpLane
from lanectl.adapters.notify_log import LogNotifier
from lanectl.adapters.store_sql import open_store
from lanectl.adapters.supervisord import Supervisord
from lanectl.adapters.system_clock import SystemClock
from lanectl.config import Config
from lanectl.core.lane import Lane
from lanectl.core.launcher import Finding
from lanectl.errors import CouldNotTell
from lanectl.ports import Host, Ports, Process, Store


def local_host() -> Host:
    return LocalHost()


@contextmanager
def store(config: Config, *, store_url: str | None = None) -> Iterator[Store]:
    """The configured store, or the one at `store_url`. Raises StoreUnusable."""
    opened = open_store(store_url or config.store_url)
    try:
        yield opened
    finally:
        opened.close()


def scratch_url() -> str:
    """The URL of a new store in a private folder: for a rollback from the files alone."""
    return f"sqlite:///{tempfile.mkdtemp(prefix='lanectl-')}/scratch.db"


@contextmanager
def ports(config: Config, lane: Lane, *, store_url: str | None = None) -> Iterator[Ports]:
    """Everything a use case of `lane` needs, closed again at the end. Raises StoreUnusable."""
    opened = open_store(store_url or config.store_url)
    supervisor = Supervisord(
        lane.supervisor, user=lane.supervisor_user, password_file=lane.supervisor_password_file
    )
    api = HttpLane(lane.api, api_key_file=lane.api_key_file)
    try:
        yield Ports(
            host=LocalHost(),
            supervisor=supervisor,
            api=api,
            gpu=NvmlGpu(),
            store=opened,
            clock=SystemClock(),
            notifier=LogNotifier(alerts_file(config)),
        )
    finally:
        api.close()
        supervisor.close()
        opened.close()


def alerts_file(config: Config) -> Path:
    """Where alerts are kept: beside a SQLite store, else in the platform's state folder."""
    store = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", config.store_url)
    folder = Path(store[1]).expanduser().parent if store else None
    return (folder or Path(platformdirs.user_state_dir("lanectl"))) / "alerts.log"


def this_process(host: Host) -> Process:
    """The running process itself, as the host sees it."""
    me = host.process(os.getpid())
    if me is None:
        raise CouldNotTell("this process is not to be found in /proc")
    return me


def shellcheck(source: bytes) -> list[Finding]:
    """What shellcheck adds to our own findings."""
    from lanectl.adapters.shellcheck import findings

    return findings(source)
