"""Text with provenance: every piece of a bash value knows the source bytes that produced it.

Source text is held as latin-1, so one character is one byte and offsets are byte offsets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import translate
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from lanectl.core.command import PLAIN, WORD, WORDS

Context = Literal["bare", "raw", "dq", "ansi", "default", "dq-default", "heredoc", "alt", "made"]
"""Where text stands in the source, which decides how other text is written there: unquoted, in
'…', in "…", in $'…', in ${X:-…} (unquoted or in "…"), in a quoted here-document, in ${X:+…};
`made` text has no place: it was computed."""

Mode = Literal["quoted", "literal", "expanded"]
"""What bash may still do to text: nothing; brace and file name expansion; splitting and file name
expansion."""

Kind = Literal["plain", "word", "words"]
_MARK: Final = {"plain": PLAIN, "word": WORD, "words": WORDS}
BLANKS: Final = " \t\n"
MAX_PIECES: Final = 5_000
"""Values longer than this (a script can double one many times) are not followed."""
_MAX_BRACES: Final = 200
_GLOB: Final = "*?["


class Lit(NamedTuple):
    """Known text. It maps to source bytes [start, end) one to one if the lengths agree."""

    text: str
    start: int
    end: int
    context: Context
    mode: Mode = "quoted"

    def cut(self, begin: int, stop: int) -> Lit:
        """A part of it, with its own place where the mapping is one to one."""
        if self.context != "made" and self.end - self.start == len(self.text):
            return self._replace(
                text=self.text[begin:stop], start=self.start + begin, end=self.start + stop
            )
        if (begin, stop) == (0, len(self.text)):
            return self
        return Lit(self.text[begin:stop], self.start, self.end, "made", self.mode)


class Hole(NamedTuple):
    """Unknown text: `source` is what the script says there, `cause` says why nobody can know."""

    source: str
    cause: str
    line: int
    kind: Kind = "word"


class Break(NamedTuple):
    """A word ends here; the next one was written at `span`."""

    span: tuple[int, int] | None = None


Text = tuple[Lit | Hole, ...]
Stream = list[Lit | Hole | Break]


class Word(NamedTuple):
    """One word of a command. `spans` are the places that are this word alone, innermost first;
    the last is the argument it came from, which may hold other words too."""

    pieces: Text
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        """The word, with marks for what is unknown."""
        return flat(self.pieces)

    @property
    def shown(self) -> str:
        """The word for a reader: unknown parts as the script's own text."""
        return "".join(p.text if isinstance(p, Lit) else p.source for p in self.pieces)


def flat(pieces: Text) -> str:
    return "".join(p.text if isinstance(p, Lit) else _MARK[p.kind] for p in pieces)


def known(pieces: Text) -> str | None:
    """The text, or None where a part of it is unknown."""
    if any(isinstance(p, Hole) for p in pieces):
        return None
    return "".join(p.text for p in pieces if isinstance(p, Lit))


def made(text: str) -> Text:
    return (Lit(text, -1, -1, "made"),)


def quoted(pieces: Text) -> Text:
    """As the inside of double quotes or of an assignment: no more expansion, one word."""
    return tuple(
        p._replace(mode="quoted")
        if isinstance(p, Lit)
        else (p if p.kind != "words" else p._replace(kind="word"))
        for p in pieces
    )


def expanded(pieces: Text) -> Text:
    """As an unquoted expansion: to be split, and unknown text may be any number of words."""
    return tuple(
        p._replace(mode="expanded")
        if isinstance(p, Lit)
        else (p if p.kind == "plain" else p._replace(kind="words"))
        for p in pieces
    )


def words(stream: Stream, outer: tuple[int, int], blanks: str = BLANKS) -> list[Word]:
    """Brace expansion, word splitting and file name expansion of one argument."""
    found: list[Word] = []
    for part in _braces(stream):
        found += _split(part, outer, blanks)
    if len(found) > MAX_PIECES:
        return [Word((Hole("…", "it becomes too many words", 0, "words"),), (outer,))]
    return found


def _split(stream: Stream, outer: tuple[int, int], blanks: str) -> list[Word]:
    found: list[Word] = []
    current: list[Lit | Hole] | None = None
    own: tuple[int, int] | None = None  # where the word stands by itself, if that is known
    was_split = False

    def flush() -> None:
        nonlocal current, own, was_split
        if current is not None:
            pieces = tuple(current)
            span = own or (_span(pieces) if was_split else None)
            spans = (outer,) if span is None or span == outer else (span, outer)
            found.append(Word(_globs(pieces), spans))
        current = own = None

    for piece in stream:
        if isinstance(piece, Break):
            flush()
            own = piece.span
            was_split = False
        elif isinstance(piece, Lit) and piece.mode == "expanded":
            was_split = True
            at = 0
            text = piece.text
            while at < len(text):
                if text[at] in blanks:
                    flush()
                    at += 1
                    continue
                stop = at
                while stop < len(text) and text[stop] not in blanks:
                    stop += 1
                current = [*(current or []), piece.cut(at, stop)]
                at = stop
        else:
            current = [*(current or []), piece]
    flush()
    return found


