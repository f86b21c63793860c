"""Every launcher case: what is shown, and what edits do, judged by real bash.

The oracle runs a launcher with stand-ins for the programs it starts. A stand-in writes its own
words to a file; the launcher's text decides what they are, and nothing of lanectl is involved.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lanectl.core import flags
from lanectl.core.flags import Asked, mismatches, settings
from lanectl.core.launcher import Edit, edit, show
from lanectl.errors import EditRefused

_PROGRAMS = (
    *("vllm", "python", "python3", "uv", "numactl", "docker", "podman", "screen", "tmux"),
    *("taskset", "chrt", "ionice", "nvidia-smi", "sleep", "nohup"),
)
_STAND_IN = """#!/bin/bash
{ printf '%s\\0' "${0##*/}" "$@"; printf '\\n\\0'; } >> "$ORACLE_OUT"
[ "${0##*/}" != nvidia-smi ]
"""


class Oracle:
    """Runs launchers in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[bytes, list[list[str]]] = {}
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in _PROGRAMS:
            program = self.programs / name
            program.write_text(_STAND_IN)
            program.chmod(0o755)

    def commands(self, source: bytes, **env: str) -> list[list[str]]:
        """The command line of each program that the launcher starts, in order."""
        if not env and source in self.seen:
            return self.seen[source]
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            work = Path(name)
            (work / "launcher.sh").write_bytes(source)
            out = work / "out"
            alive, held = os.pipe()  # readable to its end when the last background process is gone
            subprocess.run(
                ["bash", "launcher.sh"],
                cwd=work,
                env={
                    "PATH": f"{self.programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
                    "HOME": str(work),
                    "LC_ALL": "C",
                    "ORACLE_OUT": str(out),
                    **env,
                },
                capture_output=True,
                timeout=20,
                check=False,
                pass_fds=(held,),
            )
            os.close(held)
            with os.fdopen(alive) as pipe:
                pipe.read()
            text = out.read_bytes() if out.exists() else b""
        found = [
            [word.decode("utf-8", "replace") for word in part.split(b"\0")[:-1]]
            for part in text.split(b"\n\0")
            if part
        ]
        if not env:
            self.seen[source] = found
        return found

    def servers(self, source: bytes, **env: str) -> list[list[str]]:
        return [
            argv for argv in self.commands(source, **env) if flags.find_server(argv) is not None
        ]


CASES = Path(__file__).parent.parent / "launcher_cases"
MTP = {"method": "mtp", "num_speculative_tokens": 3}
ASKED = {"method": "mtp", "num_speculative_tokens": 1}
EDITS: dict[str, tuple[Edit, Asked]] = {
    "off": (Edit(speculative=False), Asked(speculative=False)),
    "8": (Edit(max_num_seqs=8), Asked(max_num_seqs=8)),
    "json": (Edit(speculative=ASKED), Asked(speculative=ASKED)),
    "flags": (
        Edit(flags={"--enforce-eager": True, "--max-model-len": "65536"}),
        Asked(flags={"--enforce-eager": True, "--max-model-len": "65536"}),
    ),
    "model": (Edit(model="/models/new one"), Asked(model="/models/new one")),
}
ALL = frozenset(EDITS)


@dataclass(frozen=True)
class Case:
    """What is right for one file. `refused` are the edits that must be refused; `unrun` says that
    bash here does not reach the server."""

    speculative: Any
    max_num_seqs: Any
    codes: set[str] = field(default_factory=set)
    refused: frozenset[str] = frozenset()
    unrun: bool = False


