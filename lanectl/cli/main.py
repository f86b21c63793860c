"""The command group. A command's module is imported only when it is named: `--help` stays quick."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType
from typing import Final

import click

from lanectl import __version__
from lanectl.cli import errors, streams
from lanectl.cli.options import Settings

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "adopt": ("looks", "Take the deployed launcher as the lane's base, and prove it."),
    "profiles": ("looks", "List a lane's profiles and the revisions they render to."),
    "diff": ("looks", "Show the deployed launcher against a profile's."),
    "switch": ("changes", "Move a lane to a profile; undone by itself when it is not right."),
    "rollback": ("changes", "Go back to the last good revision. The command for an incident."),
    "restart": ("changes", "Restart a lane on the same revision, with the same verification."),
    "smoke": ("looks", "Judge the lane as it runs by real tool calls."),
    "status": ("looks", "Show the lanes as they are now."),
    "history": ("looks", "Show a lane's switches, newest first."),
    "doctor": ("doctor", "Check the whole chain and say how to mend it."),
    "repair": ("standing", "Reopen an unlinked log, or end proven orphans."),
    "quarantine": ("standing", "Block every switch and automatic action on a lane."),
    "release": ("standing", "End a quarantine and lift the bars on revisions."),
    "launcher": ("launcher", "Read or edit a launcher script, proven."),
    "demo": ("demo", "Tell the whole story on a stand-in lane, in half a minute."),
    "completion": ("completion", "Print the shell completion script."),
}


class LazyGroup(click.Group):
    """Finds commands by the table above; the help text is in it, the code is not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(_imported(f"lanectl.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _imported(name: str) -> ModuleType:
    """The module. Imports leave no garbage, and looking for it takes a tenth of their time."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()  # Nor is any of it looked at again, at the end least of all.
        gc.enable()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="In an incident: lanectl rollback LANE",
)
@click.option("--config", metavar="PATH", help="Configuration file (default: ./lanectl.toml, …).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.version_option(__version__, prog_name="lanectl")
@click.pass_context
def cli(ctx: click.Context, config: str | None, as_json: bool) -> None:
    """Change a vLLM lane safely: checked, backed up, verified by real tool calls, undone by itself.

    LANE may be left out where one lane is configured.
    """
    ctx.obj = Settings(config, as_json)


def main() -> None:
    """Run the command line; the exit codes are those of design section 6."""
    streams.prepare()
    sys.exit(errors.run(cli))
