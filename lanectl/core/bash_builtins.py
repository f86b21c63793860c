"""Builtins of the abstract interpreter, and the output of the few commands that can be told.

A builtin's effect on variables is followed, or the variables that it touches become unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tree_sitter import Node

from lanectl.core.bash_assign import Assignments
from lanectl.core.bash_doubts import side_effects
from lanectl.core.bash_state import Array, State, unknown
from lanectl.core.bash_tests import test_words
from lanectl.core.bash_text import Hole, Lit, Text, Word, flat, known, made, quoted
from lanectl.core.bash_words import line
from lanectl.core.command import WORDS, basename

_HARMLESS_EVALS: Final = ("conda", "mamba", "micromamba", "pyenv", "ssh-agent", "brew", "mise")
_HARMLESS_FILES: Final = ("activate", "conda.sh", "null")
_ONE_WORD_PROGRAMS: Final = frozenset(
    (
        *("nproc", "hostname", "date", "pwd", "dirname", "basename", "id", "whoami", "which"),
        *("realpath", "readlink", "mktemp", "uname", "cd", "command"),
    )
)
"""Programs whose output is one word or a path, and no flag."""


class Builtins(Assignments):
    """Runs builtins."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.visited: set[int] = set()

    def run_text(self, pieces: Text, state: State, line: int) -> None:
        """Interpret text that is a script of its own: `eval`, `bash -c`."""
        raise NotImplementedError

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
            if name in ("break", "continue") and texts and texts[0] != "1":
                self.notes.find("unread", line(node), f"{name} {texts[0]}")
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
        elif name == "printf" and texts and texts[0].startswith("-v"):
            self._print_to(found[1:], node, state)
        else:
            return None
        return [state]

    def _print_to(self, args: list[Word], node: Node, state: State) -> None:
        """`printf -v name …`."""
        texts = [word.text for word in args]
        target = texts[1] if texts[0] == "-v" and len(texts) > 1 else ""
        if target.isidentifier():
            value = _printf(args[2:])
            lost = unknown("printf -v fills it", line(node), target)
            state.vars[target] = lost if value is None else value
        elif target.partition("[")[0].isidentifier():
            name = target.partition("[")[0]
            state.vars[name] = Array((Word(self._open("printf -v fills it", node)),))
        else:
            self._fog(state, "printf -v", line(node))

    def _fill(
        self, name: str, texts: list[str], node: Node, body: Text | None, state: State
    ) -> None:
        """Builtins that put something unknown into variables."""
        heads = [t.split("=", 1)[0].split("[", 1)[0] for t in texts]
        names = [t for t in heads if t.isidentifier()]
        if name == "let":
            names += side_effects(" ".join(texts))
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
        given = {"read": ["REPLY"], "mapfile": ["MAPFILE"], "readarray": ["MAPFILE"]}
        for each in names + given.get(name, []):
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
        state.params = (Word(self._open("a sourced file may set the arguments", node)),)

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
        state.params = (Word(self._open("eval may set the arguments", node)),)

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


def strip_head(pieces: Text, count: int) -> Text:
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
    return _chomp(strip_head(pieces, begin), " \t\n")


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
