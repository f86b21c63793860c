"""shellcheck's own findings, by the binary that its wheel brings. It adds; it never decides."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from lanectl.core.launcher import Finding

LIMIT_S = 10.0
_SEVERITY = {"error": "warning", "warning": "info", "info": "info", "style": "info"}
"""One step milder than shellcheck says: `bash -n` of the lane's own host decides."""


def findings(source: bytes) -> list[Finding]:
    """What shellcheck says of a script; a finding that says so where it cannot be run."""
    beside = Path(sys.executable).parent / "shellcheck"
    program = str(beside) if beside.is_file() else shutil.which("shellcheck")
    if program is None:
        return [Finding("info", "shellcheck-absent", 1, "shellcheck is not installed")]
    try:
        done = subprocess.run(
            [program, "--format=json1", "--shell=bash", "-"],
            input=source,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        comments = json.loads(done.stdout)["comments"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        text = f"shellcheck could not be run: {type(error).__name__}"
        return [Finding("info", "shellcheck-failed", 1, text)]
    return [
        Finding(
            _SEVERITY.get(one["level"], "info"),  # type: ignore[arg-type]
            f"shellcheck-{one['code']}",
            int(one["line"]),
            str(one["message"]),
        )
        for one in comments
    ]
