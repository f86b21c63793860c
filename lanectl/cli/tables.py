"""Text output: masked, escaped, coloured only on a terminal that wants it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2", "cyan": "36"}


def coloured() -> bool:
    """Colours only for a terminal, and never where NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m" if coloured() else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell; no borders, so that it can be cut and grepped."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([paint(text[0], "bold"), *text[1:]])


def short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "-"


def emit(document: Any) -> None:
    """The one JSON document of a command."""
    print(json.dumps(document, ensure_ascii=False, default=str), flush=True)
