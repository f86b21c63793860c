"""Shapes that lanectl does not follow: with them in a script, nothing about it is proven."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tree_sitter import Node

from lanectl.core.command import locate

_SIDE_EFFECT: Final = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
)
_SELF: Final = re.compile(r"\$\{?(0\b|BASH_SOURCE)")
_NEVER_RUN: Final = frozenset(
    (
        *("dirname", "basename", "readlink", "realpath", "echo", "printf", "logger", "ls", "cat"),
        *("cd", "[", "test", "stat", "grep", "sed", "awk", "head", "tail", "md5sum", "sha256sum"),
        *("exit", "return", "set", "pushd", "source", ".", "mkdir", "export", "local"),
    )
)
_FLAG_AS_HOME: Final = re.compile(r"""HOME=["'$]*-""")
"""Nobody's home, but then `~` would be a flag."""
SHELLS: Final = frozenset(("bash", "sh", "dash", "zsh", "ksh"))
_KEYED: Final = re.compile(r"\[[^]]*\]\+?=")
_EFFECT_IN_BRACES: Final = re.compile(r"\+\+|--|[^=!<>]=[^=]")


def side_effects(text: str) -> list[str]:
    """The variables that an arithmetic expression may set."""
    return [one or other for one, other in _SIDE_EFFECT.findall(text)]


def is_self(shown: str) -> bool:
    """Is this word, or what it was made from, the path of the script itself?"""
    return bool(_SELF.search(shown)) and ("dirname" not in shown or "basename" in shown)


def mentions_server(text: str) -> bool:
    return "vllm" in text or "api_server" in text


def doubts(source: str, nodes: Sequence[Node]) -> Iterator[tuple[int, str]]:
    """The line and the text of each; `nodes` are all nodes of the tree."""
    functions = {
        source[name.start_byte : name.end_byte]: source[node.start_byte : node.end_byte]
        for node in nodes
        if node.type == "function_definition"
        for name in [node.child_by_field_name("name")]
        if name is not None
    }
    fixed: dict[str, int] = {}
    times: dict[str, int] = {}
    for node in nodes:
        text = source[node.start_byte : node.end_byte]
        line = node.start_point[0] + 1
        if node.type == "declaration_command":
            bare = [x.strip("'\"") for x in text.split()[1:]]
            flags = "".join(x[1:] for x in bare if x[:1] in ("-", "+"))
            word = text.split()[0]
            if set(flags) & set("nlui") and word != "export":
                yield line, text
            if "f" in flags and (word == "export" or "x" in flags):
                yield line, text
            if word == "readonly" or "r" in flags:
                for child in node.children[1:]:
                    name = source[child.start_byte : child.end_byte].split("=", 1)[0]
                    fixed[name] = line
        elif node.type == "variable_assignment":
            name = text.split("=", 1)[0].rstrip("+").split("[", 1)[0]
            times[name] = times.get(name, 0) + 1
            if name in _SPECIAL or _FLAG_AS_HOME.match(text):
                yield line, text
        elif node.type in ("simple_expansion", "expansion"):
            if re.match(r"\$_$|\$\{_\W", text):
                yield line, text
            subscript = re.match(r"\$\{[#!]?\w+(\[[^]@*]*\]|:[^-=?+].*)", text)
            if subscript and _EFFECT_IN_BRACES.search(subscript.group(1)):
                yield line, text
        elif node.type == "array":
            outer = node.parent.parent if node.parent is not None else None
            head = source[outer.start_byte : node.start_byte] if outer is not None else ""
            is_map = outer is not None and outer.type == "declaration_command" and "A" in head
            inner = [source[c.start_byte : c.end_byte] for c in node.children[1:-1]]
            if not is_map and any(_KEYED.match(one) for one in inner):
                yield line, text
        elif node.type == "for_statement":
            variable = node.child_by_field_name("variable")
            if variable is not None:
                name = source[variable.start_byte : variable.end_byte]
                times[name] = times.get(name, 0) + 2
        elif node.type in _DOUBTED:
            if _DOUBTED[node.type](text):
                yield line, text
        elif node.type == "command":
            words = text.split()
            if words[:1] and words[0] in _FILLERS:
                for name in words[1:]:
                    times[name] = times.get(name, 0) + 2
            if _is_captured(node) and locate(words) is not None:
                yield line, text
            if _odd_command(text, functions):
                yield line, text
        elif node.type in ("redirected_statement", "pipeline") and _is_written(text, node, source):
            yield line, text.split("\n", 1)[0]
    for name, line in fixed.items():
        if times.get(name, 0) > 1:
            yield line, f"readonly {name}"


