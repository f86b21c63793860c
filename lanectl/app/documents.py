"""Rows into the JSON documents of design section 6. `docs/schemas/` describes each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lanectl.core.lane import Kind, Revision
from lanectl.core.verdict import Verdict
from lanectl.ports import LauncherFile, Ports, SwitchRow

Document = dict[str, Any]

INTERNAL = frozenset({"staged", "others_before", "log_mark"})
"""What the engine keeps in a receipt for itself."""


def iso(at: datetime | float | None) -> str | None:
    """ISO 8601 in UTC, to the millisecond; None stays None."""
    if at is None:
        return None
    if not isinstance(at, datetime):
        at = datetime.fromtimestamp(at, UTC)
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def verdict_json(verdict: Verdict) -> Document:
    """A verdict as the surfaces print it (design section 6)."""
    return {
        "outcome": verdict.outcome.value,
        "class": verdict.cls.value,
        "probes": [
            {
                "name": probe.name,
                "class": probe.cls.value,
                "outcome": probe.outcome.value,
                "elapsed_s": round(probe.elapsed_s, 3),
                "detail": probe.detail,
            }
            for probe in verdict.probes
        ],
    }


def side(ports: Ports, lane: str, sha256: str, profile: str) -> Document:
    """One side of a change, with the standing that its revision has now."""
    revision = ports.store.revision(lane, sha256)
    return {"profile": profile, "sha256": sha256, "stable": bool(revision and revision.stable)}


def revision_side(revision: Revision) -> Document:
    return {
        "profile": revision.profile,
        "sha256": revision.sha256,
        "stable": revision.stable,
    }


def switch_document(ports: Ports, row: SwitchRow) -> Document:
    plan = row.plan
    return {
        "switch": row.id,
        "lane": plan.lane.name,
        "kind": str(plan.kind),
        "phase": str(row.phase),
        "from": side(ports, plan.lane.name, plan.from_sha256, plan.from_profile),
        "to": side(ports, plan.lane.name, plan.to_sha256, plan.to_profile),
        "verdict": row.verdict,
        "confirmation": row.confirmation,
        "receipt": receipt_json(row.receipt),
        "events": [
            {
                "seq": event.seq,
                "phase": str(event.phase),
                "outcome": event.outcome,
                "at": iso(event.at),
                "elapsed_s": event.elapsed_s,
                "detail": event.detail.get("detail", ""),
                **({"log": event.detail["log"]} if event.detail.get("log") else {}),
            }
            for event in row.events
        ],
        "reason": row.reason or plan.reason or "",
        "next": next((e.detail["next"] for e in row.events if e.detail.get("next")), ""),
    }


def receipt_json(receipt: Mapping[str, Any]) -> Document:
    """A receipt as it is shown: without the engine's own notes, start times as ISO 8601."""
    shown = {key: value for key, value in receipt.items() if key not in INTERNAL}
    if program := shown.get("program"):
        shown["program"] = {
            when: run and {**run, "started": iso(run["started"])} for when, run in program.items()
        }
    return shown


def still_document(
    lane: str,
    phase: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    kind: Kind = Kind.SWITCH,
    receipt: Mapping[str, Any] | None = None,
) -> Document:
    """The same shape for what left no journal: `unchanged` and `dry-run`."""
    return {
        "switch": None,
        "lane": lane,
        "kind": str(kind),
        "phase": phase,
        "from": dict(old),
        "to": dict(new),
        "verdict": None,
        "confirmation": None,
        "receipt": dict(receipt or {}),
        "events": [],
        "reason": "",
        "next": "",
    }


def history_entry(ports: Ports, row: SwitchRow) -> Document:
    plan = row.plan
    return {
        "switch": row.id,
        "kind": str(plan.kind),
        "at": iso(row.at),
        "from": side(ports, plan.lane.name, plan.from_sha256, plan.from_profile),
        "to": side(ports, plan.lane.name, plan.to_sha256, plan.to_profile),
        "phase": str(row.phase),
        "reason": row.reason or plan.reason or "",
        "who": plan.who,
    }


def file_side(ports: Ports, lane: str, deployed: LauncherFile) -> Document:
    known = ports.store.revision(lane, deployed.sha256)
    if known:
        return revision_side(known)
    return {"profile": None, "sha256": deployed.sha256, "stable": False}
