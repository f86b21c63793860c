"""repair, quarantine, release: what a person decides about a lane."""

from __future__ import annotations

import click

from lanectl import wiring
from lanectl.app import service
from lanectl.app.documents import Document
from lanectl.cli.looks import opened, say
from lanectl.cli.options import Settings, common, lane_and, lane_argument, who
from lanectl.cli.tables import emit, paint, short, shown

REPAIRS = ("reopen-log", "reap-orphans")


@click.command()
@lane_and("what")
@common
def repair(settings: Settings, lane: str | None, what: str) -> int:
    """Repair LANE without a restart: `reopen-log` or `reap-orphans`.

    reopen-log: where the log's path was unlinked, save what is still held and write to the path
    again. reap-orphans: end what is proven to be left of this lane's earlier starts.
    """
    if what not in REPAIRS:
        raise click.UsageError(f"there is no repair {what!r}; known: {', '.join(REPAIRS)}")
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        if what == "reopen-log":
            document = service.reopen_log(ports, target)
            done = f"log written again; kept: {', '.join(document['saved']) or 'nothing was held'}"
        else:
            document = service.reap_orphans(ports, target, who=who(), say=say)
            done = f"ended {', '.join(map(str, document['pids']))}"
    nothing = document.get("reason") or "no proven orphan"
    return _print(settings, document, done if document["done"] else f"nothing to do: {nothing}")


@click.command()
@lane_argument
@click.option("--stop", is_flag=True, help="Stop the program too, with all of its tree.")
@click.option("--reason", default="by hand", metavar="TEXT", help="Why.")
@common
def quarantine(settings: Settings, lane: str | None, stop: bool, reason: str) -> int:
    """Block `switch` and every automatic action on LANE until a release."""
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        document = service.quarantine(
            ports, target, f"{reason} ({who()})", who=who(), stop=stop, say=say
        )
    stopped = "; stopped" if stop else ""
    return _print(settings, document, f"{target.name} is quarantined{stopped}")


@click.command()
@lane_argument
@click.option("--force", is_flag=True, help="Do not ask for a passed quick gate.")
@common
def release(settings: Settings, lane: str | None, force: bool) -> int:
    """End the quarantine of LANE and lift the bars on its revisions."""
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        document = service.release(ports, target, force=force, say=say)
    lifted = ", ".join(short(sha) for sha in document["unbarred"])
    text = f"{target.name} is released" + (f"; no longer barred: {lifted}" if lifted else "")
    return _print(settings, document, text)


def _print(settings: Settings, document: Document, text: str) -> int:
    if settings.as_json:
        emit(document)
    else:
        print(paint(shown(text), "green"))
    return 0
