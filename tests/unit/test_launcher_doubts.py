"""Shapes that bash runs otherwise than a reader expects: nothing false is said, and no edit of them
is accepted that bash does not carry out."""

from __future__ import annotations

import pytest

from lanectl.core.flags import mismatches, settings
from lanectl.core.launcher import edit, show
from lanectl.errors import EditRefused
from tests.unit.test_launcher_cases import EDITS, UNKNOWN, Oracle, rest

V = "vllm serve m --max-num-seqs 4"
SHAPES = {
    "shell-arguments": f'A=(--spec-method mtp); exec bash -c \'exec {V} "$@"\' _ "${{A[@]}}"',
    "shell-arguments-timeout": f"timeout 20 bash -c '{V} \"$@\"' _ --spec-method mtp",
    "shell-argument-0": f"bash -c '{V} $0 mtp' --spec-method",
    "shell-argument-count": f"bash -c 'N=$#; {V} --max-num-seqs $N' _ 1 2",
    "wrapper": "printf '#!/bin/bash\\nexec \"$@\" --spec-method mtp\\n' >w; chmod +x w\n"
    f"exec ./w {V}",
    "wrapper-behind-timeout": "printf '#!/bin/bash\\nexec \"$@\" --spec-method mtp\\n' >w\n"
    f"chmod +x w\ntimeout --foreground 20 ./w {V}",
    "wrapper-behind-env": "printf '#!/bin/bash\\nexec \"$@\" --spec-method mtp\\n' >w\n"
    f"chmod +x w\nexec env -i PATH=$PATH ORACLE_OUT=$ORACLE_OUT ./w {V}",
    "perl": f'exec perl -e \'exec @ARGV, "--spec-method", "mtp"\' {V}',
    "python-c": "exec /usr/bin/env -S python3 -c 'import os,sys; "
    f'os.execvp(sys.argv[1], sys.argv[1:] + ["--spec-method", "mtp"])\' {V}',
    "bash-runs-words": f"bash -c '\"$@\" --spec-method mtp' _ {V}",
    "bash-file": "printf 'exec \"$@\" --spec-method mtp\\n' >w\n" + f"bash w {V}",
    "local-n": f'f() {{ local -n R=$1; R=(--spec-method mtp); }}; A=(); f A\n{V} "${{A[@]}}"',
    "declare-n": "N=4; declare -n R=N; R=8\nexec vllm serve m --max-num-seqs $N",
    "eval-set": f"eval set -- '--spec-method' mtp\nexec {V} \"$@\"",
    "eval-function": "eval 'vllm() { command vllm \"$@\" --spec-method mtp; }'\n" + V,
    "self": f'if [ $# = 0 ]; then exec bash "$0" --spec-method mtp; fi\nexec {V} "$@"',
    "self-source": '[ $# = 0 ] && exec bash "${BASH_SOURCE[0]}" --spec-method mtp\n'
    f'exec {V} "$@"',
    "self-variable": 'S=$(realpath "$0"); [ $# = 0 ] && exec bash "$S" --spec-method mtp\n'
    f'exec {V} "$@"',
    "export-f": 'vllm() { command vllm "$@" --spec-method mtp; }; export -f vllm\n'
    f"bash -c '{V}'",
    "declare-fx": 'vllm() { command vllm "$@" --spec-method mtp; }; declare -fx vllm\n'
    f"bash -c '{V}'",
    "alias": "shopt -s expand_aliases\nalias vllm='vllm serve x --spec-method mtp #'\n" + V,
    "printf-v-element": f"A=(); printf -v 'A[0]' %s --spec-method=mtp\nexec {V} \"${{A[@]}}\"",
    "printf-v-joined": "N=4; printf -vN 8\nexec vllm serve m --max-num-seqs $N",
    "read-element": f"A=(); read -r 'A[0]' <<<--spec-method=mtp\nexec {V} \"${{A[@]}}\"",
    "declare-l": "declare -l X; X=--SPEC-METHOD=mtp\n" + f"exec {V} $X",
    "declare-i": "declare -i N; N=4+4\nexec vllm serve m --max-num-seqs $N",
    "home": f"HOME=--spec-method=mtp\n{V} ~",
    "underscore": f": --spec-method=mtp\n{V} $_",
    "trap-exit": f"trap '{V} --spec-method mtp' EXIT\n{V}",
    "trap-debug": "N=4; trap 'N=8' DEBUG\nvllm serve m --max-num-seqs $N",
    "trap-function": f"f() {{ {V} --spec-method mtp; }}; trap f EXIT\n{V}",
    "ps4": f"PS4='$(N=8; {V} --spec-method mtp)'; set -x\n{V}",
    "bash-env": "printf 'vllm() { command vllm \"$@\" --spec-method mtp; }\\n' >e\n"
    f"export BASH_ENV=e\nbash -c '{V}'",
    "written": f"cat >w <<'E'\nexec {V} --spec-method mtp\nE\nbash w\n{V}",
    "written-echo": f"echo 'exec {V} --spec-method mtp' >w\nbash w\n{V}",
    "here-shell": f"bash <<'E'\n{V} --spec-method mtp\nE\n{V}",
    "piped-shell": f"echo '{V} --spec-method mtp' | bash\n{V}",
    "awk": f"awk 'BEGIN{{system(\"{V} --spec-method mtp\")}}'\n{V}",
    "post-increment": "N=4; : $((N++))\nexec vllm serve m --max-num-seqs $N",
    "pre-increment": "N=4; exec vllm serve m$((++N)) --max-num-seqs $N",
    "plus-assign": "N=4; ((N+=1))\nexec vllm serve m --max-num-seqs $N",
    "arithmetic-assign": "N=4; : $((N=8))\nexec vllm serve m --max-num-seqs $N",
    "arithmetic-subscript": "N=4; A=(1 2 3 4 5 6); : ${A[N++]}\n"
    "exec vllm serve m --max-num-seqs $N",
    "arithmetic-substring": "N=4; A=abcdefgh; : ${A:N++:1}\nexec vllm serve m --max-num-seqs $N",
    "arithmetic-for": "N=4; for ((N=8; N<1; N++)); do :; done\nexec vllm serve m --max-num-seqs $N",
    "arithmetic-in-loop": "N=4; while read -r x; do : $((N++)); done < launcher.sh\n"
    "exec vllm serve m --max-num-seqs $N",
    "let": "N=4; let N++\nexec vllm serve m --max-num-seqs $N",
    "readonly": "readonly N=4; N=8\nexec vllm serve m --max-num-seqs $N",
    "readonly-in-or": "readonly N=4; (N=8) || true\nexec vllm serve m --max-num-seqs $N",
    "braces": "exec vllm serve m --max-num-seqs {4..5}",
    "braces-next": "exec vllm serve m --max-num-seqs 4 {4..5}",
    "braces-joined": "exec vllm serve m --max-num-seqs={4..5}",
    "keyed-array": "A=([3]=mtp [1]=--spec-method)\n" + f'exec {V} "${{A[@]}}"',
    "keyed-array-count": "A=([3]=a [1]=b); vllm serve m --max-num-seqs ${#A[@]}",
    "break": 'A=(--spec-method mtp --max-num-seqs 4); B=()\nfor a in "${A[@]}"; do\n'
    '  [ "$a" = mtp ] && break\n  B+=("$a")\ndone\nexec vllm serve m ${#B[@]} "${A[@]}"',
    "break-keeps": 'A=(--spec-method mtp --max-num-seqs 4); N=1\nfor a in "${A[@]}"; do\n'
    '  [ "$a" = mtp ] && { N=2; break; }\ndone\nexec vllm serve m "${A[@]}" --max-loras $N',
    "condition": "A=(--spec-method mtp --max-num-seqs 4); N=0\nwhile [ $N -lt ${#A[@]} ]; do\n"
    '  N=$((N+1))\ndone\nexec vllm serve m "${A[@]}" --max-loras $N',
    "find-exec": f"find . -maxdepth 0 -exec {V} --spec-method mtp \\;",
    "rounds": f'A="--spec-method mtp"\nfor i in 1 2; do\n {V} $A\n'
    ' if [ -n "$A" ]; then break; fi\ndone',
    "rounds-and-or": f'A="--spec-method mtp"\nfor i in 1 2; do\n {V} $A && [ -n "$A" ] && break\n'
    "done",
    "rounds-while": f'N=0\nwhile [ $N = 0 ]; do\n A="--spec-method mtp"\n {V} $A\n N=${{#A}}\n'
    " [ -f x ] && break; touch x\ndone",
    "rounds-program": 'A="--spec-method mtp"\nfor i in 1 2; do\n sleep 1\n'
    f' if [ -n "$A" ]; then break; fi\ndone\nexec {V} $A',
    "rounds-while-program": f'A="--spec-method mtp"\nwhile sleep 1; do\n'
    f' [ -n "$A" ] && break; [ -f x ] && break; touch x\ndone\nexec {V} $A',
    "quoted-n": f"f() {{ local '-n' R=A; R=--spec-method=mtp; }}; A=; f; {V} $A",
    "builtin-declare": f"A=; builtin declare -n R=A; R=--spec-method=mtp; {V} $A",
    "command-export": f"A=; command export A=--spec-method=mtp; {V} $A",
    "self-folder": 'D=$(cd "$(dirname "$0")" && pwd)\n'
    f'[ $# = 0 ] && exec bash $D/launcher.sh --spec-method mtp; exec {V} "$@"',
    "self-sourced": f'[ $# = 0 ] && {{ source "$0" --spec-method mtp; exit; }}; {V} "$@"',
    "trap-variable": "T='vllm serve m --spec-method mtp'; trap \"$T\" EXIT\n" + V,
    "test-increment": "N=4; [[ N++ -eq 4 ]]; vllm serve m --max-num-seqs $N",
    "test-assign": "N=4; [[ N=8 -eq 8 ]]; vllm serve m --max-num-seqs $N",
    "redirect-increment": "N=4; echo x > f$((N++)); vllm serve m --max-num-seqs $N",
    "redirect-default": "echo x > ${N:=8}; N=${N:-4}; vllm serve m --max-num-seqs $N",
    "index-increment": "N=4; A[N++]=1; vllm serve m --max-num-seqs $N",
    "arithmetic-of-text": "N=4; X='N=8'; : $((X)); vllm serve m --max-num-seqs $N",
    "readonly-for": "readonly N=4; for N in 8; do :; done; vllm serve m --max-num-seqs $N",
    "process-substitution": f"bash <(echo {V} --spec-method mtp); {V}",
    "here-string": f"bash <<< '{V} --spec-method mtp'; {V}",
    "captured": f"X=$({V} --spec-method mtp); {V}",
    "lastpipe": "shopt -s lastpipe; N=4; echo 8 | read N; vllm serve m --max-num-seqs $N",
    "posix-alias": "set -o posix; alias vllm='vllm serve x --spec-method mtp #'\n" + V,
    "wrapper-unknown": f"exec ${{WRAPPER}} {V}",
    "prefix-shell": "N=8 bash -c 'vllm serve m --max-num-seqs ${N:-4}'",
    "env-shell": "env N=8 bash -c 'vllm serve m --max-num-seqs ${N:-4}'",
    "prefix-function": "f() { bash -c 'vllm serve m --max-num-seqs ${N:-4}'; }; N=8 f",
    "allexport": "set -a; N=8; bash -c 'vllm serve m --max-num-seqs ${N:-4}'",
    "opaque-and-other": f'bash -c "$X {V} --spec-method mtp"; {V}',
    "read-reply": f"REPLY=; read <<< --spec-method=mtp; {V} $REPLY",
    "mapfile": f'MAPFILE=(); mapfile -t <<< --spec-method=mtp; {V} "${{MAPFILE[@]}}"',
    "rematch": f"BASH_REMATCH=; [[ --spec-method=mtp =~ .* ]]; {V} $BASH_REMATCH",
    "break-2": "N=4; for i in 1 2; do for j in 1; do N=$i; break 2; done; done\n"
    "vllm serve m --max-num-seqs $N",
    "continue-2": "N=4; for i in 1 2; do for j in 1; do continue 2; done; N=8; done\n"
    "vllm serve m --max-num-seqs $N",
    "nocasematch": "shopt -s nocasematch; X=A; N=4; case $X in a) N=8;; esac\n"
    "vllm serve m --max-num-seqs $N",
    "lineno": "LINENO=8; vllm serve m --max-num-seqs $LINENO",
    "nul": f"exec {V}\0 --spec-method mtp",
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("oracle"))


