"""What a vLLM command line says: flag families, abbreviations, duplicates, dotted settings.

The rules are argparse's with vLLM's additions: underscores equal dashes, an unambiguous beginning
of a flag stands for the flag, the last of several wins, `--flag.key value` words are joined into
one JSON object which then replaces what `--flag` said before. Words may hold the marks of
`lanectl.core.command` where a launcher's text leaves them open; a live command line has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from lanectl.core.command import MARKS, WORD, WORDS, locate
from lanectl.core.vllm_flags import (
    ALIASES,
    CONFIG,
    FAMILY,
    KNOWN,
    MANY,
    MAX_NUM_SEQS,
    MODEL,
    SHORTCUTS,
    SPECULATIVE,
    SWITCHES,
)

Unknown: Final = "unknown"
Speculative = dict[str, Any] | Literal[False] | Literal["unknown"]

_SHORTEST: Final = 4  # `--s`: shorter beginnings fit dozens of flags


@dataclass(frozen=True)
class Option:
    """One flag of a command line: words [start, end) of it.

    `name` is canonical and without the dotted part, which stands in `path`. `value` is True where
    the flag has none. `inline` says that the value follows a `=` in the same word.
    """

    name: str
    path: tuple[str, ...]
    value: str | Literal[True]
    start: int
    end: int
    inline: bool


@dataclass(frozen=True)
class Parsed:
    """A server's words, sorted: flags, words that belong to none, words that could be anything."""

    options: tuple[Option, ...]
    positionals: tuple[int, ...]
    wild: tuple[int, ...]

    def named(self, name: str) -> tuple[Option, ...]:
        return tuple(o for o in self.options if o.name == name)


@dataclass(frozen=True)
class ServerSettings:
    """What a command line asks of the server. `flags` has canonical names; the last one wins."""

    model: str | None
    port: int | None
    speculative: Speculative
    max_num_seqs: int | Literal["unknown"] | None
    flags: Mapping[str, str | Literal[True]]


@dataclass(frozen=True)
class Asked:
    """What a live command line must carry. In `flags`: True is "there", False is "not there"."""

    speculative: Literal[False] | Mapping[str, Any] | None = None
    max_num_seqs: int | None = None
    model: str | None = None
    flags: Mapping[str, str | bool] = field(default_factory=dict)


def find_server(argv: Sequence[str]) -> int | None:
    """The index of the first word that is the server's own; None when argv starts no server."""
    found = locate(argv)
    return None if found is None or found.script is not None else found.index


def canonical(flag: str) -> str:
    """The one long name of a flag as typed: dashes, aliases and abbreviations resolved.

    A beginning that fits several flags stays as it is; so does a flag that is not known here.
    """
    head, dot, tail = flag.partition(".")
    if head.startswith("--"):
        head = "--" + head[2:].replace("_", "-")
    head = ALIASES.get(head, head)
    if head not in KNOWN and head.startswith("--") and len(head) >= _SHORTEST:
        fits = [known for known in KNOWN if known.startswith(head)]
        if len(fits) == 1:
            head = fits[0]
    return head + dot + tail


def is_speculative(name: str) -> bool:
    """Does this canonical flag belong to the family that sets up speculation?

    True also for beginnings that fit only flags of the family: an older vLLM, which knows fewer of
    them, takes such a beginning for `--speculative-config`.
    """
    head = name.partition(".")[0]
    if head in FAMILY or head.startswith("--speculative-"):
        return True
    fits = [known for known in KNOWN if known.startswith(head)] if len(head) >= _SHORTEST else []
    return head not in KNOWN and bool(fits) and all(known in FAMILY for known in fits)


def parse(words: Sequence[str]) -> Parsed:
    """Sort a server's own words (those after `serve` or the module's name)."""
    options: list[Option] = []
    positionals: list[int] = []
    wild = [at for at, word in enumerate(words) if WORDS in word]
    at = 0
    while at < len(words):
        word = words[at]
        if not _is_flag(word):
            if word.startswith((WORD, WORDS)) and at > 0:
                wild.append(at)
            else:
                positionals.append(at)
            at += 1
            continue
        key, inline, text = word.partition("=")
        name, *path = canonical(key).split(".")
        if word.startswith("-O") and not word.startswith("-O.") and len(word) > 2:
            name, path, inline, text = "--compilation-config", [], "=", word[2:]
        value: str | Literal[True] = text if inline else True
        end = at + 1
        bare = name in SWITCHES or name.startswith("--no-")
        if not inline and not bare and end < len(words) and not _is_flag(words[end]):
            end += 1
            while name in MANY and end < len(words) and not _is_flag(words[end]):
                end += 1
            value = " ".join(words[at + 1 : end])
        options.append(Option(name, tuple(path), value, at, end, bool(inline)))
        at = end
    return Parsed(tuple(options), tuple(positionals), tuple(sorted(set(wild))))


def settings(argv: Sequence[str]) -> ServerSettings:
    """Read a whole command line, program words included; all empty when it starts no server."""
    at = find_server(argv)
    return read(() if at is None else argv[at:])


def read(words: Sequence[str]) -> ServerSettings:
    """Read a server's own words."""
    parsed = parse(words)
    flags: dict[str, str | Literal[True]] = {}
    for option in parsed.options:
        if not option.path:
            flags[option.name] = option.value
    for name, joined in _dotted(parsed.options).items():
        flags[name] = json.dumps(joined)
    model = words[parsed.positionals[0]] if parsed.positionals else flags.get(MODEL)
    port = flags.get("--port")
    return ServerSettings(
        model=model if isinstance(model, str) else None,
        port=int(port) if isinstance(port, str) and port.isascii() and port.isdigit() else None,
        speculative=_speculative(parsed),
        max_num_seqs=_max_num_seqs(parsed),
        flags=MappingProxyType(flags),
    )


