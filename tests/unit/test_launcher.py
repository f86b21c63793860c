"""Findings, refusals, environment edits and shapes that need no real bash."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lanectl.core.launcher import Edit, edit, show
from lanectl.errors import EditRefused

JSON = '{"method":"mtp","num_speculative_tokens":3}'
HEAD = "#!/bin/bash\n"


def codes(text: str | bytes) -> dict[str, int]:
    """Each finding's code with its line."""
    source = text if isinstance(text, bytes) else text.encode()
    return {finding.code: finding.line for finding in show(source).findings}


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "empty-file", 1),
        (" \n\n", "empty-file", 1),
        ("vllm serve /m\n", "no-shebang", 1),
        ("\ufeff#!/bin/bash\nexec vllm serve /m\n", "bom", 1),
        (HEAD + "exec vllm serve /m\r\n", "crlf", 2),
        (HEAD + "exec vllm serve\u00a0/m\n", "nbsp", 2),
        (HEAD + "exec vllm serve /m --api-key \u201ca\u201d\n", "curly-quotes", 2),
        (HEAD + "cat <<EOF\nexec vllm serve /m\n", "unterminated-heredoc", 2),
        (HEAD + "exec vllm serve /m \\ \n  --port 1\n", "backslash-space", 2),
        (HEAD + "exec vllm serve /m \\\n  # x\n  --port 1\n", "comment-in-continuation", 3),
        (HEAD + "exec vllm serve /m \\\n  # x\n  --port 1\n", "flags-not-reached", 4),
        (HEAD + "exec vllm serve /m\n  --port 1\n", "flags-not-reached", 3),
        (HEAD + 'exec vllm serve /m \\\n  # x\n  "${A[@]}"\n', "flags-not-reached", 4),
        (HEAD + 'exec vllm serve /m -sc {"a":1,"b":2}\n', "unquoted-json", 2),
        (HEAD + 'exec vllm serve /m -sc "{"a":1}"\n', "bad-json-quotes", 2),
        (HEAD + "exec vllm serve /m -sc '{a:1}'\n", "bad-json-quotes", 2),
        (HEAD + "set -u\nexec vllm serve $M\n", "unset-under-set-u", 3),
        (HEAD + "set -euo pipefail\nexec vllm serve $M\n", "unset-under-set-u", 3),
        (HEAD + "sleep 1\n", "no-server", 1),
        ("#!/bin/sh\nA=(1)\nexec vllm serve /m\n", "sh-with-bashisms", 2),
        ("#!/bin/sh\n[[ a ]]\nexec vllm serve /m\n", "sh-with-bashisms", 2),
        (HEAD + "eval $X\nexec vllm serve /m\n", "eval", 2),
        (HEAD + ". ./env\nexec vllm serve /m\n", "sourced-file", 2),
        (HEAD + "exec vllm serve /m --config f\n", "config-file", 2),
        (HEAD + "exec vllm serve /m --port ${P:-1}\n", "environment-default", 2),
        (HEAD + "vllm serve /m | tee log\n", "pipeline", 2),
        (HEAD + "vllm serve /m\n", "no-exec", 2),
        (HEAD + "vllm serve /m &\nwait\n", "background", 2),
        (HEAD + "{ vllm serve /m; } &\nwait\n", "background", 2),
        (HEAD + "f() { vllm serve /m; }\nf &\nwait\n", "background", 2),
        (HEAD + "while true; do vllm serve /m; done\n", "loop", 2),
        (HEAD + "for i in 1 2; do vllm serve /m; done\n", "loop", 2),
        (HEAD + "until vllm serve /m; do sleep 1; done\n", "loop", 2),
        (HEAD + "exec docker run img vllm serve /m\n", "container", 2),
        (HEAD + "podman run --rm img sh -c 'vllm serve /m'\n", "container", 2),
        (HEAD + "screen -dm vllm serve /m\n", "detached", 2),
        (HEAD + "tmux new -d 'vllm serve /m'\n", "detached", 2),
        (HEAD + "exec setsid vllm serve /m\n", "new-session", 2),
        (HEAD + "exec sudo -u x vllm serve /m\n", "sudo", 2),
        (HEAD + "ssh box vllm serve /m\n", "remote", 2),
        (HEAD + "exec vllm serve /m --port 1 --port 2\n", "duplicate-flag", 2),
        (HEAD + "vllm serve /a &\nvllm serve /b &\n", "several-servers", 3),
        (HEAD + "f() { vllm serve /a; }\n", "server-not-reached", 2),
        (HEAD + "if [ ; then\nexec vllm serve /m\n", "syntax-error", 2),
        (HEAD + "exec vllm serve /m $X\n", "unknown-words", 2),
        (HEAD + "exec vllm serve /m { }\n", "unread", 2),
        (HEAD + "exec vllm serve /m $'a\\\\' # it's\n", "unread", 2),
        (HEAD + "set -e\n[ ${A:-} ]\nexec vllm serve /m\n", "server-not-reached", 4),
        (HEAD + 'exec vllm serve /m "$@"\n', "script-arguments", 2),
        (HEAD + 'X="--port 1"\nexec vllm serve /m\n', "unused-flags", 2),
        (HEAD + "cat <<'EOF' >f\nvllm serve /m\nEOF\n", "server-in-data", 3),
    ],
)
def test_finding(text: str, code: str, line: int) -> None:
    assert codes(text).get(code) == line


