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
    meaningless.
    """

    index: int
    via: frozenset[str]
    script: int | None = None


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
        return Location(direct, via)
    for at, word in enumerate(words):
        if at and _is_script(words, at, via):
            return Location(at, via, script=at)
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
