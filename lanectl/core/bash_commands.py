"""Simple commands of the abstract interpreter: assignments, builtins, programs, servers.

What a program outside does is never known; what a builtin does to variables is followed, or the
variables it touches become unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from lanectl.core.bash_state import Array, Notes, Place, State, Value, first, unknown
from lanectl.core.bash_tests import test_words
from lanectl.core.bash_text import (
    MAX_PIECES,
    Hole,
    Lit,
    Stream,
    Text,
    Word,
    flat,
    known,
    made,
    quoted,
)
from lanectl.core.bash_words import WordReader, line
from lanectl.core.command import WORDS, Location, basename, locate

MAX_DEPTH: Final = 20
_HARMLESS_EVALS: Final = ("conda", "mamba", "micromamba", "pyenv", "ssh-agent", "brew", "mise")
_HARMLESS_FILES: Final = ("activate", "conda.sh", "null")
_ONE_WORD_PROGRAMS: Final = frozenset(
    (
        *("nproc", "hostname", "date", "pwd", "dirname", "basename", "id", "whoami", "which"),
        *("realpath", "readlink", "mktemp", "uname", "cd", "command"),
    )
)
"""Programs whose output is one word or a path, and no flag."""
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


class CommandRunner:
    """Runs simple commands. The control flow is in `lanectl.core.bash.Shell`."""

    def __init__(self, source: str, frame: Text | None = None) -> None:
        self.source = source
        self.notes = Notes()
        self.reader = WordReader(source, self.notes, self.capture)
        self.runs: list[Run] = []
        self.effects: list[tuple[str, ...]] = []
        self.visited: set[int] = set()
        self.frame = frame
        self.around: list[str] = []
        self.rounds: list[int] = []
        self.sites: list[Site] = []
        self.locals: list[set[str]] = []
        self.base_line = 0

    def run_nodes(self, nodes: Sequence[Node], states: list[State]) -> list[State]:
        raise NotImplementedError

    def run_text(self, pieces: Text, state: State, line: int) -> None:
        raise NotImplementedError

    def text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte]

    # Assignments

    def assign(self, node: Node, state: State, local: bool = False) -> tuple[str, Value]:
        """A `variable_assignment`; gives the name and the value, and does not store it."""
        name_node, value_node = node.children[0], node.children[-1]
        appends = node.children[1].type == "+=" if node.child_count > 1 else False
        index = None
        name = self.text(name_node)
        if name_node.type == "subscript":
            index, name = name, self.text(name_node.children[0])
        value: Value
        if node.child_count < 3:
            value = ()
        elif value_node.type == "array":
            value = self._array(value_node, state)
            start, end = value_node.start_byte, value_node.end_byte
            self.notes.assign(name, Place(start, end, False, line(node)))
        else:
            value = self.reader.value(value_node, state)
            own = any(f"{{{name}{op}" in self.text(value_node) for op in (":-", "-", ":=", "="))
            if not own and not appends:
                start, end = value_node.start_byte, value_node.end_byte
                self.notes.assign(name, Place(start, end, False, line(node)))
        old = state.vars.get(name, None)
        if index is not None:
            return name, Array((Word(self._open(f"{name} is filled element by element", node)),))
        if appends and old is None and name not in state.vars and state.fog is not None:
            old = unknown(f"{state.fog[0]} may set {name}", state.fog[1])
        if appends and isinstance(value, Array):
            before = () if old is None else old.items if isinstance(old, Array) else (Word(old),)
            value = Array(before + value.items)
        elif appends and isinstance(old, Array):
            head = Word(first(old) + first(value))
            value = Array((head, *old.items[1:]))
        elif appends and old is not None:
            value = first(old) + first(value)
        if isinstance(value, Array) and len(value.items) > MAX_PIECES:
            value = Array((Word(self._open("the array is too long", node)),))
        elif not isinstance(value, Array) and len(value) > MAX_PIECES:
            value = unknown("the value is too long", line(node), name)
        return name, value

    def _open(self, cause: str, node: Node) -> Text:
        return (Hole(self.text(node), cause, line(node), "words"),)

    def _array(self, node: Node, state: State) -> Array:
        items: list[Word] = []
        inner = [c for c in node.children[1:-1] if c.is_named and c.type != "comment"]
        for group in self._groups(inner, node.children[0].end_byte, node.children[-1].start_byte):
            if self.text(group[0]).startswith("["):
                return Array((Word(self._open("an array with keys", node)),))
            items += self._group_words(group, state)
        if len(items) > MAX_PIECES:
            return Array((Word(self._open("the array is too long", node)),))
        return Array(tuple(items))

    def _groups(self, nodes: Sequence[Node], start: int, stop: int) -> list[list[Node]]:
        """Words as bash sees them: nodes with nothing, or only a backslash and a newline, between
        them are one word. Anything else between words means that the tree misread the text."""
        groups: list[list[Node]] = []
        at = start
        for node in nodes:
            gap = self.source[at : node.start_byte]
            joined = gap.replace("\\\n", "")
            if groups and not joined:
                groups[-1].append(node)
            else:
                groups.append([node])
            if joined.strip(" \t\n") and not joined.lstrip(" \t\n").startswith("#"):
                self.notes.find("unread", node.start_point[0] + 1, joined.strip())
            at = max(at, node.end_byte)
        rest = self.source[at:stop].replace("\\\n", "").strip(" \t\n")
        if rest and not rest.startswith("#"):
            self.notes.find("unread", nodes[-1].end_point[0] + 1 if nodes else 1, rest)
        return groups

    def _group_words(self, group: Sequence[Node], state: State) -> list[Word]:
        if len(group) == 1:
            return self.reader.argument(group[0], state)
        stream: Stream = []
        for node in group:
            stream += self.reader.stream(node, state)
        return self.reader.split(stream, (group[0].start_byte, group[-1].end_byte), state)

    def assignments(self, nodes: Sequence[Node], state: State) -> None:
        for node in nodes:
            name, value = self.assign(node, state)
            state.vars[name] = value
        state.status = True

    def declaration(self, node: Node, state: State) -> None:
        """`export`, `local`, `declare`, `readonly`, `typeset`."""
        word = node.children[0].type
        flags = "".join(
            self.text(c) for c in node.children if c.type == "word" and self.text(c)[0] in "-+"
        )
        for child in node.children[1:]:
            name, value = self.text(child), None
            if child.type == "variable_assignment":
                name, value = self.assign(child, state)
            elif child.type in ("string", "concatenation", "raw_string", "word"):
                text = known(self.reader.value(child, state))
                if text is None:
                    self._fog(state, "an assignment with a computed name", line(child))
                if text is None or "=" not in text:
                    continue
                name, value = text.split("=", 1)[0], made(text.split("=", 1)[1])
            elif child.type != "variable_name":
                continue
            if "n" in flags or "A" in flags:
                value = Array((Word(self._open(f"{word} {flags} is not followed", node)),))
            elif "i" in flags or "u" in flags or "l" in flags:
                value = unknown(f"{word} {flags} changes the value", line(node), name)
            if self.locals and (word == "local" or (word != "export" and "g" not in flags)):
                self.locals[-1].add(name)
                state.vars.setdefault(name, None)
            if value is not None:
                state.vars[name] = value
            if word == "export" or "x" in flags:
                state.exported |= {name}
        state.status = True

    # Commands

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

    def _word_groups(self, items: Sequence[Node]) -> list[list[Node]]:
        groups: list[list[Node]] = []
        for node in items:
            gap = self.source[groups[-1][-1].end_byte : node.start_byte] if groups else " "
            if gap.replace("\\\n", ""):
                groups.append([node])
            else:
                groups[-1].append(node)
        return groups

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
                self.effects.append(tuple(word.shown for word in found))
            return
        around = {*self.around, *place.via} | ({"exec"} if is_exec else set())
        if place.script is not None:
            inner = found[place.script].pieces
            if known(inner) is None:
                self.notes.find("opaque-script", line(node), found[place.script].shown)
                return
            outer, self.around = self.around, sorted(around)
            fresh = State(vars={n: state.vars.get(n) for n in state.exported})
            self.run_text(inner, fresh, line(node))
            self.around = outer
            return
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
            for var in mine:
                if var in before:
                    one.vars[var] = before[var]
                else:
                    one.vars.pop(var, None)
            if one.flow == "return":
                one.flow = None
        return ended

    # Builtins

    def _builtin(
        self, name: str, found: list[Word], node: Node, body: Text | None, state: State
    ) -> list[State] | None:
        """None where the name is no builtin that matters here."""
        texts = [word.text for word in found[1:]]
        state.status = True
        if name in ("true", ":", "false"):
            state.status = name != "false"
        elif name in ("test", "["):
            state.status = test_words(found[1:-1] if name == "[" else found[1:])
        elif name in ("exit", "return", "break", "continue"):
            state.flow = name  # type: ignore[assignment]
            state.status = texts[0] == "0" if texts and texts[0].isdigit() else None
        elif name == "set":
            _set(found[1:], state)
        elif name == "shift":
            count = int(texts[0]) if texts and texts[0].isdigit() else 1
            state.status = count <= len(state.params)
            if any(WORDS in word.text for word in state.params):
                state.params = (Word(self._open("the arguments are unknown", node)),)
            elif state.status:
                state.params = state.params[count:]
        elif name in ("source", "."):
            self._source(texts[0] if texts else "", node, state)
        elif name == "eval":
            self._eval(found[1:], node, state)
        elif name in ("read", "mapfile", "readarray", "getopts", "let", "wait", "unset"):
            self._fill(name, texts, node, body, state)
        elif name == "printf" and texts[:1] == ["-v"] and len(texts) > 1:
            value = _printf(found[3:])
            lost = unknown("printf -v fills it", line(node), texts[1])
            state.vars[texts[1]] = lost if value is None else value
        else:
            return None
        return [state]

    def _fill(
        self, name: str, texts: list[str], node: Node, body: Text | None, state: State
    ) -> None:
        """Builtins that put something unknown into variables."""
        names = [t.split("=", 1)[0] for t in texts if t.split("=", 1)[0].isidentifier()]
        cause = f"{name} fills it when the script runs"
        if name == "read" and body is not None and texts[-3:-1] == ["-d", ""] and names:
            text = flat(body)
            begin = len(text) - len(text.lstrip(" \t\n"))
            value = known(body)
            state.vars[names[-1]] = (
                unknown(cause, line(node)) if value is None else _strip(body, begin)
            )
            state.status = False
            return
        for each in names:
            is_array = name in ("mapfile", "readarray") or "-a" in texts or "-ra" in texts
            open_array = Array((Word(self._open(cause, node)),))
            state.vars[each] = open_array if is_array else unknown(cause, line(node), "$" + each)
            if name == "unset":
                state.vars[each] = None
        state.status = True if name == "unset" else None

    def _source(self, path: str, node: Node, state: State) -> None:
        state.status = None
        if basename(path) in _HARMLESS_FILES:
            return
        self.notes.find("sourced-file", line(node), path)
        self._fog(state, "a sourced file", line(node))

    def _eval(self, args: list[Word], node: Node, state: State) -> None:
        state.status = None
        source = "".join(word.shown for word in args).lstrip("$({\"'` ")
        if source.startswith(_HARMLESS_EVALS):
            return
        self.notes.find("eval", line(node))
        text: list[Lit | Hole] = []
        for number, word in enumerate(args):
            text += (*(made(" ") if number else ()), *word.pieces)
        if known(tuple(text)) is not None:
            self.run_text(tuple(text), state.fork(), line(node))
        self._fog(state, "eval", line(node))

    def _fog(self, state: State, cause: str, at: int) -> None:
        """Anything may have been set: what was known is not."""
        state.fog = (cause, at)
        for name, value in state.vars.items():
            lost = unknown(f"{cause} may set {name}", at, "$" + name)
            is_list = isinstance(value, Array)
            state.vars[name] = (
                Array((Word((Hole(name, f"{cause} may set {name}", at, "words"),)),))
                if is_list
                else lost
            )

    # Command substitutions

    def capture(self, node: Node, state: State) -> Text:
        """What `$(…)` puts out, where that can be told."""
        inner = [c for c in node.children if c.is_named and c.type != "comment"]
        source = self.text(node)
        if len(inner) == 1:
            told = self._output(inner[0], state.fork())
            if told is not None:
                return _chomp(told)
        name = source.lstrip("$(`").split(" ", 1)[0].rstrip(")`")
        kind = "plain" if name in _ONE_WORD_PROGRAMS else "word"
        cause = "it is the output of a program"
        return (Hole(source, cause, line(node), "plain" if kind == "plain" else "word"),)

    def _output(self, node: Node, state: State) -> Text | None:
        body: Text | None = None
        if node.type == "redirected_statement":
            redirects = node.children_by_field_name("redirect")
            if len(redirects) != 1 or redirects[0].type != "heredoc_redirect":
                return None
            body = self.heredoc(redirects[0], state)
            node = node.children[0]
        if node.type != "command" or any(c.type == "variable_assignment" for c in node.children):
            return None
        if node.start_byte not in self.visited:
            self.visited.add(node.start_byte)
        items = [c.children[0] if c.type == "command_name" else c for c in node.children]
        found = [w for group in self._word_groups(items) for w in self._group_words(group, state)]
        name = found[0].text if found else ""
        if name in state.functions:
            return None
        if name == "cat" and len(found) == 1:
            return body
        if name == "echo" and not any(w.text.startswith("-") for w in found[1:]):
            result: list[Lit | Hole] = []
            for number, word in enumerate(found[1:]):
                result += (*(made(" ") if number else ()), *word.pieces)
            is_open = any(WORDS in word.text for word in found) or "\\" in flat(tuple(result))
            return None if is_open else quoted(tuple(result))
        return _printf(found[1:]) if name == "printf" else None

    def heredoc(self, redirect: Node, state: State) -> Text | None:
        """A here-document's text; None where it is not closed."""
        parts = {c.type: c for c in redirect.children}
        start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
        if start is None or end is None or end.is_missing:
            return None
        body = parts.get("heredoc_body")
        if body is None:
            return ()
        begin, stop = body.start_byte, body.end_byte
        if any(c in self.text(start) for c in "'\"\\"):
            pieces: Text = (Lit(self.source[begin:stop], begin, stop, "heredoc"),)
        else:
            inner = [c for c in body.children if c.type != "heredoc_content"]
            stream = self.reader.span(begin, stop, inner, state, in_quotes=True, context="heredoc")
            pieces = tuple(p for p in stream if isinstance(p, Lit | Hole))
        if redirect.children[0].type != "<<-":
            return pieces
        text = known(pieces)
        return None if text is None else made("\n".join(x.lstrip("\t") for x in text.split("\n")))


