"""doctor: what lanectl itself stands on, and the machine: secrets, configuration, store, GPUs."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterator

from lanectl.app.diagnosis import Diagnosis, NotKnown, error, info, need, ok, unknown, warning
from lanectl.app.doctor_facts import Facts, HostFacts
from lanectl.ports import GpuReading

Found = Iterator[Diagnosis]

_READ_BY_OTHERS = stat.S_IROTH | stat.S_IWOTH
_HOT_C = 87.0

# ------------------------------------------------------------------------------------ of one lane


def secret_files(facts: Facts) -> Found:
    clean = True
    for path, looked in facts.secrets.items():
        found = need(looked)
        if found is None:
            clean = False
            yield error(f"there is no file {path}", f"write the secret into {path}, mode 0600")
            continue
        if found.mode & _READ_BY_OTHERS:
            clean = False
            yield error(f"every user can read {path} ({found.mode:04o})", f"chmod 600 {path}")
        elif found.mode & (stat.S_IRGRP | stat.S_IWGRP):
            clean = False
            yield warning(f"a group can read {path} ({found.mode:04o})", f"chmod 600 {path}")
        if found.uid not in (0, facts.me):
            clean = False
            yield warning(
                f"{path} belongs to {found.owner}, neither to root nor to who runs lanectl",
                f"chown $(id -un) {path}",
            )
    if clean:
        count = len(facts.secrets)
        yield ok(f"{count} secret files, private" if count else "the lane names no secret file")


# ------------------------------------------------------------------------------------ of the host


def config_file(facts: HostFacts) -> Found:
    found, path = need(facts.config), facts.config_file
    if found is None:
        need(NotKnown(f"{path} is gone"))
        return
    clean = True
    if found.mode & stat.S_IWOTH:
        clean = False
        yield error(
            f"anyone can write to {path} (mode {found.mode:04o}), and so choose what is run",
            f"chmod o-w {path}",
        )
    if facts.config_secrets and found.mode & (_READ_BY_OTHERS | stat.S_IRGRP):
        clean = False
        yield error(
            f"{path} holds a password ({', '.join(facts.config_secrets)}) and others can read it "
            f"(mode {found.mode:04o})",
            f"chmod 600 {path}, or move the password into a file of its own",
        )
    if found.uid not in (0, facts.me):
        clean = False
        yield warning(
            f"{path} belongs to {found.owner}, who can choose what is run here",
            f"chown $(id -un) {path}",
        )
    if clean:
        yield ok(f"{path}, mode {found.mode:04o}")


def lanes_apart(facts: HostFacts) -> Found:
    """Two lanes on one launcher, port or program would each undo what the other does."""
    claims: dict[tuple[str, str], list[str]] = defaultdict(list)
    for lane in facts.lanes:
        launcher = facts.launchers.get(lane.name, lane.launcher)
        claims["launcher", f"{lane.host}: {launcher}"].append(lane.name)
        claims["port", f"{lane.host}: {lane.port}"].append(lane.name)
        claims["program", f"{lane.supervisor} {lane.program}"].append(lane.name)
    clean = True
    for (what, value), names in claims.items():
        if len(names) > 1:
            clean = False
            yield error(
                f"lanes {' and '.join(names)} have the same {what} ({value})",
                f"give each lane a {what} of its own in {facts.config_file}",
            )
    if clean:
        yield ok("no two lanes share a launcher, a port or a program")


def store(facts: HostFacts) -> Found:
    if facts.store is not None:
        yield error(
            f"the store cannot be used: {facts.store}",
            "restore it from a backup, or set `store.url`; "
            "`lanectl rollback LANE --backup FILE` works without it",
        )
        return
    found = need(facts.store_file)
    if found is None:
        yield info(f"there is no store at {facts.store_url} yet", "`lanectl adopt LANE` makes it")
    elif found.mode & stat.S_IWOTH:
        yield error(
            f"anyone can write to the store {found.real} (mode {found.mode:04o})",
            f"chmod 600 {found.real}",
        )
    elif found.mode & 0o077:
        yield warning(
            f"others can read the store {found.real} (mode {found.mode:04o}); it holds the text "
            "of every launcher",
            f"chmod 600 {found.real}",
        )
    else:
        yield ok(f"{facts.store_url} can be used, mode {found.mode:04o}")


def gpu(facts: HostFacts) -> Found:
    if facts.gpus is None:
        yield unknown(
            "no GPU readings: there is no NVIDIA driver here, or it did not answer in time",
            "run `nvidia-smi`; on a host without an NVIDIA GPU this stays so",
        )
        return
    if not facts.gpus:
        yield warning("the NVIDIA driver lists no board", "run `nvidia-smi`; look at `dmesg`")
    for board in facts.gpus:
        yield from _board(board)


def _board(board: GpuReading) -> Found:
    fields = {
        "memory": board.memory_used,
        "power": board.power_w,
        "temperature": board.temperature_c,
        "utilization": board.utilization_pct,
        "processes": board.pids,
    }
    silent = [name for name, value in fields.items() if value is None]
    shown = [f"{board.name} ({board.uuid})"]
    if board.memory_used is not None and board.memory_total:
        shown.append(f"{board.memory_used / 2**30:.1f} of {board.memory_total / 2**30:.1f} GiB")
    if board.power_w is not None:
        shown.append(f"{board.power_w:.0f} W")
    if board.temperature_c is not None:
        shown.append(f"{board.temperature_c:.0f} °C")
    text = ", ".join(shown)
    if board.temperature_c is not None and board.temperature_c >= _HOT_C:
        yield warning(
            f"{text}: boards lower their clocks at about this temperature",
            "look with `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`; mend fans or air flow",
        )
    elif silent:
        yield info(f"{text}; the driver does not tell: {', '.join(silent)}")
    else:
        yield ok(text)