def source_of(name: str) -> bytes:
    return f"#!/bin/bash\n{SHAPES[name]}\n".encode()


@pytest.mark.parametrize(
    "before",
    [
        *(
            "exec",
            "exec -a name",
            "command",
            "env A=b",
            "env -u A -i",
            "nohup",
            "nice -n 5",
            "time",
        ),
        *("timeout -k 5 20", "numactl -C 0-3 --localalloc", "taskset -c 0-3", "ionice -c 2 -n 0"),
        *("chrt -f 50", "stdbuf -oL", "setsid", "uv run --with x", "sudo -u x A=b", "time -p"),
        *("exec nohup env A=b numactl --cpunodebind=0", "/usr/bin/env", "conda run -n x"),
        *("exec /opt/bin/python3 -u", "poetry run"),
    ],
)
def test_known_programs_in_front_are_read_through(before: str) -> None:
    view = show(f"#!/bin/bash\n{before} {V}\n".encode())
    assert (view.speculative, view.max_num_seqs, view.editable) == (False, 4, True)


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_false_is_said(name: str, oracle: Oracle) -> None:
    view = show(source_of(name))
    for argv in oracle.servers(source_of(name)):
        said = settings(argv)
        assert view.speculative in (UNKNOWN, said.speculative)
        assert view.max_num_seqs in (UNKNOWN, said.max_num_seqs)


@pytest.mark.parametrize("wanted", EDITS)
@pytest.mark.parametrize("name", SHAPES)
def test_an_accepted_edit_holds(name: str, wanted: str, oracle: Oracle) -> None:
    change, asked = EDITS[wanted]
    source = source_of(name)
    try:
        edited = edit(source, change)
    except EditRefused:
        return
    old, new = oracle.servers(source), oracle.servers(edited)
    assert old
    assert len(oracle.commands(source)) == len(oracle.commands(edited))
    assert [mismatches(argv, asked) for argv in new] == [[] for _ in old]
    assert [rest(argv, asked) for argv in old] == [rest(argv, asked) for argv in new]
