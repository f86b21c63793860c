"""The JSON that the store keeps: plans, and whatever a receipt or a verdict is made of.

A journal must be recoverable after an upgrade of lanectl, so reading a plan forgives: keys that
this version does not know are passed over, keys that it misses take the default of their field.
JSON has no tuples: one inside a profile's `speculative` comes back as a list, as TOML gave it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import Any

from lanectl.core.lane import Kind, Lane, Plan, Profile, SmokeSettings


def to_json(value: object) -> str:
    """Compact JSON; dataclasses and mappings become objects, sets sorted lists.

    Text is escaped to ASCII, which carries lone surrogates (undecodable bytes) through unharmed.
    """
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: object) -> object:
    """What `json` cannot write by itself; `dataclasses.asdict` chokes on read-only mappings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be written to the store as JSON")


def plan_to_json(plan: Plan) -> str:
    """The whole plan as one JSON object, its lane and smoke settings inside.

    Of the lane's profiles only those that the plan names: recovery needs no other, and their
    environment may hold secrets.
    """
    named = (plan.from_profile, plan.to_profile)
    profiles = {name: plan.lane.profiles[name] for name in named if name in plan.lane.profiles}
    return to_json(replace(plan, lane=replace(plan.lane, profiles=profiles)))


def plan_from_json(text: str) -> Plan:
    """The plan that `plan_to_json` wrote, whichever version of lanectl that was.

    Raises ValueError, KeyError or TypeError for what is no plan.
    """
    plan = json.loads(text)
    lane = plan["lane"]
    smoke = SmokeSettings(**_known(SmokeSettings, lane.get("smoke", {})))
    profiles = {
        name: Profile(**_known(Profile, profile))
        for name, profile in lane.get("profiles", {}).items()
    }
    lane = Lane(**_known(Lane, lane) | {"smoke": smoke, "profiles": profiles})
    return Plan(**_known(Plan, plan) | {"kind": Kind(plan["kind"]), "lane": lane})


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