def test_messages_say_what_to_do() -> None:
    for text in ("", "vllm serve /m | tee x\n", HEAD + "vllm serve /m &\n"):
        assert all(len(finding.message) > 30 for finding in show(text.encode()).findings)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "set -u\nexec vllm serve \"$HOME/m\"\n",
        HEAD + "# \u00a0 \u201cquoted\u201d\necho '\u00a0' \"\u201c\"\nexec vllm serve /m\n",
        HEAD + "exec vllm serve /m --chat-template 'a\\ '\n",
        HEAD + "source .venv/bin/activate\nexec vllm serve /m\n",
        HEAD + 'eval "$(conda shell.bash hook)"\nexec vllm serve /m\n',
        HEAD + "exec vllm serve /m > >(tee log) 2>&1\n",
        HEAD + "echo starting vllm serve --max-num-seqs 9\nexec vllm serve /m\n",
        HEAD + "command -v vllm >/dev/null || exit 1\nexec vllm serve /m\n",
        HEAD + "exec vllm serve /models/q --api-key \"$(cat /k)\"\n",
    ],
)  # fmt: skip
def test_harmless(text: str) -> None:
    view = show(text.encode())
    assert not [f for f in view.findings if f.severity != "info"]
    assert view.editable
    assert view.speculative is False


@pytest.mark.parametrize(
    ("text", "speculative"),
    [
        ("exec vllm serve /m $EXTRA", "unknown"),
        ("exec vllm serve /m ${EXTRA}", "unknown"),
        ('exec vllm serve /m "${EXTRA:-}"', False),
        ("exec vllm serve /m ${EXTRA:-}", False),
        ("exec vllm serve /m ${EXTRA:+--x}", False),
        ('exec vllm serve /m "$EXTRA"', "unknown"),
        ('exec vllm serve /m --api-key "$KEY"', False),
        ('exec vllm serve "$MODEL"', False),
        ("exec vllm serve /m $(cat f)", "unknown"),
        ("cat f | xargs vllm serve /m", "unknown"),
        ('mapfile -t A < f\nexec vllm serve /m "${A[@]}"', "unknown"),
        ('read -ra A <<< "$X"\nexec vllm serve /m "${A[@]}"', "unknown"),
        ('. ./f\nexec vllm serve /m "${A[@]}"', "unknown"),
        ('A=()\n. ./f\nexec vllm serve /m "${A[@]}"', "unknown"),
        ('. ./f\nA=()\nexec vllm serve /m "${A[@]}"', False),
        ('eval "A+=(x)"\nexec vllm serve /m ${A[@]}', "unknown"),
        ("A=--x\n[ -f y ] && A=-sc.a=1\nexec vllm serve /m $A", "unknown"),
        (f"A='-sc {JSON}'\nunset A\nexec vllm serve /m $A", False),
        (f"f() {{ local A='-sc {JSON}'; }}\nf\nexec vllm serve /m ${{A:-}}", False),
        (f"(A='-sc {JSON}')\nexec vllm serve /m ${{A:-}}", False),
        (f"A=(-sc '{JSON}')\nexec vllm serve /m ${{A[@]:-}}", json.loads(JSON)),
        ("A='-sc.a 1'; B=A\nexec vllm serve /m ${!B}", {"a": 1}),
        ("declare -a A=(-sc.a 1)\nexec vllm serve /m \"${A[@]}\"", {"a": 1}),
        ("A=(-sc.a 1)\nexec vllm serve /m \"${A[0]}\" \"${A[1]}\"", {"a": 1}),
        ("A[0]=-sc.a; A[1]=1\nexec vllm serve /m \"${A[@]}\"", "unknown"),
    ],
)  # fmt: skip
def test_unknown_is_never_off(text: str, speculative: Any) -> None:
    assert show((HEAD + text + "\n").encode()).speculative == speculative


