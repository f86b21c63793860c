"""What the abstract interpreter knows at one point of one path, and what it notes on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from tree_sitter import Node

from lanectl.core.bash_text import Hole, Text, Word, made


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALWAYS_SET: Final = _names("""
    HOME PATH USER PWD OLDPWD HOSTNAME UID EUID RANDOM SECONDS SHELL LANG TMPDIR LOGNAME BASH_SOURCE
    BASHPID PPID OSTYPE LINENO BASH_VERSION HOSTTYPE MACHTYPE FUNCNAME TERM EPOCHSECONDS 0 $ ! ? - _
    LD_LIBRARY_PATH PYTHONPATH CONDA_PREFIX VIRTUAL_ENV XDG_RUNTIME_DIR
""")
"""Names that bash or the system fills: unknown text, but one word and no flag."""


@dataclass(frozen=True)
class Array:
    """An indexed array. Unknown elements are a word that holds a `words` hole."""

    items: tuple[Word, ...]


Value = Text | Array
Flow = Literal["exit", "return", "break", "continue"]


@dataclass
class State:
    """One path's variables. A name that is not in `vars` was never touched by the script; one that
    is None was unset by it. `fog` says why names could have been set by text that is not here.
    `outer_args`: the arguments are those of the script itself, of which none are assumed."""

    vars: dict[str, Value | None] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    functions: Mapping[str, Node] = field(default_factory=dict)
    params: tuple[Word, ...] = ()
    in_function: bool = False
    outer_args: bool = True
    errexit: bool = False
    nounset: bool = False
    status: bool | None = True
    flow: Flow | None = None
    fog: tuple[str, int] | None = None

    def fork(self) -> State:
        return replace(self, vars=dict(self.vars))


@dataclass(frozen=True)
class Place:
    """Source range [start, end) of a value or of a default, and whether it stands in "…"."""

    start: int
    end: int
    in_quotes: bool
    line: int


@dataclass
class Notes:
    """What was met on all paths: defaults used, values assigned, values read, findings. The
    dictionaries without values are ordered sets."""

    defaults: dict[str, dict[Place, None]] = field(default_factory=dict)
    assigned: dict[str, dict[Place, None]] = field(default_factory=dict)
    reads: dict[str, list[Text]] = field(default_factory=dict)
    found: dict[tuple[str, int, str], None] = field(default_factory=dict)

    def default(self, name: str, place: Place) -> None:
        self.defaults.setdefault(name, {})[place] = None

    def assign(self, name: str, place: Place) -> None:
        self.assigned.setdefault(name, {})[place] = None

    def find(self, code: str, line: int, detail: str = "") -> None:
        self.found[code, line, detail] = None


def unknown(cause: str, line: int, source: str = "?") -> Text:
    return (Hole(source, cause, line),)


def first(value: Value) -> Text:
    """The value of `$x`: an array stands for its first element."""
    if isinstance(value, Array):
        return value.items[0].pieces if value.items else made("")
    return value
