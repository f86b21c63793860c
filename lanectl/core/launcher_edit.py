"""Edit a launcher: try places for a change, and take the first one that is proven.

The places come from provenance: the source bytes that made a server's words. A candidate is a list
of patches. The patched text is read again from nothing, and counts only if every server has the
words it had, apart from those that the change is about.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from lanectl.core.bash_commands import Run, Site
from lanectl.core.bash_state import first
from lanectl.core.bash_text import Hole, Lit, Text, Word, cut, known, write
from lanectl.core.launcher_findings import Finding
from lanectl.core.launcher_goals import Edit, Goal, Target, clean_env, goals
from lanectl.core.launcher_read import Group, Reading, own_words, utf8
from lanectl.errors import EditRefused

_PROFILES: Final = (
    "set the launcher's own knobs with an `env` profile, or give the whole text with a `script` "
    "profile"
)
_WATCHED_ENV: Final = ("VLLM_", "CUDA_", "NCCL_", "HF_", "TORCH", "PYTORCH_", "LD_")
"""Environment of the server that an edit of flags must leave as it is."""


class Patch(NamedTuple):
    """Put `text` in place of the source bytes [start, end)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Obstacle:
    """Why a launcher cannot be edited at all."""

    message: str
    line: int | None
    next_step: str = _PROFILES


def edit(source: bytes, change: Edit, *, port: int | None = None) -> bytes:
    """The source with the change. Raises EditRefused where the change cannot be proven."""
    wanted, env = goals(change), clean_env(change.env)
    reading = Reading(source)
    _refuse_obstacle(reading, port)
    for name, value in env.items():
        reading = _set_env(reading, name, value, port)
    for goal in wanted:
        reading = _reach(reading, goal, port)
    if wanted or env:
        _check_all(reading, wanted, env, port)
    return reading.text.encode("latin-1")


def obstacle(reading: Reading, picked: Sequence[Group], port: int | None) -> Obstacle | None:
    """What stands against any edit of the picked server."""
    blocking = reading.blocking()
    if blocking is not None:
        return Obstacle(f"{blocking.message} [{blocking.code}]", blocking.line)
    if not picked:
        if not reading.groups:
            data = next((f for f in reading.findings if f.code == "server-in-data"), None)
            found = data or next((f for f in reading.findings if f.code == "no-server"), None)
            return Obstacle(
                found.message if found else "no server is started here",
                found.line if found else None,
            )
        return Obstacle(f"no server here listens on port {port}: {_list(reading.groups)}", None)
    if len(picked) > 1:
        said = "the file starts several servers" if port is None else f"several use port {port}"
        return Obstacle(f"{said}: {_list(picked)}", None, "name one with --port")
    group = picked[0]
    line = group.first.line
    if not group.first.reached:
        return Obstacle("this server is in a branch that the launcher's defaults never reach", line)
    if group.container:
        return Obstacle("the server runs in a container, which outlives its client", line)
    if any(run.embedded for run in group.runs):
        return Obstacle("the server's command stands inside a quoted text", line)
    return None


def _list(groups: Sequence[Group]) -> str:
    servers = [group.server() for group in groups]
    return "; ".join(
        f"line {server.line}, port {server.port or 'not said'}: {' '.join(server.argv)[:80]}"
        for server in servers
    )


def _refuse_obstacle(reading: Reading, port: int | None) -> Group:
    picked = reading.pick(port)
    found = obstacle(reading, picked, port)
    if found is not None:
        raise EditRefused(found.message, line=found.line, next_step=found.next_step)
    return picked[0]


# Reaching one goal


def _reach(reading: Reading, goal: Goal, port: int | None) -> Reading:
    group = _refuse_obstacle(reading, port)
    if all(goal.unmet(own_words(run)) is None for run in group.runs):
        return reading
    reason: str | None = None
    tried: set[tuple[Patch, ...]] = set()
    for patches in _candidates(reading.text, group, goal):
        ordered = tuple(sorted(set(patches)))
        if not ordered or ordered in tried:
            continue
        tried.add(ordered)
        text = apply(reading.text, ordered)
        if text is None:
            continue
        after = Reading(text.encode("latin-1"))
        failure = _disproof(reading, after, goal, port)
        if failure is None:
            return after
        reason = reason or failure
    line, cause = _cause(group, goal, reason)
    raise EditRefused(
        f"{goal.label} cannot be proven to be {_asked(goal)}: {cause}",
        line=line,
        next_step=_PROFILES,
    )