def _span(pieces: Text) -> tuple[int, int] | None:
    """The source range of a split word, if it is one unbroken place that may be cut."""
    if not pieces or any(
        isinstance(p, Hole) or p.context in ("made", "default", "dq-default", "alt") for p in pieces
    ):
        return None
    lits = [p for p in pieces if isinstance(p, Lit)]
    if any(one.end != two.start for one, two in pairwise(lits)):
        return None
    return lits[0].start, lits[-1].end


def _globs(pieces: Text) -> Text:
    """Unquoted `*`, `?`, `[` make the rest of their piece depend on which files exist."""
    result: list[Lit | Hole] = []
    for piece in pieces:
        at = -1
        if isinstance(piece, Lit) and piece.mode != "quoted":
            at = min((i for i in map(piece.text.find, _GLOB) if i >= 0), default=-1)
        if at < 0 or isinstance(piece, Hole):
            result.append(piece)
            continue
        if at:
            result.append(piece.cut(0, at))
        kind: Kind = "plain" if at or result else "words"
        cause = f"{piece.text} is replaced by the names of matching files"
        result.append(Hole(piece.text[at:], cause, 0, kind))
    return tuple(result)


def _braces(stream: Stream, budget: int = _MAX_BRACES) -> list[Stream]:
    """Expand the first `{a,b}` of an argument, and so on in what comes out."""
    items = [
        (index, at, char)
        for index, piece in enumerate(stream)
        if isinstance(piece, Lit) and piece.mode == "literal"
        for at, char in enumerate(piece.text)
        if char in "{},"
    ]
    if len(items) > _MAX_BRACES:
        return [[Hole("{…}", "braces become too many words", 0, "words")]]
    for number, (index, at, char) in enumerate(items):
        if char != "{":
            continue
        depth, cuts = 0, [(index, at)]
        for inner_index, inner_at, inner in items[number:]:
            depth += (inner == "{") - (inner == "}")
            if inner == "," and depth == 1:
                cuts.append((inner_index, inner_at))
            if depth == 0:
                cuts.append((inner_index, inner_at))
                break
        if depth or len(cuts) < 3:
            continue
        before = _slice(stream, (0, 0), cuts[0])
        last_index, last_at = cuts[-1]
        after = _slice(stream, (last_index, last_at + 1), (len(stream), 0))
        results: list[Stream] = []
        for (one_index, one_at), two in pairwise(cuts):
            middle = _slice(stream, (one_index, one_at + 1), two)
            budget -= 1
            if budget < 0:
                return [[Hole("{…}", "braces become too many words", 0, "words")]]
            some = _braces([*before, *middle, *after], budget)
            budget -= len(some)
            results += some
        return results
    return [stream]


def _slice(stream: Stream, begin: tuple[int, int], stop: tuple[int, int]) -> Stream:
    """The stream from one (piece, character) to another."""
    result: Stream = []
    for index, piece in enumerate(stream):
        if not begin[0] <= index <= stop[0] or (index == stop[0] and stop[1] == 0):
            continue
        if not isinstance(piece, Lit):
            result.append(piece)
            continue
        first = begin[1] if index == begin[0] else 0
        last = stop[1] if index == stop[0] else len(piece.text)
        if first < last or not piece.text:
            result.append(piece.cut(first, last))
    return result


def matches(pattern: str, text: str) -> bool:
    """Does a bash pattern match the whole text?"""
    return re.match(translate(pattern), text) is not None


def trim(pieces: Text, operator: str, pattern: str) -> Text | None:
    """`${X#p}`, `##`, `%`, `%%`: what is left, provenance kept; None where X is unknown."""
    text = known(pieces)
    if text is None:
        return None
    ends = range(len(text) + 1)
    if operator in ("#", "%%"):
        order: Iterable[int] = ends
    else:
        order = reversed(ends)
    for at in order:
        if operator[0] == "#" and matches(pattern, text[:at]):
            return cut(pieces, at, len(text))
        if operator[0] == "%" and matches(pattern, text[at:]):
            return cut(pieces, 0, at)
    return pieces


def cut(pieces: Sequence[Lit | Hole], begin: int, stop: int) -> Text:
    """Characters [begin, stop) of known text."""
    result: list[Lit | Hole] = []
    at = 0
    for piece in pieces:
        if isinstance(piece, Lit):
            first, last = max(begin - at, 0), min(stop - at, len(piece.text))
            if first < last:
                result.append(piece.cut(first, last))
            at += len(piece.text)
    return tuple(result)


def write(text: str, context: Context) -> str | None:
    """How to write text in that place; None where it cannot stand there.

    Every caller reads the edited script again and compares, so this may be simple.
    """
    if context in ("bare", "default"):
        return shlex.quote(text) if text or context == "bare" else ""
    if context == "raw":
        return text.replace("'", "'\\''")
    if context in ("dq", "dq-default"):
        special = '\\"$`' + ("}" if context == "dq-default" else "")
        return "".join("\\" + c if c in special else c for c in text)
    if context == "ansi":
        return text.replace("\\", "\\\\").replace("'", "\\'")
    return text if context == "heredoc" else None
