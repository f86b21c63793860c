"""Where a change can be made: lists of patches that may reach a goal, the smallest first.

The places come from provenance, the source bytes that made a server's words. Nothing here is
trusted: `launcher_edit` reads the patched text again and keeps only what it can prove.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from lanectl.core.bash_commands import Run, Site
from lanectl.core.bash_text import Hole, Lit, Text, Word, cut, flat, write
from lanectl.core.launcher_goals import Goal, Target
from lanectl.core.launcher_read import Group, own_words
from lanectl.core.vllm_flags import MODEL

Gap = Literal["line", "after", "none"]
_DELETIONS: Final[tuple[tuple[int, Gap], ...]] = (
    *((0, "line"), (0, "after"), (0, "none"), (1, "line"), (1, "after"), (1, "none")),
)
"""Ways to delete words: the innermost or the outermost place, and which blanks go with it."""


class Patch(NamedTuple):
    """Put `text` in place of the source bytes [start, end)."""

    start: int
    end: int
    text: str


def apply(text: str, patches: Sequence[Patch]) -> str | None:
    """The text with the patches; None where they overlap."""
    result: list[str] = []
    at = 0
    for patch in sorted(patches):
        if patch.start < at:
            return None
        result += (text[at : patch.start], patch.text)
        at = patch.end
    return "".join([*result, text[at:]])


def candidates(text: str, group: Group, goal: Goal) -> Iterator[list[Patch]]:
    """Lists of patches, in the order in which to try them."""
    plans = [_Plan(text, run, goal) for run in group.runs]
    if not isinstance(goal.value, bool) and all(plan.kept for plan in plans):
        for level in range(3):
            for delete, gap in _DELETIONS:
                yield _all(
                    [*plan.new_value(level), *plan.deletions(delete, gap, keep=True)]
                    if plan.new_value(level)
                    else None
                    for plan in plans
                )
    sites = 1 if goal.value is False else max(len(run.sites) for run in group.runs)
    for site in range(sites):
        for delete, gap in _DELETIONS:
            yield _all(
                [*plan.deletions(delete, gap, keep=False), *plan.insertion(site)] for plan in plans
            )


def _all(parts: Iterator[list[Patch] | None] | Sequence[list[Patch] | None]) -> list[Patch]:
    """The patches of all runs; none at all where one run has no way."""
    result: list[Patch] = []
    for part in parts:
        if part is None:
            return []
        result += part
    return result


class _Plan:
    """What has to happen to one run's words."""

    def __init__(self, text: str, run: Run, goal: Goal) -> None:
        self.text = text if run.frame is None else flat(run.frame)
        self.run = run
        self.words = run.words[run.index :]
        self.goal = goal
        self.targets = goal.targets(own_words(run))
        self.kept: Target | None = next(
            (t for t in reversed(self.targets) if t.value_at is not None), None
        )

    def new_value(self, level: int) -> list[Patch]:
        """Replace the kept value: its bytes (0), its own word (1) or the argument it is in (2)."""
        if self.kept is None or self.kept.value_at is None:
            return []
        word, value = self.words[self.kept.value_at], str(self.goal.value)
        if level == 0:
            return self._place(_in_place(word, self.kept.offset, value))
        if not word.spans:
            return []
        start, end = word.spans[0] if level == 1 else word.spans[-1]
        head = word.text[: self.kept.offset]
        return self._place([Patch(start, end, head + shlex.quote(value))])

    def deletions(self, level: int, gap: Gap, keep: bool) -> list[Patch]:
        """Delete the words of all targets, or of all but the kept one."""
        spans: dict[tuple[int, int], bool] = {}
        for target in self.targets:
            if keep and target is self.kept:
                continue
            for word in self.words[target.start : target.end]:
                if word.spans:
                    span = word.spans[0] if level == 0 else word.spans[-1]
                    spans[span] = _is_inside_string(word, span)
        return self._place(
            [
                _removal(self.text, start, end, gap, any(spans[s] for s in spans if s[0] == start))
                for start, end in _joined(self.text, sorted(spans))
            ]
        )

    def insertion(self, number: int) -> list[Patch]:
        """Add the flag at the end of a command, on a line of its own where the command has
        lines. `number` counts from the command itself outwards through the function calls."""
        if self.goal.value is False or number >= len(self.run.sites):
            return []
        value = self.goal.value if isinstance(self.goal.value, str) else None
        words = (
            self.goal.spelling if value is None else f"{self.goal.spelling} {shlex.quote(value)}"
        )
        before = self.run.words[self.run.index - 1]
        if self.goal.flag == MODEL and number == 0 and before.text == "serve" and before.spans:
            at = before.spans[-1][1]
            return self._place([Patch(at, at, " " + shlex.quote(str(value)))])
        site = self.run.sites[number]
        end = site.items[-1][1]
        return self._place([Patch(end, end, _separator(self.text, site) + words)])

    def _place(self, patches: list[Patch]) -> list[Patch]:
        """Patches of the file, from patches of the text that the command was read from."""
        if self.run.frame is None:
            return patches
        placed = [_outward(patch, self.run.frame) for patch in patches]
        return [patch for patch in placed if patch is not None] if all(placed) else []


