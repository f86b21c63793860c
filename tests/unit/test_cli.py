"""The command line's own manners: help, near names, completion, errors as text and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanectl.cli import errors
from lanectl.cli.main import COMMANDS, cli
from lanectl.core import exits
from lanectl.core.switch import TERMINAL
from lanectl.core.verdict import Result
from lanectl.errors import LanectlError, Refused


def lanectl(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lanectl", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=env,
    )


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys; from lanectl.cli import errors; from lanectl.cli.main import cli;"
        "errors.run(cli, ['--help']);"
        "heavy = {'sqlalchemy', 'aiohttp', 'pydantic', 'rich', 'tree_sitter'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)
    assert "In an incident: lanectl rollback LANE" in done.stdout


@pytest.mark.parametrize("name", [*COMMANDS])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.run(cli, [name, "--help"]) == 0
    told = capsys.readouterr().out
    assert "Usage: lanectl" in told
    assert "daemon" not in told, "there is none in this version"


def test_a_wrong_command_is_told_the_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.run(cli, ["rolback"]) == 2
    assert "Did you mean rollback?" in capsys.readouterr().err


def test_an_error_is_one_json_document_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.run(cli, ["status", "--nonsense", "--json"]) == 2
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert (error["code"], error["exit"]) == ("usage", 2)
    assert set(error) == {"code", "exit", "message", "next"}
    assert error["message"] in told.err


def test_secrets_are_masked_in_errors() -> None:
    body = errors.of(Refused("vllm serve m --api-key sk-verysecret123", next_step="x"))
    assert "sk-verysecret123" not in json.dumps(body)


def test_a_bug_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    body = errors.bug(RuntimeError("boom --api-key sk-verysecret123"))
    (log,) = (tmp_path / "lanectl" / "logs").iterdir()
    assert str(log) in body["error"]["message"]
    assert body["error"]["exit"] == 1
    assert log.stat().st_mode & 0o777 == 0o600
    assert "sk-verysecret123" not in log.read_text() + json.dumps(body)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = lanectl("completion", shell)
    assert done.returncode == 0
    assert "_LANECTL_COMPLETE" in done.stdout


def test_completion_completes_commands() -> None:
    env = os.environ | {
        "_LANECTL_COMPLETE": "bash_complete",
        "COMP_WORDS": "lanectl ro",
        "COMP_CWORD": "1",
    }
    done = lanectl(env=env)
    assert "rollback" in done.stdout


def test_every_error_class_knows_its_exit_code() -> None:
    def leaves(cls: type[LanectlError]) -> list[type[LanectlError]]:
        return [cls, *(leaf for sub in cls.__subclasses__() for leaf in leaves(sub))]

    codes = {cls.code for cls in leaves(LanectlError)}
    assert {cls.exit_code for cls in leaves(LanectlError)} <= {1, 2, 3, 4, 5, 6, 7, 130}
    assert len(codes) > 15


def test_exit_codes_are_those_of_the_design() -> None:
    assert {str(phase): code for phase, code in exits.OF_PHASE.items()} == {
        "committed": 0,
        "aborted": 3,
        "rolled-back": 4,
        "degraded": 5,
    }
    assert set(exits.OF_PHASE) == TERMINAL and set(exits.OF_RESULT) == set(Result)
    assert [exits.OF_RESULT[result] for result in Result] == [0, 6, 7, 7]
    assert (exits.FILE_RESTORED, exits.INTERRUPTED, exits.USAGE, exits.BUG) == (5, 130, 2, 1)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("switch", (0, 3, 4, 5, 130)),
        ("rollback", (0, 3, 5, 130)),
        ("restart", (0, 3, 4, 5, 130)),
        ("smoke", (0, 6, 7)),
        ("doctor", (0, 6, 7)),
    ],
)
def test_help_tells_exit_codes_and_an_example(
    name: str, codes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert errors.run(cli, [name, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert f"Example: lanectl {name} qwen38" in "\n".join(lines)
    told = lines[lines.index("Exit codes:") + 1 :]
    assert [int(line.split()[0]) for line in told if line[:1].isdigit()] == list(codes)


@pytest.mark.parametrize("words", [["demo", "--json"], ["--json", "completion", "bash"]])
def test_what_has_no_document_refuses_json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert errors.run(cli, words) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_closed_and_full_streams_change_no_exit_code(closed: str, tmp_path: Path) -> None:
    (tmp_path / "lanectl.toml").write_text("")
    for words, code in (("completion bash", 0), ("status nowhere", 2)):
        line = f"{sys.executable} -m lanectl --config {tmp_path}/lanectl.toml {words} {closed}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=30, check=False)
        assert done.returncode == code, (line, done.stderr)


def test_a_reader_that_leaves_changes_no_exit_code() -> None:
    line = f"{sys.executable} -m lanectl completion bash | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.endswith("0\n")
    assert "bug" not in done.stderr