def _asked(goal: Goal) -> str:
    if goal.value is False:
        return "off"
    return "set" if goal.value is True else utf8(str(goal.value))


def _cause(group: Group, goal: Goal, reason: str | None) -> tuple[int, str]:
    """The line and the cause to name in a refusal."""
    for run in group.runs:
        for word in run.words[run.index :]:
            for piece in word.pieces:
                if isinstance(piece, Hole) and piece.kind == "words":
                    return piece.line or run.line, f"{utf8(piece.source)}: {utf8(piece.cause)}"
    run = group.first
    for target in goal.targets(own_words(run)):
        for word in run.words[run.index + target.start : run.index + target.end]:
            for piece in word.pieces:
                if isinstance(piece, Hole):
                    return piece.line or run.line, f"{utf8(piece.source)}: {utf8(piece.cause)}"
    return run.line, reason or "there is no place for it in the script"


def _disproof(before: Reading, after: Reading, goal: Goal, port: int | None) -> str | None:
    """Why the edited text is not what was asked; None when it is proven to be."""
    blocking = after.blocking() or _new_error(before, after)
    if blocking is not None:
        return blocking.message
    if len(before.groups) != len(after.groups):
        return "another set of servers would start"
    for old, new in zip(before.groups, after.groups, strict=True):
        is_picked = old in before.pick(port)
        touched = goal if is_picked else None
        if {_rest(run, touched) for run in old.runs} != {_rest(run, touched) for run in new.runs}:
            return "other words of a server's command would change too"
        unmet = [goal.unmet(own_words(run)) for run in new.runs] if is_picked else []
        cause = next((u for u in unmet if u is not None), None)
        if cause is not None:
            return utf8(cause)
    if set(before.shell.effects) != set(after.shell.effects):
        return "other commands of the script would change too"
    return None


def _new_error(before: Reading, after: Reading) -> Finding | None:
    """An error that the text did not have."""
    old = [f.code for f in before.findings if f.severity == "error"]
    for finding in after.findings:
        if finding.severity == "error":
            if finding.code not in old:
                return finding
            old.remove(finding.code)
    return None


def _rest(run: Run, goal: Goal | None) -> tuple[object, ...]:
    """All that must stay as it is."""
    own = own_words(run)
    gone: set[int] = set()
    for target in goal.targets(own) if goal is not None else []:
        gone.update(range(target.start, target.end))
    words = [word.shown for word in run.words[: run.index]]
    words += [word.shown for at, word in enumerate(run.words[run.index :]) if at not in gone]
    env = {name: first(v) for name, v in run.vars.items() if name in run.exported and v is not None}
    watched = {
        name: "".join(p.text if isinstance(p, Lit) else p.source for p in value)
        for name, value in {**env, **run.prefix}.items()
        if name.startswith(_WATCHED_ENV)
    }
    return tuple(words), tuple(sorted(run.around)), tuple(sorted(watched.items())), run.reached


# Candidates


def _candidates(text: str, group: Group, goal: Goal) -> Iterator[list[Patch]]:
    """Lists of patches that may reach the goal, the ones that change least first."""
    plans = [_Plan(run, goal) for run in group.runs]
    if goal.value is False or goal.value is True or not all(plan.kept for plan in plans):
        sites = max(len(run.sites) for run in group.runs)
        inserts = [None] if goal.value is False else list(range(sites))
        for site in inserts:
            for level, gap in _DELETIONS:
                added = [] if site is None else _insertions(text, group, goal, site)
                removed = [
                    p for plan in plans for p in plan.deletions(text, level, gap, keep=False)
                ]
                yield removed + added
                if not any(plan.targets for plan in plans):
                    break
        return
    for value_level in range(3):
        for level, gap in _DELETIONS:
            patches: list[Patch] = []
            for plan in plans:
                patch = plan.new_value(value_level)
                if patch is None:
                    break
                patches += [patch, *plan.deletions(text, level, gap, keep=True)]
            else:
                yield patches
    for site in range(max(len(run.sites) for run in group.runs)):
        for level, gap in _DELETIONS:
            removed = [p for plan in plans for p in plan.deletions(text, level, gap, keep=False)]
            yield removed + _insertions(text, group, goal, site)


