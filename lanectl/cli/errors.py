"""The one place that turns errors into text, JSON and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from lanectl.core.exits import BUG, INTERRUPTED, USAGE
from lanectl.errors import LanectlError


def document(code: str, exit_code: int, message: str, next_step: str) -> dict[str, Any]:
    return {"error": {"code": code, "exit": exit_code, "message": message, "next": next_step}}


def of(error: LanectlError) -> dict[str, Any]:
    """The error as the JSON surface prints it, secrets masked."""
    from lanectl.core.text import mask

    return document(error.code, error.exit_code, mask(error.message), mask(error.next_step))


def run(group: click.Group, argv: list[str] | None = None) -> int:
    """Run the group and return the exit code. Nothing escapes."""
    words = sys.argv[1:] if argv is None else argv
    as_json = "--json" in words
    try:
        result = group.main(args=words, prog_name="lanectl", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        return tell(document("interrupted", INTERRUPTED, "interrupted", ""), as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return USAGE
    except click.ClickException as error:
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"{error.ctx.command_path} --help"
        return tell(document("usage", USAGE, error.format_message(), hint), as_json)
    except click.exceptions.Exit as error:
        return error.exit_code
    except LanectlError as error:
        return tell(of(error), as_json)
    except BrokenPipeError:
        # The reader of raw output left (`launcher edit | head`): nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return tell(document("interrupted", INTERRUPTED, "interrupted", ""), as_json)
    except Exception as error:  # noqa: BLE001  (the last net: a bug must name its log)
        return tell(bug(error), as_json)


def tell(body: dict[str, Any], as_json: bool) -> int:
    """Print an error document: text on standard error, JSON also on standard output."""
    from lanectl.cli.tables import emit, shown, shown_lines

    error = body["error"]
    first, *more = shown_lines(error["message"]).split("\n")
    print(f"lanectl: {first}", file=sys.stderr)
    for line in more:  # Indented: none of them can pass for a line of ours.
        print(line if line.startswith("  ") else f"  {line}", file=sys.stderr)
    if error["next"]:
        print(f"next: {shown(error['next'])}", file=sys.stderr)
    if as_json:
        emit(body)
    return int(error["exit"])


def bug(error: BaseException) -> dict[str, Any]:
    """The document of an error that nobody expected; the traceback goes to a private file."""
    from lanectl.cli.tables import shown_lines
    from lanectl.core.text import mask

    text = mask("".join(traceback.format_exception(error)))
    try:
        path = str(log_file("crash", text))
    except OSError as problem:
        path = f"(not written: {problem})"
        print(shown_lines(text), file=sys.stderr)
    message = f"a bug in lanectl: {type(error).__name__}: {mask(str(error))}; log: {path}"
    return document("bug", BUG, message, f"report it with {path}")


def log_folder() -> Path:
    """`logs/` in the platform's state folder, private."""
    import platformdirs

    folder = Path(platformdirs.user_state_dir("lanectl")) / "logs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def log_file(kind: str, text: str) -> Path:
    """Write `text` to a new private file and return its path. Raises OSError."""
    import time

    path = (
        log_folder() / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.log"
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path
