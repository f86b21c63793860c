"""adopt, profiles, diff, smoke, status, history: commands that look, judge and record."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from lanectl import wiring
from lanectl.app import service
from lanectl.app.documents import Document
from lanectl.cli.options import GATE, Settings, common, epilog, lane_and, lane_argument, who
from lanectl.cli.tables import coloured, emit, paint, short, shown, shown_lines, table
from lanectl.config import Config, find, load
from lanectl.core import exits
from lanectl.core.lane import Lane
from lanectl.core.verdict import Result

WATCH_EVERY_S = 2.0


def say(text: str) -> None:
    print(f"  {shown(text)}", file=sys.stderr, flush=True)


def opened(settings: Settings, lane: str | None) -> tuple[Config, Lane]:
    config = load(find(settings.config))
    return config, config.lane(lane)


@click.command()
@lane_argument
@click.option("--unproven", is_flag=True, help="Run no gate; the revision is not stable then.")
@common
def adopt(settings: Settings, lane: str | None, unproven: bool) -> int:
    """Take the deployed launcher of LANE as the base that profiles are applied to.

    The switch gate judges the running lane; only where it passes is the revision stable, and so
    what a rollback goes back to first.
    """
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        document = service.adopt(ports, config, target, who=who(), unproven=unproven, say=say)
    if settings.as_json:
        emit(document)
        return 0
    state = "stable" if document["stable"] else "not stable"
    colour = "green" if document["stable"] else "yellow"
    print(paint(f"adopted {target.name} ({short(document['sha256'])}), {state}", colour))
    if document["followed_link"]:
        print(shown(f"  {target.launcher} is a link; {document['launcher']} is what is changed"))
    if document["reason"]:
        print(f"  {shown(document['reason'])}")
    print_findings(document["findings"])
    print(f"next: lanectl profiles {target.name}")
    return 0


def print_findings(findings: list[Document]) -> None:
    colours = {"error": "red", "warning": "yellow", "info": "dim"}
    for f in findings:
        text = shown(f"  {f['severity']:<8} line {f['line']:<4} {f['message']} ({f['code']})")
        print(paint(text, colours[f["severity"]]))


@click.command()
@lane_argument
@common
def profiles(settings: Settings, lane: str | None) -> int:
    """List the profiles of LANE, what each asks for, and the revision it renders to."""
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        found = service.profiles(ports, config, target)
    if settings.as_json:
        emit(found)
        return 0
    rows = [[_standing(p), p["profile"], short(p["sha256"]), _asks(p), p["note"]] for p in found]
    print(table(["", "PROFILE", "REVISION", "ASKS FOR", "NOTE"], rows))
    for p in found:
        if p["refused"]:
            print(paint(shown(f"  {p['profile']}: {p['refused']}"), "yellow"))
    return 0


def _standing(profile: Document) -> str:
    marks = [("current", "*"), ("stable", "stable"), ("barred", "barred")]
    return " ".join(mark for key, mark in marks if profile[key])


def _asks(profile: Document) -> str:
    words: list[str] = []
    if profile["speculative"] is False:
        words.append("speculative off")
    elif profile["speculative"]:
        words.append(f"speculative {profile['speculative'].get('method', 'on')}")
    words += [f"max_num_seqs {profile['max_num_seqs']}"] if profile["max_num_seqs"] else []
    words += [f"model {profile['model']}"] if profile["model"] else []
    words += [f"{k}={v}" for k, v in profile["env"].items()]
    words += [
        f"no {k}" if v is False else k if v is True else f"{k} {v}"
        for k, v in profile["flags"].items()
    ]
    words += [f"script {profile['script']}"] if profile["script"] else []
    from lanectl.core.text import mask

    return mask(", ".join(words)) or "-"


@click.command()
@lane_and("profile")
@common
def diff(settings: Settings, lane: str | None, profile: str) -> int:
    """Show the deployed launcher of LANE against PROFILE, secrets masked."""
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        document = service.diff(ports, config, target, profile)
    if settings.as_json:
        emit(document)
        return 0
    if document["same"]:
        print(f"{target.name} has the text of {profile} already ({short(document['to'])})")
    elif not document["diff"]:
        print(f"{target.name} differs only in what is masked: a secret, or its quotes")
    print_diff(document["diff"])
    return 0


def print_diff(text: str) -> None:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in shown_lines(text).removesuffix("\n").split("\n") if text else []:
        colour = None if line.startswith(("+++", "---")) else colours.get(line[:1])
        print(paint(line, colour) if colour else line)


@click.command(
    epilog=epilog(
        "smoke qwen38 --gate switch",
        _0="every probe passed",
        _6="failed: the replies, or who gave them, are not right",
        _7="could not tell: unreachable, refused, or nothing proven",
    )
)
@lane_argument
@click.option("--gate", type=GATE, help="Default: quick.")
@common
def smoke(settings: Settings, lane: str | None, gate: str | None) -> int:
    """Judge LANE as it runs by real tool calls."""
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        document, run = service.smoke(ports, target, gate or "quick", say=say)
    if settings.as_json:
        emit(document)
    else:
        passed = run.verdict.passed
        text = f"{target.name}: {document['gate']} gate {document['outcome']} ({document['class']})"
        print(paint(text, "green" if passed else "red"))
        rows = [
            [f"  {p['name']}", p["outcome"], p["class"], f"{p['elapsed_s']:.2f}s", p["detail"]]
            for p in document["probes"]
        ]
        print(table(["  PROBE", "OUTCOME", "CLASS", "TOOK", "DETAIL"], rows))
        if run.verdict.outcome is Result.FAILED:
            print(f"next: lanectl rollback {target.name}")
    return exits.OF_RESULT[run.verdict.outcome]


@click.command()
@lane_argument
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until Ctrl-C.")
@common
def status(settings: Settings, lane: str | None, watch: bool) -> int:
    """Show every lane, or LANE: revision, program, readiness, load, and what is unfinished."""
    while True:
        config = load(find(settings.config))
        found: list[Document] = []
        for one in config.lanes_to_see(lane):
            with wiring.ports(config, one) as ports:
                found.append(service.status(ports, config, one))
        if watch and coloured():
            print("\033[H\033[2J", end="")
        if settings.as_json:
            emit(found)
        else:
            _print_status(found)
        if not watch:
            return 0
        try:
            time.sleep(WATCH_EVERY_S)
        except KeyboardInterrupt:
            return 0


def _print_status(found: list[Document]) -> None:
    rows = [
        [
            s["lane"],
            s["profile"] or "(not adopted)",
            short(s["sha256"]),
            "stable" if s["stable"] else "-",
            s["program"]["state"] if s["program"] else "?",
            {True: "ready", False: "not ready", None: "?"}[s["ready"]],
            _load(s),
            _last(s["last_smoke"]),
        ]
        for s in found
    ]
    header = ["LANE", "PROFILE", "REVISION", "STANDING", "PROGRAM", "API", "RUN/WAIT", "LAST SMOKE"]
    print(table(header, rows))
    for s in found:
        for colour, line in _remarks(s):
            print(paint(shown(f"  {s['lane']}: {line}"), colour))


def _load(lane: Document) -> str:
    running, waiting = (
        "?" if lane[key] is None else f"{lane[key]:.0f}" for key in ("running", "waiting")
    )
    return f"{running}/{waiting}"


def _last(smoke: Document | None) -> str:
    return f"{smoke['gate']} {smoke['outcome']}" if smoke else "-"


def _remarks(s: Document) -> list[tuple[str, str]]:
    name, remarks = s["lane"], []
    if s["unfinished"]:
        holder = s["unfinished_holder"]
        if holder:
            what = f"held by pid {holder.get('pid')} ({holder.get('who')})"
        else:
            what = f"its worker is dead; lanectl restart {name} or rollback {name} closes it"
        remarks.append(("yellow", f"{s['unfinished']} is in {s['unfinished_phase']}: {what}"))
    if s["quarantined"]:
        remarks.append(("red", f"quarantined: {s['quarantined']} (lanectl release {name})"))
    if s["drift"]:
        remarks.append(("red", f"the launcher is not what was recorded (lanectl adopt {name})"))
    if s["probation"]:
        remarks.append(("cyan", f"in probation until {s['probation']}"))
    if s["probation_lost"]:
        remarks.append(("yellow", f"its probation's worker is gone (lanectl restart {name})"))
    if alert := s["last_alert"]:
        told = f"alert of {alert['at'][:19]}Z: {alert['title']}: {alert['body']}"
        remarks.append(("yellow", told[:400]))
    if s["problem"]:
        remarks.append(("yellow", s["problem"]))
    if s["note"]:
        remarks.append(("dim", s["note"]))
    return remarks


@click.command()
@lane_argument
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 10000))
@common
def history(settings: Settings, lane: str | None, limit: int) -> int:
    """Show the switches of LANE, newest first."""
    config, target = opened(settings, lane)
    with wiring.ports(config, target) as ports:
        found = service.history(ports, target, limit)
    if settings.as_json:
        emit(found)
        return 0
    header = ["SWITCH", "AT", "FROM", "TO", "ENDED", "WHO", "WHY"]
    print(table(header, [_row(entry) for entry in found]))
    return 0


def _row(entry: dict[str, Any]) -> list[str]:
    sides = [f"{entry[k]['profile']} {short(entry[k]['sha256'])[:7]}" for k in ("from", "to")]
    who, why = entry["who"][:40], shown(entry["reason"])[:60]
    return [entry["switch"], entry["at"][:19], *sides, entry["phase"], who, why]