_DELETIONS: Final = tuple((level, gap) for level in (0, 1) for gap in ("line", "after", "none"))
"""Ways to delete words: the innermost or the outermost place, and what goes with it."""


class _Plan:
    """What has to happen to one run's words."""

    def __init__(self, run: Run, goal: Goal) -> None:
        self.words = run.words[run.index :]
        self.goal = goal
        self.targets = goal.targets(own_words(run))
        self.kept: Target | None = next(
            (t for t in reversed(self.targets) if t.value_at is not None), None
        )

    def new_value(self, level: int) -> Patch | None:
        """Replace the kept value: its bytes (0), its own word (1) or the argument it is in (2)."""
        if self.kept is None or self.kept.value_at is None:
            return None
        word, value = self.words[self.kept.value_at], str(self.goal.value)
        if level == 0:
            return _in_place(word, self.kept.offset, value)
        if not word.spans:
            return None
        start, end = word.spans[0] if level == 1 else word.spans[-1]
        head = word.text[: self.kept.offset]
        return Patch(start, end, head + shlex.quote(value))

    def deletions(self, text: str, level: int, gap: str, keep: bool) -> list[Patch]:
        spans: set[tuple[int, int]] = set()
        for target in self.targets:
            if keep and target is self.kept:
                continue
            for word in self.words[target.start : target.end]:
                if word.spans:
                    spans.add(word.spans[0] if level == 0 else word.spans[-1])
        return [_removal(text, start, end, gap) for start, end in _joined(text, sorted(spans))]


def _in_place(word: Word, offset: int, value: str) -> Patch | None:
    """Replace the value's own bytes, if they are one unbroken piece of source."""
    if any(isinstance(piece, Hole) for piece in word.pieces):
        return None
    pieces: Text = cut(word.pieces, offset, len(word.text))
    lits = [piece for piece in pieces if isinstance(piece, Lit)]
    if not lits or any(lit.context != lits[0].context for lit in lits):
        return None
    if any(one.end != two.start for one, two in pairwise(lits)):
        return None
    written = write(value, lits[0].context)
    return None if written is None else Patch(lits[0].start, lits[-1].end, written)


