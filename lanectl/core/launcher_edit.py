"""Edit a launcher: try places for a change, and take the first one that is proven.

The places come from provenance: the source bytes that made a server's words. A candidate is a list
of patches. The patched text is read again from nothing, and counts only if every server has the
words it had, apart from those that the change is about.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lanectl.core.bash_commands import Run
from lanectl.core.bash_state import first
from lanectl.core.bash_text import Hole, Lit, known, write
from lanectl.core.launcher_findings import Finding
from lanectl.core.launcher_goals import Edit, Goal, clean_env, goals
from lanectl.core.launcher_patches import Patch, apply, candidates
from lanectl.core.launcher_read import Group, Reading, own_words, utf8
from lanectl.errors import EditRefused

_PROFILES: Final = (
    "set the launcher's own knobs with an `env` profile, or give the whole text with a `script` "
    "profile"
)
_BAD_JSON: Final = ("unquoted-json", "bad-json-quotes")
_WATCHED_ENV: Final = ("VLLM_", "CUDA_", "NCCL_", "HF_", "TORCH", "PYTORCH_", "LD_")
"""Environment of the server that an edit of flags must leave as it is."""


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
    if any(run.frame == () for run in group.runs):
        return Obstacle("the server's command stands in text within a text", line)
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
    if any(_has_loose_value(run, goal) for run in group.runs):
        line, cause = _cause(reading, group, goal, "its value is not one word")
        raise EditRefused(
            f"{goal.label} cannot be proven to be {_asked(goal)}: {cause}",
            line=line,
            next_step=_PROFILES,
        )
    reason: str | None = None
    tried: set[tuple[Patch, ...]] = set()
    for patches in candidates(reading.text, group, goal):
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
    line, cause = _cause(reading, group, goal, reason)
    raise EditRefused(
        f"{goal.label} cannot be proven to be {_asked(goal)}: {cause}",
        line=line,
        next_step=_PROFILES,
    )


def _has_loose_value(run: Run, goal: Goal) -> bool:
    """Could the words to be replaced be more than they are taken for?"""
    touched = [
        run.words[run.index + t.start : run.index + t.end] for t in goal.targets(own_words(run))
    ]
    holes = [p for some in touched for word in some for p in word.pieces if isinstance(p, Hole)]
    return any(hole.kind == "words" and hole.source.startswith("{") for hole in holes)


def _asked(goal: Goal) -> str:
    if goal.value is False:
        return "off"
    return "set" if goal.value is True else utf8(str(goal.value))


def _cause(reading: Reading, group: Group, goal: Goal, reason: str | None) -> tuple[int, str]:
    """The line and the cause to name in a refusal."""
    for run in group.runs:
        own = run.words[run.index :]
        touched = {
            at for target in goal.targets(own_words(run)) for at in range(target.start, target.end)
        }
        for at, word in enumerate(own):
            for piece in word.pieces:
                if isinstance(piece, Hole) and (piece.kind == "words" or at in touched):
                    return piece.line or run.line, f"{utf8(piece.source)}: {utf8(piece.cause)}"
    bad = next((f for f in reading.findings if f.code in _BAD_JSON), None)
    if bad is not None:
        return bad.line, bad.message
    now = next((u for u in (goal.unmet(own_words(run)) for run in group.runs) if u), None)
    return group.first.line, utf8(reason or now or "there is no place for it in the script")


def _disproof(before: Reading, after: Reading, goal: Goal, port: int | None) -> str | None:
    """Why the edited text is not what was asked; None when it is proven to be."""
    blocking = after.blocking() or _new_error(before, after)
    if blocking is not None:
        return blocking.message
    if len(before.groups) != len(after.groups) or _rounds(before) != _rounds(after):
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


def _rounds(reading: Reading) -> tuple[int, list[bool | None]] | None:
    """How often servers in loops start, and what decides it; None where none is in a loop."""
    looped = sum(run.reached and "loop" in run.around for run in reading.shell.runs)
    return (looped, reading.shell.decided) if looped else None


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


# The environment


def _set_env(reading: Reading, name: str, value: str, port: int | None) -> Reading:
    """Set a variable where the launcher's own default stands, or export it at the top."""
    group = _refuse_obstacle(reading, port)
    if _env_unmet(reading, name, value, port) is None and name in group.first.vars:
        return reading
    notes = reading.shell.notes
    defaults = [
        Patch(p.start, p.end, write(value, "dq-default" if p.in_quotes else "default") or "")
        for p in notes.defaults.get(name, ())
    ]
    assigned = [Patch(p.start, p.end, shlex.quote(value)) for p in notes.assigned.get(name, ())]
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
    places = [*notes.assigned.get(name, ()), *notes.defaults.get(name, ())]
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
    bad = next((f for f in reading.findings if f.code in _BAD_JSON), None)
    if bad is not None:
        raise EditRefused(bad.message, line=bad.line, next_step="repair the JSON first")
    for name, value in env.items():
        cause = _env_unmet(reading, name, value, port)
        if cause is not None:
            raise EditRefused(cause, line=group.first.line, next_step=_PROFILES)
