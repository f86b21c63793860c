"""Simple commands of the abstract interpreter: words, function calls, programs, servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from lanectl.core.bash_builtins import Builtins, strip_head
from lanectl.core.bash_doubts import SHELLS, is_self
from lanectl.core.bash_state import State, Value, first
from lanectl.core.bash_text import Hole, Text, Word, known
from lanectl.core.bash_words import line
from lanectl.core.command import Location, basename, locate

MAX_DEPTH: Final = 20
_EXPORTS_ALL: Final = re.compile(r"\bset\s+-\w*a|allexport")
_QUIET: Final = frozenset(("echo", "printf", "logger", ":", "true", "false", "[", "test"))
"""Programs that may see other words after an edit without harm."""


@dataclass(frozen=True)
class Site:
    """A command in the source to which words can be added: the ranges of its words, in order."""

    items: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Run:
    """A server that one path starts.

    `key` tells servers apart: the command and the calls and rounds it was reached through. `around`
    names what stands around it: `exec`, `loop`, `background`, `pipeline`. `sites` are the commands
    that it and the function calls around it were written as, innermost first. `frame` is the text
    inside a word (`bash -c 'text'`) that the command was read from, and all places are places in
    it; None for a command of the file itself.
    """

    key: tuple[int, ...]
    line: int
    words: tuple[Word, ...]
    index: int
    around: frozenset[str]
    sites: tuple[Site, ...]
    vars: dict[str, Value | None]
    exported: frozenset[str]
    prefix: dict[str, Text]
    frame: Text | None = None
    reached: bool = True


class CommandRunner(Builtins):
    """Runs simple commands. The control flow is in `lanectl.core.bash.Shell`."""

    def __init__(self, source: str, frame: Text | None = None) -> None:
        super().__init__(source)
        self.frame = frame
        self.runs: list[Run] = []
        self.effects: list[tuple[str, ...]] = []
        self.around: list[str] = []
        self.rounds: list[int] = []
        self.decided: list[bool | None] = []
        self.sites: list[Site] = []
        self.base_line = 0

    def run_nodes(self, nodes: Sequence[Node], states: list[State]) -> list[State]:
        """Run statements in all states."""
        raise NotImplementedError

    def command(
        self, node: Node, extra: Sequence[Node], body: Text | None, state: State
    ) -> list[State]:
        """A `command` node. `extra` are words that stand after redirections, `body` is the
        here-document it reads."""
        self.visited.add(node.start_byte)
        prefix: dict[str, Text] = {}
        items: list[Node] = []
        redirects: list[Node] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, value = self.assign(child, state)
                prefix[name] = first(value)
            elif child.type in ("file_redirect", "herestring_redirect"):
                redirects.append(child)
                items += self._after_target(child) if child.type == "file_redirect" else []
            elif child.is_named:
                items.append(child.children[0] if child.type == "command_name" else child)
        self._check_gaps(node, items, redirects)
        items += extra
        items.sort(key=lambda n: n.start_byte)
        found: list[Word] = []
        groups = self._word_groups(items)
        for group in groups:
            found += self._group_words(group, state)
        site = Site(tuple((g[0].start_byte, g[-1].end_byte) for g in groups))
        if not found:
            state.vars.update(prefix)
            state.status = True
            return [state]
        return self._execute(node, found, prefix, site, body, state)

    def _after_target(self, redirect: Node) -> list[Node]:
        """Words after a redirection's target lie inside its node, yet belong to the command."""
        targets = [c for c in redirect.children if c.is_named and c.type != "file_descriptor"]
        return targets[1:]

    def redirect_words(self, redirect: Node) -> list[Node]:
        if redirect.type == "file_redirect":
            return self._after_target(redirect)
        if redirect.type == "heredoc_redirect":
            found = redirect.children_by_field_name("argument")
            for inner in redirect.children_by_field_name("redirect"):
                found += self._after_target(inner)
            return found
        return []

    def _check_gaps(self, node: Node, items: Sequence[Node], redirects: Sequence[Node]) -> None:
        nodes = sorted(
            [*items, *redirects, *(c for c in node.children if c.type == "variable_assignment")],
            key=lambda n: n.start_byte,
        )
        at = node.start_byte
        for inner in nodes:
            gap = self.source[at : inner.start_byte].replace("\\\n", "").strip(" \t")
            if gap and at <= inner.start_byte:
                self.notes.find("unread", line(inner), gap)
            at = max(at, inner.end_byte)
        while self.source[at : at + 1] in (" ", "\t") or self.source.startswith("\\\n", at):
            at += 2 if self.source[at] == "\\" else 1
        if self.source[at : at + 1] == "\\":
            self.notes.find("unread", self.source.count("\n", 0, at) + 1, "\\")

    def _execute(
        self,
        node: Node,
        found: list[Word],
        prefix: dict[str, Text],
        site: Site,
        body: Text | None,
        state: State,
    ) -> list[State]:
        name = found[0].text
        if name in state.functions:
            return self._call(name, found[1:], prefix, site, node, state)
        if name in ("command", "builtin") and len(found) > 1 and not found[1].text.startswith("-"):
            found, name = found[1:], found[1].text
        if name in ("declare", "typeset", "local", "export", "readonly"):
            self.notes.find("unread", line(node), name)  # behind `builtin`, or quoted
        is_exec = name == "exec"
        if is_exec and len(found) == 1:
            return [state]  # only redirections
        builtin = None if is_exec else self._builtin(name, found, node, body, state)
        if builtin is not None:
            return builtin
        self._program(node, found, prefix, site, is_exec, state)
        if is_exec:
            state.flow = "exit"
        state.status = None
        return [state]

    def _program(
        self,
        node: Node,
        found: list[Word],
        prefix: dict[str, Text],
        site: Site,
        is_exec: bool,
        state: State,
    ) -> None:
        texts = [word.text for word in found]
        place = locate(texts)
        if place is None:
            if basename(texts[0]) not in _QUIET:
                effect = tuple(word.shown for word in found)
                if "loop" in self.around:  # each round counts
                    effect = (
                        *effect,
                        "\0",
                        str(sum(e[: len(effect)] == effect for e in self.effects)),
                    )
                self.effects.append(effect)
            self._check_self(node, found, is_exec)
            return
        if place.doubt is not None:
            self.notes.find("unread", line(node), found[place.doubt].shown)
        around = {*self.around, *place.via} | ({"exec"} if is_exec else set())
        if place.script is not None:
            inner = found[place.script].pieces
            if known(inner) is None:
                self.notes.find("opaque-script", line(node), found[place.script].shown)
                self.notes.find("unread", line(node), found[place.script].shown)
                return
            outer, self.around = self.around, sorted(around)
            fresh = State(vars={n: state.vars.get(n) for n in state.exported})
            fresh.vars.update({**prefix, **_env_words(found, place)})
            if _EXPORTS_ALL.search(self.source):
                fresh.vars = dict(state.vars)
                self._fog(fresh, "set -a", line(node))
            if place.script + 1 < len(found):
                cause = "the words after the text are its arguments, which lanectl does not follow"
                fresh.params = (Word((Hole("$@", cause, line(node), "words"),)),)
                fresh.vars["0"] = (Hole("$0", cause, line(node), "words"),)
            self.run_text(inner, fresh, line(node))
            self.around = outer
            return
        if any(basename(text) in ("xargs", "parallel") for text in texts[: place.index]):
            cause = "words come from another program's output"
            found = [*found, Word((Hole("…", cause, line(node), "words"),))]
        self.runs.append(
            Run(
                key=(*self.rounds, node.start_byte),
                line=self.base_line or line(node),
                words=tuple(found),
                index=place.index,
                around=frozenset(around),
                sites=(site, *reversed(self.sites)),
                vars=dict(state.vars),
                exported=state.exported,
                prefix={**_env_words(found, place), **prefix},
                frame=self.frame,
            )
        )

    def _check_self(self, node: Node, found: Sequence[Word], is_exec: bool) -> None:
        """A script that starts itself again gets arguments, which are then not none."""
        is_shell = basename(found[0].text) in SHELLS
        for word in found if is_exec or is_shell else found[:1]:
            if is_self(word.shown):
                self.notes.find("unread", line(node), word.shown)

    def _call(
        self,
        name: str,
        args: list[Word],
        prefix: dict[str, Text],
        site: Site,
        node: Node,
        state: State,
    ) -> list[State]:
        if len(self.sites) >= MAX_DEPTH:
            self.notes.find("too-deep", line(node))
            return [state]
        saved = (state.params, state.in_function, state.outer_args)
        before = dict(state.vars)
        state.vars.update(prefix)
        added = frozenset(prefix) - state.exported
        state.exported |= added
        state.params, state.in_function, state.outer_args = tuple(args), True, False
        self.sites.append(site)
        self.rounds.append(node.start_byte)
        self.locals.append(set(prefix))
        ended = self.run_nodes([state.functions[name]], [state])
        mine = self.locals.pop()
        self.rounds.pop()
        self.sites.pop()
        for one in ended:
            one.params, one.in_function, one.outer_args = saved
            one.exported -= added
            for var in mine:
                if var in before:
                    one.vars[var] = before[var]
                else:
                    one.vars.pop(var, None)
            if one.flow == "return":
                one.flow = None
        return ended


def _env_words(found: Sequence[Word], place: Location) -> dict[str, Text]:
    """The assignments of `env A=b … vllm serve`."""
    result: dict[str, Text] = {}
    seen = False
    for word in found[: place.index]:
        seen = seen or basename(word.text) == "env"
        name, equals, _ = word.text.partition("=")
        if seen and equals and name.isidentifier():
            result[name] = strip_head(word.pieces, len(name) + 1)
    return result