def mismatches(argv: Sequence[str], asked: Asked) -> list[str]:
    """Say what a live command line lacks of what was asked; [] when it carries all of it."""
    at = find_server(argv)
    if at is None:
        return ["the command line starts no vLLM server"]
    parsed, live = parse(argv[at:]), read(argv[at:])
    wrong: list[str] = []
    if asked.speculative is False:
        wrong += [
            f"speculation must be off, but {argv[at + option.start]} is there"
            for option in parsed.options
            if is_speculative(option.name)
        ]
        if live.speculative == Unknown and not wrong:
            wrong.append(f"speculation must be off, but {CONFIG} can turn it on")
    elif asked.speculative is not None:
        wrong += _speculative_mismatches(live.speculative, asked.speculative)
    if asked.max_num_seqs is not None and live.max_num_seqs != asked.max_num_seqs:
        has = "not there" if live.max_num_seqs is None else live.max_num_seqs
        wrong.append(f"{MAX_NUM_SEQS} must be {asked.max_num_seqs}, but is {has}")
    if asked.model is not None and live.model != asked.model:
        wrong.append(f"the model must be {asked.model}, but is {live.model or 'not there'}")
    for flag, value in asked.flags.items():
        wrong += _flag_mismatches(flag, live.flags.get(canonical(flag)), value)
    return wrong


def same_value(one: str, other: str) -> bool:
    """Do two texts of a flag's value mean the same: as text, or as JSON (numbers are JSON too)?"""
    if one == other:
        return True
    try:
        return same_json(json.loads(one), json.loads(other))
    except ValueError:
        return False


def same_json(one: Any, other: Any) -> bool:
    """Equal as JSON values: true is not 1, the order of keys does not count."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _is_flag(word: str) -> bool:
    if len(word) < 2 or word[0] != "-":
        return False
    return not (word[1].isdigit() or (word[1] == "." and word[2:3].isdigit()))  # -1 is a value


def _dotted(options: Iterable[Option]) -> dict[str, dict[str, Any]]:
    """Join `--flag.key value` words into one object a flag, as vLLM does before argparse runs."""
    joined: dict[str, dict[str, Any]] = {}
    for option in options:
        if not option.path:
            continue
        into = joined.setdefault(option.name, {})
        for key in option.path[:-1]:
            deeper = into.get(key)
            if not isinstance(deeper, dict):
                deeper = into[key] = {}
            into = deeper
        last, value = option.path[-1], _loose(option.value)
        if last.endswith("+"):  # `--flag.key+ a,b` is a list
            last, value = last[:-1], str(option.value).split(",")
        into[last] = value
    return joined


def _loose(value: str | Literal[True]) -> Any:
    """A value as JSON where it is JSON, else as text."""
    if value is True:
        return True
    try:
        return json.loads(value)
    except ValueError:
        return value


def _speculative(parsed: Parsed) -> Speculative:
    family = [o for o in parsed.options if is_speculative(o.name)]
    if parsed.wild or any(o.value is not True and MARKS.intersection(o.value) for o in family):
        return Unknown
    whole = [o for o in family if o.name == SPECULATIVE and not o.path]
    dotted = _dotted(family).get(SPECULATIVE)
    if parsed.named(CONFIG) and not (whole or dotted):
        return Unknown  # the file can set it, and only a flag here would win over the file
    result: dict[str, Any] = {}
    if dotted is not None:
        result.update(dotted)
    elif whole:
        said = whole[-1].value
        value = None if said == "None" else _loose(said)
        if value is not None and not isinstance(value, dict):
            return Unknown
        result.update(value or {})
        if not value and len(family) == len(whole):
            return False
    for option in family:
        if option.name in SHORTCUTS:
            result[SHORTCUTS[option.name]] = _loose(option.value)
        elif option.name != SPECULATIVE:
            if option.name not in FAMILY and not option.name.startswith("--speculative-"):
                return Unknown  # a beginning that fits several flags of the family
            result.setdefault(option.name[2:].replace("-", "_"), _loose(option.value))
    return result if family else False


def _max_num_seqs(parsed: Parsed) -> int | Literal["unknown"] | None:
    said = parsed.named(MAX_NUM_SEQS)
    last_wild = max(parsed.wild, default=-1)
    if not said:
        return Unknown if parsed.wild or parsed.named(CONFIG) else None
    value = said[-1].value
    if last_wild >= said[-1].start or value is True or not (value.isascii() and value.isdigit()):
        return Unknown
    return int(value)


def _speculative_mismatches(live: Speculative, asked: Mapping[str, Any]) -> list[str]:
    if not isinstance(live, dict):
        state = "off" if live is False else "unknown"
        return [f"speculation must be {json.dumps(dict(asked))}, but is {state}"]
    return [
        f"speculative {key} must be {json.dumps(value)}, "
        f"but is {json.dumps(live[key]) if key in live else 'not there'}"
        for key, value in asked.items()
        if key not in live or not (same_json(live[key], value) or str(live[key]) == str(value))
    ]


def _flag_mismatches(flag: str, live: str | Literal[True] | None, asked: str | bool) -> list[str]:
    if asked is False:
        return [] if live is None else [f"{flag} must not be there"]
    if live is None:
        return [f"{flag} is not there"]
    if asked is True:
        return [] if live is True else [f"{flag} must have no value, but has {live}"]
    if live is True or not same_value(live, asked):
        return [f"{flag} must be {asked}, but is {'without a value' if live is True else live}"]
    return []
