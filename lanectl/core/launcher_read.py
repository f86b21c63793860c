"""Read a launcher: its servers, what they are told, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal

from lanectl.core import flags
from lanectl.core.bash import Shell
from lanectl.core.bash_commands import Run
from lanectl.core.bash_state import State
from lanectl.core.bash_text import Hole, Word, known, made
from lanectl.core.command import MARKS
from lanectl.core.launcher_findings import (
    Finding,
    note_findings,
    text_findings,
    tree_findings,
)
from lanectl.core.vllm_flags import CONFIG

DEFAULT_PORT: Final = 8000

BLOCKING: Final = frozenset(
    (
        *("bom", "crlf", "nbsp", "nul-byte", "curly-quotes", "empty-file", "unterminated-heredoc"),
        *("backslash-space", "syntax-error", "unread", "flags-not-reached", "too-many-paths"),
    )
)
"""Findings with which nothing about the script is proven, so no edit is."""

_MISREAD: Final = BLOCKING - {"flags-not-reached", "bom", "empty-file"}
"""Those of them with which the words read here may not be the words that bash passes."""


@dataclass(frozen=True)
class Server:
    """A server that the launcher starts; unknown words of `argv` are the script's own text."""

    line: int
    argv: tuple[str, ...]
    port: int | None


@dataclass(frozen=True)
class Group:
    """One server, with a run for each path on which it starts."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def container(self) -> bool:
        return any("container" in run.around for run in self.runs)

    @cached_property
    def settings(self) -> flags.ServerSettings:
        """What holds on every path; what differs is unknown."""
        each = [run_settings(run) for run in self.runs]
        merged = each[0]
        for other in each[1:]:
            if not _same(merged.speculative, other.speculative):
                merged = replace(merged, speculative=flags.Unknown)
            if merged.max_num_seqs != other.max_num_seqs:
                merged = replace(merged, max_num_seqs=flags.Unknown)
            if merged.port != other.port:
                merged = replace(merged, port=None)
        return merged

    def listens_on(self, port: int) -> bool:
        said = self.settings.flags.get("--port")
        if said is None:
            return port == DEFAULT_PORT
        return self.settings.port == port

    def server(self) -> Server:
        words = [shown(word) for word in self.first.words]
        skip = 1 if words[0] == "exec" else 0
        if skip and words[1:2] == ["-a"]:
            skip = 3
        argv = tuple(words[skip:])
        return Server(self.first.line, argv, self.settings.port)


def own_words(run: Run) -> list[str]:
    """The server's own words, with marks where they are unknown."""
    return [word.text for word in run.words[run.index :]]


def run_settings(run: Run) -> flags.ServerSettings:
    """What one run's words say, with unknown parts as the script's own text."""
    own = run.words[run.index :]
    said = flags.read([word.text for word in own])
    texts: dict[str, str | Literal[True]] = {}
    for option in flags.parse([word.text for word in own]).options:
        if option.value is True or option.path:
            continue
        pieces = [shown(word) for word in own[option.start : option.end]]
        texts[option.name] = pieces[0].partition("=")[2] if option.inline else " ".join(pieces[1:])
    merged = {
        name: utf8(value) if isinstance(value, str) and not MARKS & set(value) else value
        for name, value in said.flags.items()
    }
    for name, value in merged.items():
        if isinstance(value, str) and MARKS & set(value):
            merged[name] = texts.get(name, "?")
    model = said.model
    if model is not None:
        at = next((n for n, word in enumerate(own) if word.text == model), None)
        model = shown(own[at]) if at is not None else utf8_or_texts(model, texts)
    view: Mapping[str, str | Literal[True]] = MappingProxyType(merged)
    return replace(said, flags=view, model=model, speculative=_utf8_json(said.speculative))


def utf8_or_texts(model: str, texts: Mapping[str, str | Literal[True]]) -> str:
    """The model given as `--model`: as text, or as the script's own text where unknown."""
    said = texts.get("--model", "?") if MARKS & set(model) else utf8(model)
    return said if isinstance(said, str) else "?"


def shown(word: Word) -> str:
    return utf8(word.shown)