def _is_captured(node: Node) -> bool:
    """Does it stand in `$(…)` or `<(…)`?"""
    above = node.parent
    while above is not None:
        if above.type in ("command_substitution", "process_substitution"):
            return True
        above = above.parent
    return False


def _sets_in_test(text: str) -> bool:
    """`[[ N++ -gt 3 ]]`."""
    compares = re.search(r"-(?:eq|ne|lt|le|gt|ge)\b", text)
    return bool(compares and re.search(r"\+\+|--\w|\w--|[^=!<>\s]=[^=~\s]", text))


def _sets_in_target(text: str) -> bool:
    """`> f$((N++))`, `> ${F:=x}`."""
    return bool(re.search(r"\$\(\(.*(?:\+\+|--|=)|\$\{\w+:?=", text))


def _sets_in_index(text: str) -> bool:
    """`A[N++]`."""
    return bool(_EFFECT_IN_BRACES.search(text.partition("[")[2]))


_DOUBTED: Final[dict[str, Callable[[str], bool]]] = {
    "test_command": _sets_in_test,
    "file_redirect": _sets_in_target,
    "subscript": _sets_in_index,
    "process_substitution": lambda text: text.startswith("<(") and "vllm serve" in text,
}
_SPECIAL: Final = frozenset(
    (
        *("PS4", "BASH_ENV", "ENV", "PROMPT_COMMAND", "LINENO", "RANDOM", "SRANDOM", "SECONDS"),
        *("BASH_REMATCH", "BASH_ARGV0", "EPOCHSECONDS", "BASHPID", "PIPESTATUS", "FUNCNAME"),
    )
)
"""Variables that bash acts on, or fills whatever is assigned."""
_FILLERS: Final = ("read", "mapfile", "readarray", "printf", "getopts", "unset", "let")


def _odd_command(text: str, functions: dict[str, str]) -> bool:
    words = text.split()
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if name == "trap":
        return (
            mentions_server(text)
            or (words[1:2] != [] and words[1].lstrip('"').startswith("$"))
            or bool({"DEBUG", "ERR", "RETURN"} & set(words))
            or any(mentions_server(functions.get(w.strip("'\";"), "")) for w in words[1:])
        )
    if name in ("awk", "gawk", "mawk", "perl", "ruby", "node") and mentions_server(text):
        return True
    if name == "shopt" and {"expand_aliases", "lastpipe", "nocasematch"} & set(words):
        return True
    if name in SHELLS and "<<<" in text and mentions_server(text):
        return True
    if name in ("enable", "alias") or (name == "hash" and "-p" in words):
        return True
    if name == "eval" and re.search(r"\(\s*\)|\bfunction\b|\balias\b", text):
        return True
    if name in _NEVER_RUN or not _SELF.search(text):
        return False
    return (
        any(
            re.fullmatch(r"\"?\$\{?(0|BASH_SOURCE(\[0\])?)\}?\"?;?", word)
            or (_SELF.search(word) and "dirname" not in text)
            for word in words
        )
        and "dirname" not in words[0]
    )


def _is_written(text: str, node: Node, source: str) -> bool:
    """Is a server's command written to a file that runs, or put into a shell?"""
    if not mentions_server(text):
        return False
    if node.type == "pipeline":
        return any(
            source[c.start_byte : c.end_byte].split()[0].rsplit("/", 1)[-1] in (*SHELLS, "source")
            for c in node.children[1:]
            if c.type == "command"
        )
    body = node.child_by_field_name("body")
    program = source[body.start_byte : body.end_byte].split()[0] if body is not None else ""
    here = [c for c in node.children if c.type == "heredoc_redirect"]
    is_data = any(
        mentions_server(source[b.start_byte : b.end_byte])
        for h in here
        for b in h.children
        if b.type == "heredoc_body"
    )
    if is_data:
        head = text.split("\n", 1)[0].replace("<<", "")
        return program not in ("cat", "read", ":") or ">" in head or "|" in head
    if program in ("echo", "printf"):
        for redirect in node.children:
            if redirect.type == "file_redirect" and redirect.named_children:
                last = redirect.named_children[-1]
                target = source[last.start_byte : last.end_byte].strip("\"'")
                after = source[node.end_byte :]
                if target and not target.startswith(("/dev/", "1", "2", "&")) and target in after:
                    return True
    return False
