"""`lanectl demo`: the whole story on a stand-in lane."""

from __future__ import annotations

import click

from lanectl.cli.options import Settings, common, no_json


@click.command()
@click.option("--keep", is_flag=True, help="Leave the stand-in lane running, to try things on it.")
@common
def demo(settings: Settings, keep: bool) -> int:
    """Tell the whole story on a stand-in lane (no GPU, no vLLM), in half a minute."""
    no_json(settings)
    from lanectl.demo.story import run

    return run(keep=keep)