def refused(text: str, change: Edit, **more: Any) -> EditRefused:
    with pytest.raises(EditRefused) as caught:
        edit(text.encode(), change, **more)
    assert caught.value.exit_code == 3
    return caught.value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEAD + "A=1\nexec vllm serve /m $EXTRA\n", 3),
        (HEAD + "exec vllm serve /m --config f.yaml\n", 2),
        (HEAD + "exec vllm serve /m $(cat f)\n", 2),
        (HEAD + ". ./f\nexec vllm serve /m $A\n", 2),
        (HEAD + '\n\nexec vllm serve /m -sc "$(python3 make.py)" $X\n', 4),
    ],
)
def test_refusal_names_line_and_way_out(text: str, line: int) -> None:
    error = refused(text, Edit(speculative=False))
    assert error.line == line
    assert "script" in error.next_step and "env" in error.next_step


@pytest.mark.parametrize(
    "change",
    [
        Edit(flags={"max-model-len": "1"}),
        Edit(flags={"--a b": "1"}),
        Edit(flags={"--a": "1\n2"}),
        Edit(flags={"--a": "\0"}),
        Edit(flags={"--": True}),
        Edit(model="a\nb"),
        Edit(max_num_seqs=0),
        Edit(env={"A B": "1"}),
        Edit(env={"A": "1\n"}),
        Edit(env={"IFS": ","}),
        Edit(speculative={"a": float("nan")}),
        Edit(speculative={"a": object()}),
        Edit(flags={"--a": "\ud800"}),
        Edit(max_num_seqs=8, flags={"--max-num-seqs": "4"}),
    ],
)
def test_what_no_launcher_can_carry_is_refused(change: Edit) -> None:
    refused(HEAD + "exec vllm serve /m\n", change)


@pytest.mark.parametrize(
    ("before", "env", "after"),
    [
        ("A=${A:-1}\nexec vllm serve $A", {"A": "2"}, "A=${A:-2}\nexec vllm serve $A"),
        ('A="${A:-1}"\nexec vllm serve $A', {"A": "2"}, 'A="${A:-2}"\nexec vllm serve $A'),
        ("A=1\nexec vllm serve $A", {"A": "2"}, "A=2\nexec vllm serve $A"),
        ("export A=1\nexec vllm serve /m", {"A": "x y"}, "export A='x y'\nexec vllm serve /m"),
        (': "${A:=1}"\nexec vllm serve $A', {"A": "2"}, ': "${A:=2}"\nexec vllm serve $A'),
        ("exec vllm serve /m --x ${A:-1}", {"A": "2"}, "exec vllm serve /m --x ${A:-2}"),
        ("A=1 exec vllm serve /m", {"A": "2"}, "A=2 exec vllm serve /m"),
        ("exec env A=1 vllm serve /m", {"A": "2"}, "exec env A=2 vllm serve /m"),
        ("# c\nset -e\n\nexec vllm serve /m", {"A": "it's"},
         "# c\nset -e\nexport A='it'\\''s'\n\nexec vllm serve /m"),
        ("A=1\nX=$A\nA=2\nexec vllm serve $X", {"A": "2"}, "A=2\nX=$A\nA=2\nexec vllm serve $X"),
        ("export A='2'\nexec vllm serve /m", {"A": "2"}, "export A='2'\nexec vllm serve /m"),
    ],
)  # fmt: skip
def test_env(before: str, env: dict[str, str], after: str) -> None:
    edited = edit((HEAD + before + "\n").encode(), Edit(env=env)).decode()
    assert edited == HEAD + after + "\n"
    assert edit(edited.encode(), Edit(env=env)).decode() == edited