def utf8(text: str) -> str:
    """Internal text, which is latin-1, as what the bytes say in UTF-8."""
    return text.encode("latin-1", "replace").decode("utf-8", "replace")


def _utf8_json(value: flags.Speculative) -> flags.Speculative:
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = json.loads(utf8(json.dumps(value, ensure_ascii=False)))
    return result


def _same(one: flags.Speculative, other: flags.Speculative) -> bool:
    return flags.same_json(one, other)


def _started_with(environment: Mapping[str, str]) -> State:
    """The state in which bash begins: each variable set and exported, its bytes as they are."""
    raw = {
        name: value.encode("utf-8", "surrogateescape").decode("latin-1")
        for name, value in environment.items()
    }
    return State(vars={name: made(value) for name, value in raw.items()}, exported=frozenset(raw))


class Reading:
    """A launcher read once.

    environment: what it is started with, where that is known; without it every default holds.
    """

    def __init__(self, source: bytes, environment: Mapping[str, str] | None = None) -> None:
        self.text = source.decode("latin-1")
        self.shell = Shell(self.text)
        self.shell.interpret(_started_with(environment or {}))
        self.groups = _group(self.shell.runs)
        self.findings = self._findings()

    def misread(self) -> bool:
        """May bash pass other words than those read here?"""
        return any(finding.code in _MISREAD for finding in self.findings)

    def blocking(self) -> Finding | None:
        return next((f for f in self.findings if f.code in BLOCKING), None)

    def pick(self, port: int | None) -> list[Group]:
        """The servers that a port leaves to choose from."""
        if port is None:
            return self.groups
        return [group for group in self.groups if group.listens_on(port)]

    def _findings(self) -> tuple[Finding, ...]:
        found = text_findings(self.text) + tree_findings(self.shell) + note_findings(self.shell)
        for group in self.groups:
            if group.first.reached:
                found += _around(group)
                found += [f for run in group.runs for f in self._words(run)]
            else:
                message = (
                    "this server is not started on any path that lanectl can follow: it stands in "
                    "a branch or a function that the launcher's defaults never reach"
                )
                found.append(Finding("info", "server-not-reached", group.first.line, message))
        if not any(group.first.reached for group in self.groups) and self.text.strip():
            message = (
                "no vLLM server is started here that lanectl can read (`vllm serve` or "
                "`python -m vllm.entrypoints.openai.api_server`)"
            )
            found.append(Finding("error", "no-server", 1, message))
        if len(self.groups) > 1:
            lines = ", ".join(str(group.first.line) for group in self.groups)
            message = f"several servers in one file (lines {lines}): name one by its --port"
            found.append(Finding("warning", "several-servers", self.groups[1].first.line, message))
        unique = dict.fromkeys(replace(f, message=utf8(f.message)) for f in found)
        return tuple(sorted(unique, key=lambda f: (f.line, f.code)))

    def _words(self, run: Run) -> Iterator[Finding]:
        own = run.words[run.index :]
        parsed = flags.parse([word.text for word in own])
        if parsed.named(CONFIG):
            message = (
                "the server also reads settings from the file after --config; lanectl does not. "
                "Flags given here win over the file"
            )
            yield Finding("warning", "config-file", run.line, message)
        for name in dict.fromkeys(o.name for o in parsed.options if not o.path):
            same = [o for o in parsed.named(name) if not o.path]
            if len(same) > 1:
                message = f"{name} is there {len(same)} times: the last one wins. Remove the others"
                line = self._line(own[same[-1].start], run)
                yield Finding("warning", "duplicate-flag", line, message)
        for option in parsed.options:
            if option.path or not option.name.endswith(("-config", "-overrides", "-kwargs")):
                continue
            if option.name in (CONFIG, "--generation-config") or option.value is True:
                continue
            yield from self._json(option, own, run)
        for at in parsed.wild:
            hole = next((p for p in own[at].pieces if isinstance(p, Hole)), None)
            if hole is not None and hole.kind != "plain":
                message = (
                    f"{own[at].shown} could hold any flags: {hole.cause}. What is not set after it "
                    "is unknown"
                )
                yield Finding("warning", "unknown-words", hole.line or run.line, message)

    def _json(self, option: flags.Option, own: Sequence[Word], run: Run) -> Iterator[Finding]:
        word = own[option.end - 1]
        text = known(word.pieces)
        value = str(option.value)
        if text is None or (run.frame is None and not word.spans) or MARKS & set(value):
            return
        if value.startswith("{") and _is_json(utf8(value)):
            return
        line = self._line(word, run)
        start, end = word.spans[-1]
        source = "" if run.frame is not None else self.text[start:end]
        written = source.partition("=")[2] if option.inline else source
        if not (value.lstrip("'\"").startswith(("{", "[")) or written.startswith(("{", '"{'))):
            return  # a file name, `None`, a plain word
        if written.startswith("{"):
            message = (
                f"the JSON after {option.name} is not quoted: bash takes its quotes and braces "
                f"away and passes {utf8(value)}. Put it in single quotes"
            )
            yield Finding("error", "unquoted-json", line, message)
        else:
            message = (
                f"{option.name} gets {utf8(value)}, which is no JSON: the server stops at once. "
                "Put the JSON in single quotes, with double quotes inside"
            )
            yield Finding("error", "bad-json-quotes", line, message)

    def _line(self, word: Word, run: Run) -> int:
        if run.frame is not None or not word.spans:
            return run.line
        return self.text.count("\n", 0, word.spans[-1][0]) + 1


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _group(runs: Sequence[Run]) -> list[Group]:
    """Servers in the order of the file. Rounds of a loop with the same words are one server."""
    by_key: dict[tuple[int, ...], list[Run]] = {}
    for run in runs:
        by_key.setdefault(run.key, []).append(run)
    merged: list[list[Run]] = []
    for some in by_key.values():
        argv = [[w.shown for w in run.words] for run in some]
        twin = next(
            (
                other
                for other in merged
                if other[0].key[-1] == some[0].key[-1]
                and "loop" in other[0].around
                and [[w.shown for w in run.words] for run in other] == argv
            ),
            None,
        )
        if twin is None:
            merged.append(some)
    return [Group(tuple(some)) for some in sorted(merged, key=lambda some: some[0].line)]