UNKNOWN = "unknown"
NO_EXEC = {"no-exec"}
DEFAULT = {"environment-default"}
TABLE: dict[str, Case] = {
    "L01_plain": Case({"method": "qwen3_next_mtp", "num_speculative_tokens": 2}, 1),
    "L02_last_flag": Case(MTP, 1, NO_EXEC),
    "L03_commented": Case(False, None, NO_EXEC),
    "L04_comment_mid": Case(
        False, None, NO_EXEC | {"comment-in-continuation", "flags-not-reached"}, ALL
    ),
    "L06_array_env": Case(MTP, 128, DEFAULT),
    "L07_paramexp": Case({"method": "mtp", "num_speculative_tokens": 2}, 16, DEFAULT | NO_EXEC),
    "L08_docker_splice": Case(
        {"method": "mtp", "num_speculative_tokens": 2}, 16, DEFAULT | {"container"}, ALL, True
    ),
    "L09_heredoc": Case(UNKNOWN, UNKNOWN, {"no-server", "server-in-data"}, ALL, True),
    "L12_shortcuts": Case(MTP, 4),
    "L13_alias_sc": Case(MTP, 4),
    "L14_var_string": Case(MTP, 4),
    "L16_dup": Case(MTP, 4, NO_EXEC | {"duplicate-flag"}),
    "L18_case": Case(MTP, 4, DEFAULT),
    "L20_crlf": Case(UNKNOWN, UNKNOWN, {"crlf"}, ALL, True),
    "L22_whileloop": Case(False, 4, NO_EXEC | {"loop"}),
    "abbreviated": Case(MTP, 4),
    "alternative": Case(MTP, 4),
    "and_or_chain": Case(False, 4),
    "ansi_strings": Case(MTP, 4),
    "argument_loop": Case(False, 4),
    "arithmetic_choice": Case(MTP, 4, DEFAULT),
    "array_multiline": Case(MTP, 4),
    "array_whole_command": Case(MTP, 4),
    "background_wait": Case(MTP, 4, {"background"}),
    "backslash_json": Case(MTP, 4),
    "backslash_space": Case(UNKNOWN, UNKNOWN, {"backslash-space"}, ALL),
    "bad_json_quotes": Case(UNKNOWN, 4, {"bad-json-quotes"}, frozenset({"8", "flags", "model"})),
    "bash_c": Case(False, 4),
    "brace_list": Case(False, 4),
    "case_default_two_servers": Case(False, UNKNOWN, DEFAULT | {"several-servers"}, ALL),
    "case_two_servers": Case(False, UNKNOWN, {"several-servers"}, ALL, True),
    "colon_defaults": Case(False, 4, DEFAULT),
    "config_file": Case(UNKNOWN, UNKNOWN, {"config-file"}, frozenset({"off"})),
    "config_file_and_flag": Case(UNKNOWN, 4, {"config-file"}, frozenset({"off"})),
    "continued_inside_word": Case(MTP, 4),
    "docker_image": Case(False, 4, {"container"}, ALL, True),
    "dotted": Case(MTP, 4),
    "dotted_beats_json": Case({"method": "ngram"}, 4),
    "double_quoted_json": Case(MTP, 4),
    "env_wrapper": Case(MTP, 4),
    "escaped_spaces": Case(False, 4),
    "eval_string": Case(UNKNOWN, 4, {"eval", "bad-json-quotes"}, ALL),
    "extra_from_environment": Case(UNKNOWN, UNKNOWN, {"unknown-words"}, frozenset({"off", "json"})),
    "flag_in_variable": Case(False, 4),
    "flags_from_program": Case(UNKNOWN, UNKNOWN, {"unknown-words"}, frozenset({"off", "json"})),
    "function_args": Case(MTP, 4),
    "function_two_calls": Case(UNKNOWN, UNKNOWN, {"background", "several-servers"}, ALL),
    "glob": Case(False, 4),
    "guards": Case(False, 4, DEFAULT),
    "heredoc_json": Case(MTP, 4),
    "heredoc_read": Case(MTP, 4),
    "if_else_two_servers": Case(UNKNOWN, UNKNOWN, {"several-servers"}, ALL),
    "if_unknown_appends": Case(UNKNOWN, 4),
    "if_unknown_value": Case(False, UNKNOWN),
    "ifs": Case(False, None),
    "json_over_lines": Case(MTP, 4),
    "loop_builds_array": Case(False, 4),
    "loop_splits_pairs": Case(False, 4),
    "mixed_quotes": Case(MTP, 4),
    "nested_dotted": Case({"a": {"b": 1}, "method": "eagle"}, 4),
    "no_last_newline": Case(False, 4),
    "nohup_background": Case(MTP, 4, {"background"}),
    "nproc": Case(False, UNKNOWN),
    "odd_quotes": Case(False, 4),
    "old_speculative_model": Case({"model": "/m/draft", "num_speculative_tokens": 5}, 4),
    "overwritten_array": Case(False, 8),
    "printf_substitution": Case(MTP, 4),
    "printf_v": Case(MTP, 4),
    "python_module_inline": Case(MTP, 4),
    "quoted_flags": Case(False, 4),
    "realistic": Case(False, 4, DEFAULT),
    "redirect_last_line": Case(MTP, 4),
    "redirect_then_words": Case(MTP, 4),
    "screen": Case(False, 4, {"detached"}),
    "script_arguments": Case(False, 4, {"script-arguments"}),
    "semicolons": Case(MTP, 4),
    "set_positional": Case(MTP, 4),
    "several_flags_a_line": Case(MTP, 4),
    "shared_variable": Case(False, 4),
    "sourced_file": Case(
        UNKNOWN, UNKNOWN, {"sourced-file", "unknown-words"}, frozenset({"off", "json"})
    ),
    "string_appended": Case(MTP, 4, DEFAULT),
    "subshell": Case(False, 4),
    "tabs": Case(MTP, 4),
    "tee_pipe": Case(MTP, 4, {"pipeline"}),
    "tmux": Case(False, 4, {"detached"}, unrun=True),
    "trailing_backslash": Case(MTP, 4),
    "trailing_comment": Case(MTP, 4),
    "two_servers": Case(UNKNOWN, UNKNOWN, {"background", "several-servers"}, ALL),
    "underscores": Case(MTP, 4),
    "unquoted_json": Case(UNKNOWN, 4, {"unquoted-json"}, ALL),
    "until_loop": Case(False, 4, {"loop"}),
    "unused_flags": Case(False, 4, {"unused-flags"}),
    "uv_run": Case(MTP, 4),
    "venv_activate": Case(False, 4),
    "while_read_file": Case(UNKNOWN, 4, {"unknown-words"}, frozenset({"off", "json"})),
    "wrappers": Case(MTP, 4),
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("oracle"))


