"""Generated launchers (styles, flags, quoting), read and edited, judged by real bash."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lanectl.core import flags
from lanectl.core.flags import Asked, mismatches
from lanectl.core.launcher import Edit, edit, show
from lanectl.errors import EditRefused

VALUES = st.text(st.sampled_from("ab/._-=:,@%+é \"'\\$`*?[]{}~!#;&|<>()"), min_size=1, max_size=8)
VALUES = VALUES.filter(lambda text: not text.startswith("="))  # tree-sitter cannot parse a bare ==
JSON = st.fixed_dictionaries(
    {"method": st.sampled_from(["mtp", "eagle3", "a b", "it's"])},
    optional={
        "num_speculative_tokens": st.integers(1, 9),
        "model": st.sampled_from(["/m/draft", "$HOME/x", 'q"r', "\\n"]),
        "list": st.lists(st.integers(0, 3), max_size=2),
    },
)


def in_single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def in_double(text: str) -> str:
    return '"' + "".join("\\" + c if c in '\\"$`' else c for c in text) + '"'


def with_backslashes(text: str) -> str:
    if text != text.strip():
        return in_single(text)  # a bare escaped blank is taken for a broken continuation
    return "".join(c if c.isalnum() or c in "/._-" else "\\" + c for c in text)


def in_ansi(text: str) -> str:
    if "\\" in text:
        return in_single(text)  # tree-sitter reads $'\\' otherwise than bash; it is refused
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


QUOTES = st.sampled_from([shlex.quote, in_single, in_double, with_backslashes, in_ansi])


@st.composite
def words_of(draw: st.DrawFn) -> list[list[str]]:
    """The server's flags, each as the source text of its words."""
    quote = draw(QUOTES)
    found: list[list[str]] = [["--port", "8000"]]

    def add(flag: str, value: str) -> None:
        if draw(st.booleans()):
            found.append([f"{flag}={draw(QUOTES)(value)}"])
        else:
            found.append([flag, draw(QUOTES)(value)])

    for _ in range(draw(st.integers(0, 2))):
        flag = draw(st.sampled_from(["--max-num-seqs", "--max_num_seqs", "--max-num-s"]))
        add(flag, str(draw(st.integers(1, 300))))
    kind = draw(st.sampled_from(["none", "json", "json", "json", "dotted", "short", "old", "both"]))
    if kind in ("json", "both"):
        names = ["--speculative-config", "--speculative_config", "-sc", "--speculative-conf"]
        add(draw(st.sampled_from(names)), json.dumps(draw(JSON)))
    if kind in ("dotted", "both"):
        add("--speculative-config.method", "mtp")
        add("--speculative-config.num_speculative_tokens", "2")
    if kind == "short":
        add("--spec-method", "mtp")
        add("--spec-tokens", "3")
    if kind == "old":
        add("--speculative-model", "/m/draft")
        add("--num-speculative-tokens", "4")
    for flag in draw(st.lists(st.sampled_from(["--api-key", "--chat-template"]), max_size=2)):
        value = draw(VALUES)
        assume(not value.startswith("-"))
        found.append([flag, quote(value)])
    if draw(st.booleans()):
        found.append(["--enable-auto-tool-choice"])
    return draw(st.permutations(found))


@st.composite
def launchers(draw: st.DrawFn) -> bytes:
    """A whole script."""
    items = draw(words_of())
    start = draw(
        st.sampled_from(["vllm serve /m", "python3 -m vllm.entrypoints.openai.api_server"])
    )
    run = draw(
        st.sampled_from(["exec ", "", "exec env A=b ", "exec nice -n 5 ", "exec stdbuf -oL "])
    )
    log = draw(st.sampled_from(["", " >log 2>&1", " # done"]))
    flat = [word for item in items for word in item]
    head = draw(st.sampled_from(["", "set -euo pipefail\n", "# vllm serve --max-num-seqs 9\n"]))
    style = draw(
        st.sampled_from(["line", "lines", "array", "whole", "function", "set", "if", "redirect"])
    )
    indent = draw(st.sampled_from(["  ", "\t", "    "]))
    if style == "line":
        body = f"{run}{start} {' '.join(flat)}{log}\n"
    elif style == "lines":
        rows = [" ".join(item) for item in items]
        body = (
            f"{run}{start} " + "".join(f"\\\n{indent}{row} " for row in rows).rstrip() + log + "\n"
        )
    elif style == "array":
        rows = "".join(f"{indent}{' '.join(item)}\n" for item in items)
        body = f'ARGS=(\n{rows})\n{run}{start} "${{ARGS[@]}}"{log}\n'
    elif style == "whole":
        more = "".join(f"CMD+=({' '.join(item)})\n" for item in items)
        body = f'CMD=({start})\n{more}{run}"${{CMD[@]}}"{log}\n'
    elif style == "function":
        body = f'go() {{\n{indent}{run}{start} "$@"{log}\n}}\ngo {" ".join(flat)}\n'
    elif style == "set":
        more = "".join(f'set -- "$@" {" ".join(item)}\n' for item in items)
        body = f'{more}{run}{start} "$@"{log}\n'
    elif style == "if":
        more = "".join(
            f"if [ -e /{number}/nowhere ]; then A+=({' '.join(item)}); fi\n"
            if number == 1
            else f"A+=({' '.join(item)})\n"
            for number, item in enumerate(items)
        )
        body = f'A=()\n{more}{run}{start} "${{A[@]}}"{log}\n'
    else:
        half = len(items) // 2
        early, late = (
            " ".join(w for i in part for w in i) for part in (items[:half], items[half:])
        )
        body = f"{run}{start} {early} >log 2>&1 {late}\n"
    return f"#!/bin/bash\n{head}{body}".encode()