def _joined(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans with only blanks between them become one."""
    result: list[tuple[int, int]] = []
    for start, end in spans:
        if result and not text[result[-1][1] : start].replace("\\\n", "").strip(" \t\n"):
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _removal(text: str, start: int, end: int, gap: str) -> Patch:
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
    begins_line = text[before - 1 : before] == "\n"
    rest = text[after:].split("\n", 1)[0]
    ends_line = rest in ("", "\\") or rest.startswith("#")
    opening = text[before - 1 : before]
    if opening in ('"', "'") and text[after : after + 1] == opening:
        return Patch(before, after, "")  # all that was in a string
    if (begins_line and not ends_line) or opening in ("(", '"', "'"):
        return Patch(start, after, "")
    if begins_line:
        before -= 1
        if text[before - 1 : before] == "\\":
            before -= 1
            while text[before - 1 : before] in (" ", "\t"):
                before -= 1
    return Patch(before, end, "")


def _insertions(text: str, group: Group, goal: Goal, number: int) -> list[Patch]:
    """Add the flag at the end of a command, on a line of its own where the command has lines."""
    value = goal.value if isinstance(goal.value, str) else None
    words = goal.spelling if value is None else f"{goal.spelling} {shlex.quote(value)}"
    result: list[Patch] = []
    for run in group.runs:
        if number >= len(run.sites):
            return []
        site = run.sites[number]
        if goal.flag == "--model" and number == 0 and run.index >= 1:
            at = run.words[run.index - 1].spans[-1][1]
            is_serve = run.words[run.index - 1].text == "serve"
            result.append(Patch(at, at, " " + (shlex.quote(str(value)) if is_serve else words)))
            continue
        end = site.items[-1][1]
        result.append(Patch(end, end, _separator(text, site) + words))
    return result


def _separator(text: str, site: Site) -> str:
    newline = text.rfind("\n", site.items[0][0], site.items[-1][0])
    if newline < 1 or text[newline - 1] != "\\":
        return " "
    stop = newline + 1
    while text[stop : stop + 1] in (" ", "\t"):
        stop += 1
    return " \\\n" + text[newline + 1 : stop]


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


# The environment


def _set_env(reading: Reading, name: str, value: str, port: int | None) -> Reading:
    """Set a variable where the launcher's own default stands, or export it at the top."""
    group = _refuse_obstacle(reading, port)
    if _env_unmet(reading, name, value, port) is None and name in group.first.vars:
        return reading
    notes = reading.shell.notes
    defaults = [
        Patch(p.start, p.end, write(value, "dq-default" if p.in_quotes else "default") or "")
        for p in notes.defaults.get(name, [])
    ]
    assigned = [Patch(p.start, p.end, shlex.quote(value)) for p in notes.assigned.get(name, [])]
    words = [
        Patch(piece.start, piece.end, shlex.quote(value))
        for run in group.runs
        for piece in run.prefix.get(name, ())
        if isinstance(piece, Lit) and len(run.prefix[name]) == 1 and piece.context != "made"
    ]
    at = _header_end(reading)
    written = write(value, "raw")
    export = [Patch(at, at, f"export {name}='{written}'\n")]
    reason = None
    for patches in (defaults + assigned, defaults, assigned, words, export):
        text = apply(reading.text, sorted(set(patches)))
        if not patches or text is None:
            continue
        after = Reading(text.encode("latin-1"))
        error = after.blocking() or _new_error(reading, after)
        failure = error.message if error else _env_unmet(after, name, value, port)
        if failure is None:
            return after
        reason = reason or failure
    places = notes.assigned.get(name) or notes.defaults.get(name)
    raise EditRefused(
        f"{name} cannot be proven to be {utf8(value)!r} when the server starts: {reason}",
        line=places[0].line if places else group.first.line,
        next_step="give the whole text with a `script` profile",
    )


def _env_unmet(reading: Reading, name: str, value: str, port: int | None) -> str | None:
    picked = reading.pick(port)
    if len(picked) != 1 or not picked[0].first.reached:
        return "the server would not start any more"
    reads = reading.shell.notes.reads.get(name, [])
    if any(known(text) != value for text in reads):
        return f"{name} is used with another value"
    for run in picked[0].runs:
        said = run.prefix.get(name) or run.vars.get(name)
        if said is None and not (reads and name not in run.vars):
            return f"{name} is not set when the server starts"
        if said is not None and known(first(said)) != value:
            return f"{name} has another value when the server starts"
    return None


def _header_end(reading: Reading) -> int:
    """After the shebang, the first comments and the `set` lines."""
    end = last_row = 0
    block = True
    for node in reading.shell.tree.root_node.children:
        is_set = node.type == "command" and reading.shell.text(node).split()[0] == "set"
        if node.type != "comment" and not is_set:
            break
        if node.start_point[0] > last_row + 1 and not is_set:
            block = False
        last_row = node.end_point[0]
        if block or is_set:
            newline = reading.text.find("\n", node.end_byte)
            end = len(reading.text) if newline < 0 else newline + 1
    return end


def _check_all(
    reading: Reading, wanted: Sequence[Goal], env: dict[str, str], port: int | None
) -> None:
    """All goals at once: one must not undo another."""
    group = _refuse_obstacle(reading, port)
    for goal in wanted:
        cause = next((u for u in (goal.unmet(own_words(r)) for r in group.runs) if u), None)
        if cause is not None:
            raise EditRefused(
                f"the changes contradict each other: {goal.label}: {utf8(cause)}",
                line=group.first.line,
                next_step="ask for one value of each setting",
            )
    for name, value in env.items():
        cause = _env_unmet(reading, name, value, port)
        if cause is not None:
            raise EditRefused(cause, line=group.first.line, next_step=_PROFILES)