def source_of(name: str) -> bytes:
    return (CASES / f"{name}.sh").read_bytes()


def rest(argv: list[str], asked: Asked) -> list[str]:
    """The words that an edit must leave alone."""
    at = flags.find_server(argv)
    assert at is not None
    own = argv[at:]
    parsed = flags.parse(own)
    gone: set[int] = set()
    for option in parsed.options:
        if (
            (asked.speculative is not None and flags.is_speculative(option.name))
            or (asked.max_num_seqs is not None and option.name == "--max-num-seqs")
            or (asked.model is not None and option.name == "--model")
            or option.name in asked.flags
        ):
            gone.update(range(option.start, option.end))
    if asked.model is not None and parsed.positionals:
        gone.add(parsed.positionals[0])
    return argv[:at] + [word for n, word in enumerate(own) if n not in gone]


def test_every_file_has_its_row() -> None:
    assert {path.stem for path in CASES.glob("*.sh")} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_show(name: str) -> None:
    case, view = TABLE[name], show(source_of(name))
    assert (view.speculative, view.max_num_seqs) == (case.speculative, case.max_num_seqs)
    assert case.codes <= {finding.code for finding in view.findings}
    assert case.refused != ALL or case.codes & {"unquoted-json", "eval"} or not view.editable


@pytest.mark.parametrize("name", [n for n, c in TABLE.items() if not c.unrun])
def test_show_says_what_bash_passes(name: str, oracle: Oracle) -> None:
    view, live = show(source_of(name)), oracle.servers(source_of(name))
    assert live
    for argv in live:
        said = settings(argv)
        if view.speculative != UNKNOWN:
            assert view.speculative == said.speculative
        if view.max_num_seqs != UNKNOWN:
            assert view.max_num_seqs == said.max_num_seqs


@pytest.mark.parametrize("wanted", EDITS)
@pytest.mark.parametrize("name", TABLE)
def test_edit_is_proven_in_bash(name: str, wanted: str, oracle: Oracle) -> None:
    case, source = TABLE[name], source_of(name)
    change, asked = EDITS[wanted]
    if wanted in case.refused:
        with pytest.raises(EditRefused) as caught:
            edit(source, change)
        assert caught.value.next_step
        return
    edited = edit(source, change)
    assert edit(edited, change) == edited
    before, after = oracle.commands(source), oracle.commands(edited)
    assert len(after) == len(before)
    old, new = oracle.servers(source), oracle.servers(edited)
    assert len(old) == len(new)
    for argv in new:
        assert mismatches(argv, asked) == []
    assert [rest(argv, asked) for argv in old] == [rest(argv, asked) for argv in new]
    view = show(edited)
    if wanted == "off":
        assert view.speculative is False
    elif wanted == "json":
        assert view.speculative == ASKED
    elif wanted == "8":
        assert view.max_num_seqs == 8


def changed(source: bytes, edited: bytes) -> tuple[list[str], list[str]]:
    """The lines that went, and those that came."""
    old, new = source.decode().split("\n"), edited.decode().split("\n")
    return [x for x in old if x not in new], [x for x in new if x not in old]