def _outward(patch: Patch, frame: Text) -> Patch | None:
    """A patch of the text inside a word, as a patch of the file: quoted once more."""
    at = 0
    first: Lit | None = None
    start = end = -1
    for piece in frame:
        if not isinstance(piece, Lit):
            return None
        stop = at + len(piece.text)
        exact = piece.end - piece.start == len(piece.text)
        if start < 0 and at <= patch.start <= stop and (exact or patch.start == at):
            start, first = piece.start + patch.start - at, piece
        if at <= patch.end <= stop and (exact or patch.end in (at, stop)) and start >= 0:
            end = piece.end if patch.end == stop else piece.start + patch.end - at
        if first is not None and (piece.context != first.context or piece.start < first.start):
            return None
        if end >= 0:
            break
        at = stop
    written = write(patch.text, first.context) if first is not None else None
    if written is None or end < start or first is None or first.context == "bare":
        return None
    return Patch(start, end, written)


def _in_place(word: Word, offset: int, value: str) -> list[Patch]:
    """Replace the value's own bytes, if they are one unbroken piece of source."""
    if any(isinstance(piece, Hole) for piece in word.pieces):
        return []
    pieces = cut(word.pieces, offset, len(word.text))
    lits = [piece for piece in pieces if isinstance(piece, Lit)]
    if not lits or any(lit.context != lits[0].context for lit in lits):
        return []
    if any(one.end != two.start for one, two in pairwise(lits)):
        return []
    written = write(value, lits[0].context)
    return [] if written is None else [Patch(lits[0].start, lits[-1].end, written)]


def _is_inside_string(word: Word, span: tuple[int, int]) -> bool:
    """Is the span text within quotes, of which the quotes are no part?"""
    first = word.pieces[0] if word.pieces else None
    return (
        isinstance(first, Lit)
        and first.context in ("dq", "raw", "ansi")
        and (first.start == span[0])
    )


def _joined(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans with only blanks between them become one."""
    result: list[tuple[int, int]] = []
    for start, end in spans:
        if result and not text[result[-1][1] : start].replace("\\\n", "").strip(" \t\n"):
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _removal(text: str, start: int, end: int, gap: Gap, in_string: bool) -> Patch:
    """Delete a range with the blanks that belong to it, so that no odd line is left."""
    after = end
    while text[after : after + 1] in (" ", "\t"):
        after += 1
    if gap == "none":
        return Patch(start, end, "")
    if gap == "after":
        return Patch(start, after, "")
    before = start
    while text[before - 1 : before] in (" ", "\t"):
        before -= 1
    opening = text[before - 1 : before]
    if in_string and opening in ('"', "'"):
        whole = text[after : after + 1] == opening
        return Patch(before if whole else start, after, "")
    begins_line = opening == "\n"
    rest = text[after:].split("\n", 1)[0]
    ends_line = rest in ("", "\\") or rest.startswith("#")
    if (begins_line and not ends_line) or opening == "(":
        return Patch(start, after, "")
    if begins_line:
        before -= 1
        if text[before - 1 : before] == "\\":
            before -= 1
            while text[before - 1 : before] in (" ", "\t"):
                before -= 1
    return Patch(before, end, "")


def _separator(text: str, site: Site) -> str:
    """What goes between a command's last word and a new one."""
    newline = text.rfind("\n", site.items[0][0], site.items[-1][0])
    if newline < 1 or text[newline - 1] != "\\":
        return " "
    stop = newline + 1
    while text[stop : stop + 1] in (" ", "\t"):
        stop += 1
    return " \\\n" + text[newline + 1 : stop]