_AROUND: Final[dict[str, tuple[Literal["error", "warning"], str, str]]] = {
    "loop": (
        "error",
        "loop",
        "the server runs in a loop: supervisord cannot see it exit, and a stop leaves the loop to "
        "start it again. Let supervisord do the restarts (`autorestart`)",
    ),
    "background": (
        "error",
        "background",
        "the server runs in the background (`&`): supervisord watches the script, not the server. "
        "Start it with `exec` as the last command",
    ),
    "pipeline": (
        "warning",
        "pipeline",
        "the server runs in a pipe: signals reach the script, not the server, and its exit code is "
        "lost. Let supervisord write the log (`stdout_logfile`), or use `exec > >(tee …)`",
    ),
    "container": (
        "error",
        "container",
        "the server runs in a container, which outlives its client: supervisord stops the client "
        "only. lanectl shows such a launcher and does not manage it",
    ),
    "detached": (
        "error",
        "detached",
        "the server is started detached (screen, tmux, systemd-run …): supervisord never sees it. "
        "Start it with `exec`",
    ),
    "remote": (
        "error",
        "remote",
        "the server runs on another machine: supervisord watches the connection only. Give the "
        "lane that host instead",
    ),
    "sudo": (
        "warning",
        "sudo",
        "the server runs as another user through sudo: signals may not reach it. Use supervisord's "
        "`user=`",
    ),
    "new-session": (
        "warning",
        "new-session",
        "setsid gives the server a session and a group of its own: supervisord's stop does not "
        "reach it. Remove setsid",
    ),
}


def _around(group: Group) -> list[Finding]:
    run = group.first
    found = [
        Finding(severity, code, run.line, message)
        for name, (severity, code, message) in _AROUND.items()
        if name in run.around
    ]
    if "exec" not in run.around and not run.around & {"background", "container", "detached"}:
        message = (
            "no `exec`: the server is a child of the script, so a stop ends the script and leaves "
            "the server running on its port. Put `exec` before the command"
        )
        found.append(Finding("warning", "no-exec", run.line, message))
    return found
