"""`lanectl completion SHELL`: print the script that completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from lanectl.cli.options import Settings, no_json


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script for SHELL.

    bash: eval "$(lanectl completion bash)" in ~/.bashrc.
    """
    no_json(ctx.find_object(Settings) or Settings())
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root()
    print(made(root.command, {}, "lanectl", "_LANECTL_COMPLETE").source())
    return 0
