"""What is wrong with a launcher's text: things that pass `bash -n` and still fail, and shapes that
supervisord cannot handle. Each message says what happens and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tree_sitter import Node

from lanectl.core.bash import Shell, walk

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing to tell the operator. `code` is stable; `line` counts from 1."""

    severity: Severity
    code: str
    line: int
    message: str


_SPACES: Final = ("\u00a0", "\u2007", "\u202f", "\u200b", "\u2060", "\u3000")
_QUOTES: Final = ("\u2018", "\u2019", "\u201c", "\u201d")
_DATA: Final = frozenset(
    ("comment", "raw_string", "string", "string_content", "heredoc_body", "heredoc_content")
) | {"ansi_c_string", "heredoc_start"}
_BASH_ONLY: Final = frozenset(
    ("array", "[[", "herestring_redirect", "process_substitution", "+=", "ansi_c_string")
) | {"c_style_for_statement", "((", "function", "&>", "brace_expression", "subscript", "|&"}

_NOTES: Final[dict[str, tuple[Severity, str, str]]] = {
    "unread": (
        "error",
        "unread",
        "lanectl cannot read {0!r} here the way bash does, so it proves nothing about this script. "
        "Write it plainer, or use a `script` profile",
    ),
    "unset-under-set-u": (
        "warning",
        "unset-under-set-u",
        "nothing in the script sets {0}, and `set -u` stops the script when supervisord's "
        "environment does not set it either. Give it a default: ${{{0}:-…}}",
    ),
    "sourced-file": (
        "warning",
        "sourced-file",
        "the file {0} may set any variable, so what is read after this line is unknown to lanectl. "
        "Set what the server needs below this line",
    ),
    "eval": (
        "warning",
        "eval",
        "`eval` runs text made at run time, which may set anything. Use an array for the flags",
    ),
    "script-arguments": (
        "info",
        "script-arguments",
        "arguments in supervisord's `command=` would be passed on to the server; lanectl assumes "
        "that there are none",
    ),
    "appends-to-nothing": (
        "info",
        "environment-default",
        "{0} grows here from what supervisord's environment gives it; lanectl assumes nothing",
    ),
    "opaque-script": (
        "warning",
        "opaque-script",
        "the text {0} starts a server, but parts of it are known only at run time",
    ),
    "too-many-paths": (
        "error",
        "too-many-paths",
        "too many conditions depend on the machine for lanectl to follow them all. Use a `script` "
        "profile",
    ),
    "too-deep": (
        "error",
        "too-many-paths",
        "the script nests deeper or grows longer than lanectl follows. Use a `script` profile",
    ),
}


def text_findings(source: str) -> list[Finding]:
    """What the bytes show without reading the script; `source` is latin-1."""
    found: list[Finding] = []
    if source.startswith("\xef\xbb\xbf"):
        found.append(
            Finding(
                "error",
                "bom",
                1,
                "the file starts with a byte order mark: the system cannot execute it (ENOEXEC). "
                "Save it as UTF-8 without BOM",
            )
        )
    if "\r" in source:
        at = source.count("\n", 0, source.index("\r")) + 1
        found.append(
            Finding(
                "error",
                "crlf",
                at,
                "the file has Windows line ends: the shebang names a program that does not exist, "
                "and every value ends in a carriage return. Convert it with `sed -i 's/\\r$//'`",
            )
        )
    if "\0" in source:
        at = source.count("\n", 0, source.index("\0")) + 1
        message = "the file holds a NUL byte: bash drops it or refuses the file. Remove it"
        found.append(Finding("error", "nul-byte", at, message))
    if not source.strip():
        message = "the file is empty: it exits 0 at once and supervisord sees a program that ended"
        found.append(Finding("error", "empty-file", 1, message))
    elif not source.startswith(("#!", "\xef\xbb\xbf#!")):
        found.append(
            Finding(
                "error",
                "no-shebang",
                1,
                "the first line is no `#!`: supervisord cannot execute the file (ENOEXEC). "
                "Start it with `#!/usr/bin/env bash`",
            )
        )
    return found


def tree_findings(shell: Shell) -> list[Finding]:
    """What the tree shows, whichever way the script runs."""
    root = shell.tree.root_node
    found = [*_syntax(root), *_heredocs(shell, root), *_odd_characters(shell, root)]
    found += [*_continuations(shell, root), *_orphans(shell, root)]
    first_line = shell.source.split("\n", 1)[0].split()
    program = first_line[-1].rsplit("/", 1)[-1] if first_line else ""
    if program in ("sh", "dash") and shell.source.startswith("#!"):
        node = next((n for n in walk(root) if n.type in _BASH_ONLY), None)
        if node is not None:
            message = (
                f"the shebang asks for {program}, but {node.type} is bash's: under dash the script "
                "dies here. Start it with `#!/usr/bin/env bash`"
            )
            found.append(Finding("error", "sh-with-bashisms", _line(node), message))
    return found


def note_findings(shell: Shell) -> list[Finding]:
    """What the interpreter met."""
    found: list[Finding] = []
    for code, line, detail in shell.notes.found:
        if code == "unread" and "\r" in detail:
            continue  # `crlf` says it once
        severity, public, message = _NOTES[code]
        found.append(Finding(severity, public, line, message.format(detail)))
    for name, places in shell.notes.assigned.items():
        place = next(iter(places))
        text = shell.source[place.start : place.end].lstrip("(\"' ")
        flags = [word for word in text.split() if word.startswith("--")]
        if flags and name not in shell.notes.reads:
            message = (
                f"{name} holds {flags[0]} and nothing uses it: these flags never reach the server. "
                f'Add "${name}" to the command, or remove it'
            )
            found.append(Finding("warning", "unused-flags", place.line, message))
    for name, places in shell.notes.defaults.items():
        what = f"argument {name}" if name.isdigit() else name
        message = (
            f"{what} has its default here unless supervisord passes another value; lanectl assumes "
            "the default"
        )
        found.append(Finding("info", "environment-default", next(iter(places)).line, message))
    return found


