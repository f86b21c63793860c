"""`lanectl launcher show|edit FILE`: the launcher reader and editor by itself."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from lanectl.cli.looks import print_findings
from lanectl.cli.options import Settings, common
from lanectl.cli.tables import emit, shown
from lanectl.errors import ConfigError

SIZE_LIMIT = 1 << 20


@click.group()
@common
def launcher(settings: Settings) -> None:
    """Read or edit a launcher script. Nothing is written: `edit` prints the result."""
    click.get_current_context().obj = settings


@launcher.command()
@click.argument("file")
@click.option("--port", type=click.IntRange(1, 65535), help="Which server, where several are.")
@common
def show(settings: Settings, file: str, port: int | None) -> int:
    """Show what a launcher FILE starts, and what is wrong with it."""
    from lanectl.core.launcher import show as read
    from lanectl.core.text import mask, mask_argv
    from lanectl.wiring import shellcheck

    source = _source(file)
    view = read(source, port=port)
    findings = [asdict(f) for f in (*view.findings, *shellcheck(source))]
    server = view.server
    document: dict[str, Any] = {
        "editable": view.editable,
        "server": None
        if server is None
        else {"line": server.line, "argv": list(mask_argv(server.argv)), "port": server.port},
        "servers": [{"line": s.line, "port": s.port} for s in view.servers],
        "speculative": view.speculative,
        "max_num_seqs": view.max_num_seqs,
        "container": view.container,
        "why_not": view.why_not,
        "findings": [{**f, "message": mask(f["message"])} for f in findings],
    }
    if settings.as_json:
        emit(document)
        return 0
    if server is None:
        none = "no vLLM server found" if not view.servers else "several servers:"
        print(f"{shown(file)}: {none}")
        for s in view.servers:
            print(f"  line {s.line}, port {s.port}")
    else:
        print(f"{shown(file)}: server on line {server.line}, port {server.port or 'not given'}")
        print(f"  command       {shown(' '.join(mask_argv(server.argv)))}")
    print(f"  speculative   {shown(json.dumps(view.speculative))}")
    print(f"  max_num_seqs  {view.max_num_seqs if view.max_num_seqs is not None else 'not given'}")
    print(f"  editable      {'yes' if view.editable else shown(f'no: {view.why_not}')}")
    print_findings(document["findings"])
    return 0


@launcher.command()
@click.argument("file")
@click.option(
    "--speculative", metavar="off|JSON", help="Speculative decoding off, or its settings."
)
@click.option("--max-num-seqs", type=click.IntRange(1), help="Sequences at the same time.")
@click.option("--set", "sets", multiple=True, metavar="FLAG[=V]", help="Set a server flag.")
@click.option("--unset", "unsets", multiple=True, metavar="FLAG", help="Remove a server flag.")
@click.option("--env", "envs", multiple=True, metavar="K=V", help="Set a knob of the launcher.")
@click.option("--port", type=click.IntRange(1, 65535), help="Which server, where several are.")
@common
def edit(
    settings: Settings,
    file: str,
    speculative: str | None,
    max_num_seqs: int | None,
    sets: tuple[str, ...],
    unsets: tuple[str, ...],
    envs: tuple[str, ...],
    port: int | None,
) -> int:
    """Print FILE with the asked settings, or refuse with the line and the cause (exit 3)."""
    from lanectl.core.lane import digest
    from lanectl.core.launcher import Edit
    from lanectl.core.launcher import edit as apply

    flags: dict[str, str | bool] = dict.fromkeys(unsets, False)
    for item in sets:
        name, given, value = item.partition("=")
        flags[name] = value if given else True
    change = Edit(
        speculative=_speculative(speculative),
        max_num_seqs=max_num_seqs,
        flags=flags,
        env=dict(_pair(item) for item in envs),
    )
    text = apply(_source(file), change, port=port)
    if settings.as_json:
        emit({"text": text.decode("utf-8", "replace"), "sha256": digest(text)}, raw=True)
        return 0
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    return 0


def _speculative(word: str | None) -> Literal[False] | dict[str, Any] | None:
    if word is None:
        return None
    if word == "off":
        return False
    try:
        value = json.loads(word)
    except ValueError as error:
        raise click.UsageError(f"--speculative: {error}") from error
    if not isinstance(value, dict) or not value:
        raise click.UsageError("--speculative takes `off` or a JSON object with settings")
    return value


def _pair(item: str) -> tuple[str, str]:
    name, given, value = item.partition("=")
    if not given or not name:
        raise click.UsageError(f"--env takes K=V, not {item!r}")
    return name, value


def _source(file: str) -> bytes:
    path = Path(file)
    if not path.is_file():
        raise ConfigError("is a folder" if path.is_dir() else "there is no such file", file=file)
    try:
        with path.open("rb") as opened:
            data = opened.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=file) from error
    if len(data) > SIZE_LIMIT:
        raise ConfigError(f"is larger than {SIZE_LIMIT} bytes: no launcher", file=file)
    return data
