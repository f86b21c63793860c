"""`bash -n`, and the shebang's own shell with `-n` where that is another one.

The script is never run. Text on stderr counts as a failure although the status is 0: an
unterminated here-document is only a warning to bash (field note 27).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from lanectl.adapters import procfs
from lanectl.adapters.refusal import refusal
from lanectl.ports import ScriptCheck

TIMEOUT_S = 10.0

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash"})
# LC_ALL=C exists everywhere, so that no shell warns about a locale (field note 29); nothing of our
# own environment (BASH_ENV, SHELLOPTS) may change what is checked.
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def check_script(text: bytes) -> ScriptCheck:
    """What this machine's shells say of a script.

    An interpreter that the shebang names and this machine lacks is not ok: the kernel would answer
    ENOENT. Refused when the temporary folder cannot take the script.
    """
    interpreter, reason = named_interpreter(text)
    if reason:
        return ScriptCheck(False, interpreter, reason)
    shells = ["bash"]
    if Path(interpreter).name in _SHELLS and not _is_bash(interpreter):
        shells.append(interpreter)
    try:
        with tempfile.TemporaryDirectory(prefix="lanectl-") as folder:
            script = Path(folder, "launcher")
            script.write_bytes(text)
            for shell in shells:
                complaint = _complaint(shell, script)
                if complaint:
                    return ScriptCheck(False, shell, complaint)
    except OSError as error:
        raise refusal("cannot check a script in", tempfile.gettempdir(), error) from error
    return ScriptCheck(True, shells[-1], "")


def named_interpreter(text: bytes) -> tuple[str, str]:
    """The interpreter that the shebang names, and why it cannot be used or "".

    "bash" without a shebang: supervisord would not start such a script, a person would.
    """
    line = os.fsdecode(text.partition(b"\n")[0])
    if not line.startswith("#!"):
        return "bash", ""
    words = line[2:].split()
    if line.endswith("\r"):
        return " ".join(words), "the shebang ends in a carriage return: no such interpreter"
    if not words:
        return "bash", ""
    if Path(words[0]).name == "env":
        # `env -S prog args`, `env VAR=1 prog`: the first word that is neither is the program.
        named = next((word for word in words[1:] if word[0] != "-" and "=" not in word), "")
        found = _which(named) if named else ""
        return found or named, "" if found else f"env finds no {named or 'program'} on this host"
    if not os.access(words[0], os.X_OK):
        return words[0], f"{words[0]}: no such interpreter on this host"
    return words[0], ""


def _complaint(shell: str, script: Path) -> str:
    """What `shell -n` has against the script; "" when nothing."""
    status, _, stderr = procfs.run(
        [shell, "-n", str(script)], timeout_s=TIMEOUT_S, env=_ENV, cwd=str(script.parent)
    )
    stderr = stderr.replace(str(script), "launcher").strip()
    if status == procfs.TIMED_OUT:
        return f"`{shell} -n` did not end within {TIMEOUT_S:g} s\n{stderr}".strip()
    return stderr or (f"`{shell} -n` ended with status {status}" if status else "")


def _is_bash(interpreter: str) -> bool:
    """Whether it is the bash that was asked already; bash called as `sh` is another shell."""
    if interpreter == "bash":
        return True
    found = _which("bash")
    return Path(interpreter).name == "bash" and bool(found) and Path(found).samefile(interpreter)


def _which(name: str) -> str:
    """Where a program is, on our PATH or a plain one; "" when nowhere.

    supervisord may have another PATH than we; the two together miss less than either.
    """
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_ENV['PATH']}") or ""