def _line(node: Node) -> int:
    return node.start_point[0] + 1


def _syntax(root: Node) -> Iterator[Finding]:
    if not root.has_error:
        return
    for node in walk(root):
        if node.is_missing and node.type == "heredoc_end":
            return  # has a finding of its own
        if node.type == "ERROR" or node.is_missing:
            message = "lanectl cannot parse the script from here on; check it with `bash -n`"
            yield Finding("error", "syntax-error", _line(node), message)
            return


def _heredocs(shell: Shell, root: Node) -> Iterator[Finding]:
    for node in walk(root):
        if node.type != "heredoc_redirect":
            continue
        ends = [c for c in node.children if c.type == "heredoc_end"]
        if not ends or ends[0].is_missing:
            message = (
                "this here-document is never closed: everything down to the end of the file is its "
                "text, and bash only warns. Close it with its mark alone on a line"
            )
            yield Finding("error", "unterminated-heredoc", _line(node), message)
        for body in (c for c in node.children if c.type == "heredoc_body"):
            text = shell.text(body)
            if "vllm serve" in text or "vllm.entrypoints" in text:
                message = (
                    "a server's command stands in a here-document: it is data for another program, "
                    "and lanectl does not edit data. Use a `script` profile"
                )
                yield Finding("warning", "server-in-data", _line(body), message)


def _orphans(shell: Shell, root: Node) -> Iterator[Finding]:
    """Lines that were meant for the command above: they begin with a flag, or stand right below a
    comment that cut the command off, further in than the command."""
    for node in walk(root):
        if node.type == "command":
            first = next(iter(shell.text(node).split()), "")
            if not first.startswith("-") and not _is_cut_off(shell, node):
                continue
            message = (
                f"{first} never reaches the server: the command ended on a line above, and bash "
                "takes this line for a command of its own. Join the lines with a backslash at the "
                "end of each, and keep comments out of them"
            )
            yield Finding("error", "flags-not-reached", _line(node), message)


def _is_cut_off(shell: Shell, node: Node) -> bool:
    """Do only comments, the first of them after a backslash, separate it from a command above?"""
    parent = node.parent
    if parent is not None and parent.type == "redirected_statement":
        node = parent
    above, row = node.prev_named_sibling, node.start_point[0]
    first: Node | None = None
    while above is not None and above.type == "comment" and above.start_point[0] == row - 1:
        first, row, above = above, row - 1, above.prev_named_sibling
    if above is None or first is None:
        return False
    gap = shell.source[above.end_byte : first.start_byte]
    return gap.strip(" \t") == "\\\n" and node.start_point[1] > above.start_point[1]


def _odd_characters(shell: Shell, root: Node) -> Iterator[Finding]:
    for code, characters, what in (
        ("nbsp", _SPACES, "a space that bash does not take for one (no-break or zero-width)"),
        ("curly-quotes", _QUOTES, "a curly quote, which bash does not take for a quote"),
    ):
        for at in _places(shell.source, characters):
            leaf = root.descendant_for_byte_range(at, at + 1)
            if leaf is not None and not _is_data(leaf):
                line = shell.source.count("\n", 0, at) + 1
                message = f"{what}: it becomes part of a word. Replace it with the plain character"
                yield Finding("error", code, line, message)
                break


def _places(source: str, characters: Iterable[str]) -> Iterator[int]:
    for character in characters:
        encoded = character.encode().decode("latin-1")
        at = source.find(encoded)
        while at >= 0:
            yield at
            at = source.find(encoded, at + 1)


def _is_data(node: Node | None) -> bool:
    while node is not None:
        if node.type in _DATA:
            return True
        if node.type in ("expansion", "command_substitution"):
            return False
        node = node.parent
    return False


def _continuations(shell: Shell, root: Node) -> Iterator[Finding]:
    source = shell.source
    for node in walk(root):
        if node.type != "comment":
            continue
        at = node.start_byte
        while source[at - 1 : at] in (" ", "\t"):
            at -= 1
        if source[max(at - 2, 0) : at] != "\\\n":
            continue
        above = root.descendant_for_byte_range(at - 2, at - 1)
        if above is not None and not _is_data(above):
            message = (
                "the backslash above joins this comment to the command, so the command ends here, "
                "and the lines below are not part of it. Move the comment above the command"
            )
            yield Finding("warning", "comment-in-continuation", _line(node), message)
    at = source.find("\\")
    while at >= 0:
        stop = at + 1
        while source[stop : stop + 1] in (" ", "\t"):
            stop += 1
        ends = source[stop : stop + 1] in ("\n", "")
        leaf = root.descendant_for_byte_range(at, at + 1)
        if stop > at + 1 and ends and (leaf is None or not _is_data(leaf)):
            message = (
                "blanks after the backslash: it joins no lines, gives the command a word that is a "
                "blank, and the lines below never reach it. Remove the blanks"
            )
            yield Finding("error", "backslash-space", source.count("\n", 0, at) + 1, message)
        at = source.find("\\", at + 2)