def _env_words(found: Sequence[Word], place: Location) -> dict[str, Text]:
    """The assignments of `env A=b … vllm serve`."""
    result: dict[str, Text] = {}
    seen = False
    for word in found[: place.index]:
        seen = seen or basename(word.text) == "env"
        name, equals, _ = word.text.partition("=")
        if seen and equals and name.isidentifier():
            result[name] = _strip_head(word.pieces, len(name) + 1)
    return result


def _strip_head(pieces: Text, count: int) -> Text:
    result: list[Lit | Hole] = []
    for piece in pieces:
        if isinstance(piece, Lit) and count:
            taken = min(count, len(piece.text))
            count -= taken
            if taken < len(piece.text):
                result.append(piece.cut(taken, len(piece.text)))
        else:
            result.append(piece)
    return tuple(result)


def _strip(pieces: Text, begin: int) -> Text:
    """Without white space at both ends."""
    return _chomp(_strip_head(pieces, begin), " \t\n")


def _chomp(pieces: Text, chars: str = "\n") -> Text:
    """Without these characters at the end."""
    left = list(pieces)
    while left and isinstance(left[-1], Lit):
        last = left[-1]
        kept = last.text.rstrip(chars)
        if kept:
            left[-1] = last.cut(0, len(kept))
            break
        left.pop()
    return tuple(left)


def _printf(args: Sequence[Word]) -> Text | None:
    """`printf` with `%s` and `%d` only."""
    texts = [known(word.pieces) for word in args]
    if not texts or any(t is None for t in texts):
        return None
    form, *values = (t for t in texts if t is not None)
    parts = form.replace("%d", "%s").split("%s")
    bad = "%" in "".join(parts) or "\\" in form.replace("\\n", "")
    if bad or len(parts) != len(values) + 1:
        return None
    result = parts[0]
    for value, part in zip(values, parts[1:], strict=True):
        result += value + part
    return made(result.replace("\\n", "\n"))


def _set(args: Sequence[Word], state: State) -> None:
    """`set -eu`, `set -o pipefail`, `set -- a b`."""
    at = 0
    while at < len(args):
        text = args[at].text
        if text == "--" or not text.startswith(("-", "+")):
            state.params, state.outer_args = tuple(args[at + (text == "--") :]), False
            return
        on = text[0] == "-"
        named = args[at + 1].text if "o" in text and at + 1 < len(args) else ""
        if "e" in text or named == "errexit":
            state.errexit = on
        if "u" in text or named == "nounset":
            state.nounset = on
        at += 2 if "o" in text else 1