def test_env_that_would_not_hold_is_refused() -> None:
    refused(HEAD + "A=$(nproc)\n. ./f\nexec vllm serve /m\n", Edit(env={"A": "2"}))
    refused(HEAD + "M=${M:-a}\n[ $M = a ] || exit 1\nexec vllm serve /m\n", Edit(env={"M": "b"}))


def test_a_variable_of_the_server_stays() -> None:
    text = HEAD + "N=${N:-4}\nexport VLLM_N=$N\nexec vllm serve /m --max-num-seqs $N\n"
    assert b"export VLLM_N=$N\nexec vllm serve /m --max-num-seqs 8" in edit(
        text.encode(), Edit(max_num_seqs=8)
    )


def test_other_commands_stay() -> None:
    text = HEAD + "N=4\nredis-cli set n $N\nexec vllm serve /m --max-num-seqs $N\n"
    edited = edit(text.encode(), Edit(max_num_seqs=8)).decode()
    assert edited == text.replace("--max-num-seqs $N", "--max-num-seqs 8")


def test_several_changes_at_once() -> None:
    change = Edit(False, 8, "/n", {"--port": "9", "--x": True, "--seed": False}, {"A": "1"})
    text = HEAD + f"exec vllm serve /m --seed 1 -sc '{JSON}'\n"
    assert edit(text.encode(), change).decode() == (
        HEAD + "export A='1'\nexec vllm serve /n --max-num-seqs 8 --port 9 --x\n"
    )


def test_nothing_asked_changes_nothing() -> None:
    text = (HEAD + "exec vllm serve /m\n").encode()
    assert edit(text, Edit()) == text


def test_text_in_utf8_stays() -> None:
    text = HEAD + "# größe\nexec vllm serve /modèle --max-num-seqs 4\n"
    view = show(text.encode())
    assert view.settings is not None
    assert view.settings.model == "/modèle"
    edited = edit(text.encode(), Edit(model="/größe")).decode()
    assert edited == text.replace("/modèle", "'/größe'")


def test_argv_shows_unknown_words_as_written() -> None:
    view = show((HEAD + 'exec vllm serve "$M" --port "$P"\n').encode())
    assert view.server is not None
    assert view.server.argv == ("vllm", "serve", "$M", "--port", "$P")
    assert view.server.port is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("exec vllm serve /m \\\n  --seed 1 --x \\\n  --y",
         "exec vllm serve /m \\\n  --x \\\n  --y"),
        ("exec vllm serve /m \\\n  --x --seed 1 \\\n  --y",
         "exec vllm serve /m \\\n  --x \\\n  --y"),
        ("exec vllm serve /m \\\n  --seed \\\n  1", "exec vllm serve /m"),
        ("exec vllm serve /m --seed 1 >log --x", "exec vllm serve /m >log --x"),
        ("A=(--seed 1 --x)\nexec vllm serve ${A[@]}", "A=(--x)\nexec vllm serve ${A[@]}"),
        ("A=(\n  --x # x\n  --seed 1 # s\n)\nexec vllm serve ${A[@]}",
         "A=(\n  --x # x # s\n)\nexec vllm serve ${A[@]}"),
        ('A="--x\n  --seed\t1\n--y"\nexec vllm serve $A', 'A="--x\n--y"\nexec vllm serve $A'),
    ],
)  # fmt: skip
def test_a_removed_flag_leaves_no_trace(before: str, after: str) -> None:
    edited = edit((HEAD + before + "\n").encode(), Edit(flags={"--seed": False})).decode()
    assert edited == HEAD + after + "\n"
