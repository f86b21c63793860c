"""Where in a command line the vLLM server's own words begin.

`locate` looks through the words people put before the server: `exec`, `env A=b`, `nohup`,
`numactl …`, `uv run`, a path, `python -m`, containers, terminal multiplexers, `bash -c 'text'`.
Words are plain strings; a word that a reader could not know holds one of the marks below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PLAIN: Final = "\ud800"
"""Stands for unknown text inside one word which is no flag: `$HOME`, `$(nproc)`."""
WORD: Final = "\ud801"
"""Stands for unknown text inside exactly one word: `"$X"`."""
WORDS: Final = "\ud802"
"""Stands for any number of unknown words: an unquoted `$X`."""
MARKS: Final = frozenset((PLAIN, WORD, WORDS))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES: Final = frozenset(
    ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "api_server.py")
)
_CLI_MODULES: Final = frozenset(("vllm", "vllm.entrypoints.cli.main"))
_SHELLS: Final = frozenset(("bash", "sh", "dash", "zsh", "ksh"))
_CONTAINERS: Final = frozenset(("docker", "podman", "nerdctl", "apptainer", "singularity"))
_DETACHERS: Final = frozenset(("screen", "tmux", "systemd-run", "daemonize", "start-stop-daemon"))
_SUDO: Final = frozenset(("sudo", "doas", "su", "runuser"))
_REMOTE: Final = frozenset(("ssh", "kubectl", "srun", "sbatch"))
_TALKERS: Final = _words("""
    echo printf logger grep egrep pgrep pkill killall ps cat tee sed awk which type man test [ :
    true false notify-send wall read history alias trap kill curl wget hash export local declare
    readonly
""")
"""Commands for which `vllm serve` among the words is data and starts nothing."""


@dataclass(frozen=True)
class Location:
    """The server's own words begin at `index`; `via` names what stands before them.

    `via` is any of `container`, `detached`, `sudo`, `remote`, `new-session`. Where `script` is not
    None, the word at that index is itself shell text which starts the server, and `index` is
    meaningless. `doubt` is the word before the server of which nobody can tell what it does with
    the words after it.
    """

    index: int
    via: frozenset[str]
    script: int | None = None
    doubt: int | None = None


def basename(word: str) -> str:
    """The last part of a path."""
    return word.rsplit("/", 1)[-1]


def locate(words: Sequence[str]) -> Location | None:
    """Find the server in one command line; None when it starts none."""
    if not words or basename(words[0]) in _TALKERS:
        return None
    if words[0] == "command" and len(words) > 1 and words[1] in ("-v", "-V"):
        return None
    via = _via(words)
    direct = _direct(words)
    if direct is not None:
        return Location(direct, via, doubt=_doubt(words, _begin(words, direct), via))
    for at, word in enumerate(words):
        if at and _is_script(words, at, via):
            return Location(at, via, script=at, doubt=_script_doubt(words, at, via))
        if "container" in via and at > 1 and "vllm-openai" in word and not word.startswith("-"):
            return Location(at + 1, via)
    return None


def _via(words: Sequence[str]) -> frozenset[str]:
    """What stands between supervisord and the server, read off the words before it."""
    via: set[str] = set()
    for at, word in enumerate(words):
        name = basename(word)
        if word in ("serve", "-m") or name == "vllm":
            break
        if name in _CONTAINERS:
            via.add("container")
        elif name in _DETACHERS:
            via.add("detached")
        elif name in _SUDO:
            via.add("sudo")
        elif name in _REMOTE and at == 0:
            via.add("remote")
        elif name == "setsid":
            via.add("new-session")
    return frozenset(via)


def _direct(words: Sequence[str]) -> int | None:
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else ""
        if after == "serve" and _is_vllm(word, words[at + 2 :]):
            return at + 2
        if word == "-m" and after in MODULES:
            return at + 2
        if word == "-m" and after in _CLI_MODULES and words[at + 2 : at + 3] == ["serve"]:
            return at + 3
        if word.endswith("vllm/entrypoints/openai/api_server.py"):
            return at + 1
        if word.startswith("-mvllm.entrypoints.") and word[2:] in MODULES:
            return at + 1
    return None


def _is_vllm(word: str, rest: Sequence[str]) -> bool:
    name = basename(word)
    if name in ("vllm", "vllm.exe"):
        return True
    # A program that is only known when the script runs, as in `"$VLLM" serve`: the flags tell.
    return bool(MARKS.intersection(word)) and any(
        w.split("=", 1)[0].replace("_", "-") in _TELLTALE for w in rest
    )


_TELLTALE: Final = _words("""
    --max-num-seqs --max-model-len --gpu-memory-utilization --speculative-config -sc -tp
    --tensor-parallel-size --tool-call-parser --reasoning-parser --enable-auto-tool-choice
    --kv-cache-dtype --max-num-batched-tokens --spec-method --served-model-name
    --enable-prefix-caching
""")


def _is_script(words: Sequence[str], at: int, via: frozenset[str]) -> bool:
    """Is the word at `at` shell text with the server in it?"""
    text = words[at]
    if " serve" not in text and "api_server" not in text:
        return False
    before = words[at - 1]
    if before.startswith("-") and before.endswith("c") and not before.startswith("--"):
        return True  # bash -c, sh -lc, docker run … -lc
    return bool(via & {"detached", "remote", "container"}) or basename(words[0]) == "eval"


_ANY: Final = frozenset(("container", "detached", "remote"))
_PYTHON: Final = (_words("-X -W"), 0)
_RUN: Final = _words("-n -p -e --name --prefix --cwd --environment --project --directory -C")
_WRAPPERS: Final[dict[str, tuple[frozenset[str], int]]] = {
    **dict.fromkeys(
        _words("nohup setsid builtin command dumb-init catatonit unbuffer"), (_words(""), 0)
    ),
    "exec": (_words("-a"), 0),
    "env": (_words("-u --unset -C --chdir"), 0),
    "nice": (_words("-n --adjustment"), 0),
    "timeout": (_words("-s --signal -k --kill-after"), 1),
    "numactl": (
        _words("-C -N -m -i -p --cpunodebind --membind --interleave --physcpubind --preferred"),
        0,
    ),
    "taskset": (_words(""), 1),
    "stdbuf": (_words("-i -o -e --input --output --error"), 0),
    "ionice": (_words("-c -n --class --classdata"), 0),
    "chrt": (_words("-T -P -D"), 1),
    "prlimit": (_words(""), 0),
    "flock": (_words("-w -E --timeout"), 1),
    "tini": (_words("-p -e"), 0),
    "time": (_words("-f -o --format --output"), 0),
    "uv": (
        _words("""
            --with --with-editable --with-requirements --python -p --project --directory --extra
            --group --no-group --only-group --env-file --index-url --index --package --cache-dir
        """),
        1,
    ),
    "uvx": (_words("--with --python -p --from"), 0),
    **dict.fromkeys(_words("poetry pdm rye hatch pipenv"), (_RUN, 1)),
    **dict.fromkeys(_words("conda mamba micromamba pixi"), (_RUN, 1)),
    "sudo": (_words("-u -g -U -C -D -h -p -R -r -t -T --user --group --chdir"), 0),
    "doas": (_words("-u -C"), 0),
    "runuser": (_words("-u -g -G"), 0),
    "xargs": (_words("-n -I -P -a -d -L -s -E"), 0),
    "parallel": (_words("-j --jobs"), 0),
}
"""Programs that run the words after them as they are: their options that take a value, and how
many words of their own stand before the command."""


def _begin(words: Sequence[str], index: int) -> int:
    """Where the server's program begins: `vllm`, or the options and the name of its Python."""
    if index > 1 and words[index - 1] == "serve" and words[index - 3 : index - 2] != ["-m"]:
        return index - 2
    is_file = words[index - 1].endswith("api_server.py") and words[index - 2 : index - 1] != ["-m"]
    at = index - 1 if is_file or words[index - 1].startswith("-m") else index - 2
    if words[index - 1] == "serve":
        at = index - 3
    return max(at, 0)


def _doubt(words: Sequence[str], stop: int, via: frozenset[str]) -> int | None:
    """The first word before `stop` that is neither a known program nor one of its own words."""
    if via & _ANY:
        return None
    at = 0
    while at < stop:
        name = basename(words[at])
        is_python = name.startswith(("python", "pypy"))
        last_unknown = words[stop : stop + 1] == ["-m"] and bool(MARKS & set(words[at]))
        if name not in _WRAPPERS and not is_python and not (last_unknown and words[at] != WORDS):
            return at
        valued, own = _PYTHON if is_python or last_unknown else _WRAPPERS[name]
        at += 1
        while at < stop:
            word = words[at]
            if word == "--":
                at += 1
                break
            if name == "env" and (word.startswith("--split") or word[:2] == "-S"):
                return at
            if (is_python or last_unknown) and word.startswith("-") and word[1:2] in ("c", "m"):
                return at
            if word in valued:
                at += 2
            elif (word.startswith("-") and len(word) > 1) or (
                name in ("env", "sudo", "doas")
                and word.partition("=")[0].isidentifier()
                and "=" in word
            ):
                at += 1
            else:
                break
        while own and at < stop:
            own -= 1
            at += 1
            while name in ("uv", "conda", "mamba", "micromamba", "pixi") and at < stop:
                if words[at] in valued:
                    at += 2
                elif words[at].startswith("-"):
                    at += 1
                else:
                    break
    return None if at == stop else stop - 1


def _script_doubt(words: Sequence[str], at: int, via: frozenset[str]) -> int | None:
    """The word before a shell's text that is no shell and no known program."""
    if via & _ANY:
        return None
    if basename(words[0]) == "eval":
        return None
    shell = next((n for n in range(at) if basename(words[n]) in _SHELLS | {"su"}), None)
    if shell is None:
        return None if "runuser" in words[:at] or "flock" in words[:at] else 0
    loose = [n for n in range(shell + 1, at) if not words[n].startswith("-")]
    if loose and basename(words[shell]) != "su":
        return loose[0]
    return _doubt(words, shell, via)
