"""What an edit asks for, and whether a server's words carry it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lanectl.core import flags
from lanectl.core.flags import Option, Parsed
from lanectl.core.vllm_flags import CONFIG, MAX_NUM_SEQS, MODEL, SPECULATIVE
from lanectl.errors import EditRefused


@dataclass(frozen=True)
class Edit:
    """A change to a launcher. In `flags`: text sets a value, True asks for the bare flag, False
    removes it. `env` sets values where the launcher's own defaults stand, or exports them."""

    speculative: Literal[False] | Mapping[str, Any] | None = None
    max_num_seqs: int | None = None
    model: str | None = None
    flags: Mapping[str, str | bool] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Words [start, end) of a server that speak of a goal. The value begins in word `value_at` at
    character `offset`; `value_at` is None where there is no value to replace."""

    start: int
    end: int
    value_at: int | None
    offset: int


@dataclass(frozen=True)
class Goal:
    """One setting: `flag` is to have the text `value`, no value (True), or to be gone (False)."""

    flag: str
    value: str | bool
    spelling: str
    asked: Mapping[str, Any] | None = None

    @property
    def label(self) -> str:
        return "speculation" if self.flag == SPECULATIVE else self.flag

    def touches(self, option: Option) -> bool:
        """Does this option speak of the goal's setting?"""
        if self.flag == SPECULATIVE:
            return flags.is_speculative(option.name)
        return option.name == self.flag

    def targets(self, own: Sequence[str]) -> list[Target]:
        """The words that speak of it, in order. The last one that has a value is kept and set."""
        parsed = flags.parse(own)
        found = [_target(o, self.flag, own) for o in parsed.options if self.touches(o)]
        if self.flag == MODEL and parsed.positionals:
            at = parsed.positionals[0]
            found.append(Target(at, at + 1, at, 0))
        return found

    def unmet(self, own: Sequence[str]) -> str | None:
        """Why these words do not carry the goal; None when they do, and say it once."""
        parsed, said = flags.parse(own), flags.read(own)
        mine = [o for o in parsed.options if self.touches(o)]
        if self.value is False:
            if mine:
                return f"{own[mine[0].start]} is still there"
            return _hidden(parsed, self.label)
        if self.flag == MODEL:
            return None if said.model == self.value and len(self.targets(own)) == 1 else "not set"
        if self.asked is not None:
            if said.speculative == flags.Unknown:
                return _hidden(parsed, self.label) or "what the server gets cannot be read"
            once = len({(o.name, o.path) for o in mine}) == len(mine)
            mixed = any(o.path for o in mine) and any(not o.path for o in mine)
            same = flags.same_json(said.speculative, dict(self.asked))
            return None if same and once and not mixed else "the server would get other settings"
        if len(mine) != 1 or mine[0].path:
            return f"{self.flag} is there {len(mine)} times" if mine else f"{self.flag} is missing"
        if any(at >= mine[0].start for at in parsed.wild):
            return _hidden(parsed, self.label)
        value = mine[0].value
        if self.value is True or value is True:
            return None if value is self.value else f"{self.flag} would get another value"
        return None if flags.same_value(value, str(self.value)) else "the value would be another"


def _target(option: Option, flag: str, own: Sequence[str]) -> Target:
    if option.name != flag or option.path or option.value is True:
        return Target(option.start, option.end, None, 0)
    if not option.inline:
        single = option.end == option.start + 2
        return Target(option.start, option.end, option.start + 1 if single else None, 0)
    word = own[option.start]
    return Target(option.start, option.end, option.start, len(word) - len(option.value))


def _hidden(parsed: Parsed, label: str) -> str | None:
    """Why the setting could still be there, out of sight."""
    if parsed.wild:
        return f"words that are known only at run time could set {label}"
    if parsed.named(CONFIG):
        return f"the file after --config could set {label}"
    return None


def goals(change: Edit) -> list[Goal]:
    """The goals of an edit, checked. Refuses names and values that no launcher can carry."""
    found: list[Goal] = []
    if change.model is not None:
        found.append(Goal(MODEL, _clean(change.model, "model"), MODEL))
    if change.max_num_seqs is not None:
        if change.max_num_seqs < 1:
            raise EditRefused("max_num_seqs must be at least 1", next_step="give a number from 1")
        found.append(Goal(MAX_NUM_SEQS, str(change.max_num_seqs), MAX_NUM_SEQS))
    for flag, value in change.flags.items():
        name = flags.canonical(_flag(flag))
        said: str | bool = value if isinstance(value, bool) else _clean(value, flag)
        found.append(Goal(name, _latin(said), flag))
    if change.speculative is False:
        found.append(Goal(SPECULATIVE, False, SPECULATIVE))
    elif change.speculative is not None:
        asked = dict(change.speculative)
        try:
            value = json.dumps(asked, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise EditRefused(
                f"the speculative settings are no JSON: {error}", next_step="give a JSON object"
            ) from None
        found.append(Goal(SPECULATIVE, value, SPECULATIVE, json.loads(value)))
    return [
        goal if goal.flag != MODEL else Goal(MODEL, _latin(goal.value), MODEL) for goal in found
    ]


def clean_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of an edit, checked, as internal text."""
    result: dict[str, str] = {}
    for name, value in env.items():
        if not (name.isidentifier() and name.isascii()) or name in ("IFS", "BASH_ENV", "SHELLOPTS"):
            raise EditRefused(
                f"{name!r} cannot be set in a launcher", next_step="give a NAME=VALUE"
            )
        result[name] = str(_latin(_clean(value, name)))
    return result


def _latin(value: str | bool) -> str | bool:
    return value if isinstance(value, bool) else value.encode().decode("latin-1")


def _clean(value: str, name: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        bad = True
    else:
        bad = any(ord(char) < 32 or ord(char) == 127 for char in value)
    if bad:
        raise EditRefused(
            f"the value of {name} holds control characters", next_step="give one line of text"
        )
    return value


def _flag(flag: str) -> str:
    body = flag.removeprefix("--") if flag.startswith("--") else flag.removeprefix("-")
    allowed = body[:1].isalnum() and all(c.isalnum() or c in "._-" for c in body)
    if not (flag.startswith("-") and allowed and body.isascii()):
        raise EditRefused(f"{flag!r} is no flag", next_step="give it as --some-flag")
    return flag