@pytest.mark.parametrize(
    ("name", "change", "gone", "come"),
    [
        (
            "L01_plain",
            Edit(speculative=False),
            [
                "  --speculative-config "
                '\'{"method":"qwen3_next_mtp","num_speculative_tokens":2}\' \\'
            ],
            [],
        ),
        ("L01_plain", Edit(max_num_seqs=8), ["  --max-num-seqs 1 \\"], ["  --max-num-seqs 8 \\"]),
        (
            "L02_last_flag",
            Edit(speculative=False),
            [
                "    --max-num-seqs=1 \\",
                '    --speculative-config=\'{"method": "mtp", "num_speculative_tokens": 3}\'',
            ],
            ["    --max-num-seqs=1"],
        ),
        (
            "L02_last_flag",
            Edit(max_num_seqs=8),
            ["    --max-num-seqs=1 \\"],
            ["    --max-num-seqs=8 \\"],
        ),
        ("L03_commented", Edit(speculative=False), [], []),
        (
            "L03_commented",
            Edit(max_num_seqs=8),
            ["    --max-model-len 64000 "],
            ["    --max-model-len 64000 \\", "    --max-num-seqs 8 "],
        ),
        (
            "L06_array_env",
            Edit(env={"MTP": "0", "SEQS": "8"}),
            ["MTP=${MTP:-3}", "SEQS=${SEQS:-128}"],
            ["MTP=${MTP:-0}", "SEQS=${SEQS:-8}"],
        ),
        ("L06_array_env", Edit(max_num_seqs=8), ["SEQS=${SEQS:-128}"], ["SEQS=${SEQS:-8}"]),
        ("L18_case", Edit(env={"MODE": "none"}), ["MODE=${MODE:-mtp}"], ["MODE=${MODE:-none}"]),
        (
            "L14_var_string",
            Edit(max_num_seqs=8),
            ['VLLM_ARGS="--port 8000 --max-num-seqs 4"'],
            ['VLLM_ARGS="--port 8000 --max-num-seqs 8"'],
        ),
        (
            "shared_variable",
            Edit(max_num_seqs=8),
            ["exec vllm serve /models/q --max-num-seqs $N --max-loras $N"],
            ["exec vllm serve /models/q --max-num-seqs 8 --max-loras $N"],
        ),
    ],
)
def test_other_bytes_stay(name: str, change: Edit, gone: list[str], come: list[str]) -> None:
    source = source_of(name)
    assert changed(source, edit(source, change)) == (gone, come)


def test_one_truth_is_left() -> None:
    text = edit(source_of("L16_dup"), Edit(max_num_seqs=8)).decode()
    assert text.count("--max-num-seqs") == 1
    assert "--max-num-seqs 8" in text


def test_env_profile_switches_speculation_off_in_bash(oracle: Oracle) -> None:
    for name, env in (("L06_array_env", {"MTP": "0", "SEQS": "8"}), ("L18_case", {"MODE": "none"})):
        edited = edit(source_of(name), Edit(env=env))
        (argv,) = oracle.servers(edited)
        assert mismatches(argv, Asked(speculative=False)) == []


def test_a_port_picks_one_of_several(oracle: Oracle) -> None:
    for name in ("two_servers", "function_two_calls"):
        source = source_of(name)
        old = oracle.servers(source)
        new = oracle.servers(edit(source, Edit(max_num_seqs=32), port=8001))
        by_port = {settings(argv).port: settings(argv).max_num_seqs for argv in new}
        assert by_port == {8000: 4, 8001: 32}
        assert len(old) == len(new)
        eager = oracle.servers(edit(source, Edit(flags={"--enforce-eager": True}), port=8001))
        assert {settings(argv).port: "--enforce-eager" in argv for argv in eager} == {
            8000: False,
            8001: True,
        }
    view = show(source_of("two_servers"), port=8001)
    assert view.server is not None
    assert (view.server.port, view.max_num_seqs, view.editable) == (8001, 8, True)


def test_several_servers_are_listed() -> None:
    with pytest.raises(EditRefused, match=r"line 2, port 8000.*line 3, port 8001"):
        edit(source_of("two_servers"), Edit(max_num_seqs=8))
    assert [server.port for server in show(source_of("two_servers")).servers] == [8000, 8001]


def test_refusal_names_the_line_that_never_reaches_the_server() -> None:
    with pytest.raises(EditRefused, match="line 5") as caught:
        edit(source_of("L04_comment_mid"), Edit(max_num_seqs=8))
    assert caught.value.line == 5


def test_speculative_json_is_json(oracle: Oracle) -> None:
    asked = {"method": 'it\'s "odd" $HOME `x` \\', "n": [1, {"a": None}], "b": True}
    for name in (
        "L01_plain",
        "L02_last_flag",
        "L06_array_env",
        "double_quoted_json",
        "ansi_strings",
    ):
        (argv,) = oracle.servers(edit(source_of(name), Edit(speculative=asked)))
        said = settings(argv).flags["--speculative-config"]
        assert isinstance(said, str)
        assert json.loads(said) == asked