CHANGES = st.one_of(
    st.just((Edit(speculative=False), Asked(speculative=False))),
    st.integers(1, 999).map(lambda n: (Edit(max_num_seqs=n), Asked(max_num_seqs=n))),
    JSON.map(lambda j: (Edit(speculative=j), Asked(speculative=j))),
    VALUES.filter(lambda v: not v.startswith("-")).map(
        lambda v: (Edit(flags={"--api-key": v}), Asked(flags={"--api-key": v}))
    ),
    st.just((Edit(flags={"--enforce-eager": True}), Asked(flags={"--enforce-eager": True}))),
    st.just((Edit(flags={"--api-key": False}), Asked(flags={"--api-key": False}))),
)
STAND_IN = '#!/bin/bash\nprintf \'%s\\0\' "${0##*/}" "$@" > "$OUT"\n'


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name in ("vllm", "python3"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    return folder


def bash(source: bytes, programs: Path) -> list[str]:
    """The command line that the script starts in real bash."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "s.sh").write_bytes(source)
        env = {"PATH": f"{programs}:/usr/bin:/bin", "OUT": str(work / "out"), "LC_ALL": "C"}
        subprocess.run(["bash", "s.sh"], cwd=work, env=env, capture_output=True, check=False)
        text = (work / "out").read_bytes()
    return [word.decode() for word in text.split(b"\0")[:-1]]


def untouched(argv: list[str], change: Edit) -> list[str]:
    """The words that the change must leave alone."""
    at = flags.find_server(argv)
    assert at is not None
    gone: set[int] = set()
    for option in flags.parse(argv[at:]).options:
        if (
            (change.speculative is not None and flags.is_speculative(option.name))
            or (change.max_num_seqs is not None and option.name == "--max-num-seqs")
            or option.name in change.flags
        ):
            gone.update(range(at + option.start, at + option.end))
    return [word for n, word in enumerate(argv) if n not in gone]


RELAXED = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@RELAXED
@given(source=launchers())
def test_show_agrees_with_bash(source: bytes, programs: Path) -> None:
    view, live = show(source), flags.settings(bash(source, programs))
    assert view.editable, view.why_not
    if view.speculative != "unknown":
        assert view.speculative == live.speculative
    if view.max_num_seqs != "unknown":
        assert view.max_num_seqs == live.max_num_seqs
    if b"nowhere" not in source:
        assert view.settings is not None
        assert (view.speculative, view.max_num_seqs) == (live.speculative, live.max_num_seqs)
        assert dict(view.settings.flags) == dict(live.flags)


@RELAXED
@given(source=launchers(), asked=CHANGES)
def test_edits_reach_bash(source: bytes, asked: tuple[Edit, Asked], programs: Path) -> None:
    change, wanted = asked
    edited = edit(source, change)
    before, after = bash(source, programs), bash(edited, programs)
    assert mismatches(after, wanted) == []
    assert untouched(before, change) == untouched(after, change)
    assert edit(edited, change) == edited
    assert subprocess.run(["bash", "-n"], input=edited, check=False).returncode == 0


@RELAXED
@given(source=launchers())
def test_off_changes_only_lines_with_the_flag(source: bytes) -> None:
    edited = edit(source, Edit(speculative=False))
    kept = edited.decode().split("\n")
    gone = [row for row in source.decode().split("\n") if row not in kept]
    for row in gone:
        follows = source.decode().split(row, 1)[1].lstrip("\n \t")
        assert "spec" in row or "-sc" in row or follows.startswith(("--spec", "-sc", "--num-spec"))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(source: bytes) -> None:
    assert show(source).findings
    with pytest.raises(EditRefused):
        edit(source, Edit(max_num_seqs=8))


@RELAXED
@given(source=launchers(), data=st.data())
def test_damaged_launchers_are_shown_or_refused(source: bytes, data: st.DataObject) -> None:
    text = bytearray(source)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        piece: Any = data.draw(
            st.sampled_from([b'"', b"'", b"\\", b"\n", b"${", b"$(", b"`", b"("])
        )
        text[at : at + data.draw(st.integers(0, 3))] = piece
    show(bytes(text))
    for change in (Edit(speculative=False), Edit(max_num_seqs=8, env={"A": "1"})):
        try:
            edited = edit(bytes(text), change)
        except EditRefused:
            continue
        assert edit(edited, change) == edited
