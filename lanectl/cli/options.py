"""What every command takes: `--config` and `--json` (before or after it), LANE, and who asks."""

from __future__ import annotations

import functools
import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass
class Settings:
    """The options of the group; a command's own `--config` and `--json` are merged in."""

    config: str | None = None
    as_json: bool = False


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take `--config` and `--json` too; it gets the merged Settings first."""

    @click.option("--config", metavar="PATH", help="Configuration file.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
    @click.pass_context
    @functools.wraps(command)
    def merged(
        ctx: click.Context, /, *args: Any, config: str | None, as_json: bool, **kwargs: Any
    ) -> Any:
        outer = ctx.find_object(Settings) or Settings()
        settings = Settings(config or outer.config, as_json or outer.as_json)
        return command(settings, *args, **kwargs)

    return merged


GATE = click.Choice(["quick", "switch", "soak"])
lane_argument = click.argument("lane", required=False, metavar="[LANE]")


def lane_and(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`[LANE] NAME`: with one word it is NAME's, the only lane being meant."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        metavar = f"[LANE] {name.upper()}"

        @click.argument("words", nargs=-1, required=True, metavar=metavar)
        @functools.wraps(command)
        def split(*args: Any, words: tuple[str, ...], **kwargs: Any) -> Any:
            if len(words) > 2:
                raise click.UsageError(f"too many words: {' '.join(words)}; wanted {metavar}")
            lane = words[0] if len(words) == 2 else None
            return command(*args, lane=lane, **{name: words[-1]}, **kwargs)

        return split

    return decorate


def epilog(example: str, **codes: str) -> str:
    """The end of a command's help: an example, and what its exit codes mean (`_0="done"`)."""
    told = "\n".join(f"  {code.removeprefix('_'):>3}  {text}" for code, text in codes.items())
    return f"\b\nExample: lanectl {example}\n\n\b\nExit codes:\n{told}"


def no_json(settings: Settings) -> None:
    """For a command that tells a story and has no document."""
    if settings.as_json:
        raise click.UsageError("this command has no JSON document; leave out --json")


def who() -> str:
    """Who asks, for the receipt: user and host, and who stands behind a sudo."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    behind = os.environ.get("SUDO_USER")
    name = f"{user} (sudo from {behind})" if behind and behind != user else user
    return f"{name}@{socket.gethostname()}"
