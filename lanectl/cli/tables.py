"""What is printed: masked, escaped, coloured only on a terminal that wants it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from lanectl.core.text import mask, mask_document, printable

LINE_MAX = 8192
COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2", "cyan": "36"}


def coloured() -> bool:
    """Colours only for a terminal, and never where NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m" if coloured() else text


def shown(text: object) -> str:
    """Foreign text as one line: without secrets, and nothing in it steers a terminal."""
    return printable(mask(str(text)), LINE_MAX)


def shown_lines(text: str) -> str:
    """Foreign text of several lines; its line ends and tabs stay."""
    return "\n".join(
        "\t".join(printable(part, LINE_MAX) for part in line.split("\t"))
        for line in mask(text).split("\n")
    )


def note(text: object) -> None:
    """Something to know beside the result, on standard error."""
    print(f"lanectl: {shown(text)}", file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell; no borders, so that it can be cut and grepped."""
    lines = [list(header), *([shown(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([paint(text[0], "bold"), *text[1:]])


def short(sha256: str | None) -> str:
    return sha256[:12] if sha256 else "-"


def emit(document: Any, *, raw: bool = False) -> None:
    """The one JSON document of a command, secrets masked; raw: it is all text that was asked for.

    What could steer a terminal stands as a JSON escape, so the data is the same.
    """
    text = json.dumps(document if raw else mask_document(document), ensure_ascii=False, default=str)
    print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text), flush=True)
