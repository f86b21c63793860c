"""`make bench`: measure what the design promises, print the table, and write results.md.

    python benchmarks/run.py [--pairs N] [--only NAME ...] [--no-write]

A goal that is missed is printed and written as missed. README.md says what each row means.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import where
from measure import HEADER, Row, machine, markdown
from rows import LATER, ROWS, switches

RESULTS = Path(__file__).with_name("results.md")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure lanectl against its goals.")
    parser.add_argument("--pairs", type=int, default=7, help="measurements of each row (7)")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=[*ROWS], help="these rows only")
    parser.add_argument("--no-write", action="store_true", help="leave results.md as it is")
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Else every start would compile anew.
    began = time.monotonic()
    found: list[Row] = []
    for name in asked.only:
        for row in ROWS[name](asked.pairs):
            found.append(row)
            print(f"{time.monotonic() - began:5.0f} s  {'; '.join(filter(None, row.cells()))}")
    text = report(found, asked.pairs)
    print(f"\n{text}")
    if not asked.no_write:
        RESULTS.write_text(text)
    return 0


def report(found: list[Row], pairs: int) -> str:
    missed = [row for row in found if row.met is False]
    imports = where.imports(where.COMMAND, *where.LATE)
    lines = [
        "# Results",
        "",
        f"{machine()}. {pairs} measurements of each, medians; pairs were taken in turn.",
        "",
        markdown(HEADER, [row.cells() for row in found]),
        "",
        f"{len(missed)} of {sum(row.goal is not None for row in found)} goals missed"
        + (f": {'; '.join(row.what for row in missed)}." if missed else "."),
        "",
        "Later, with the daemon:",
        "",
        *(f"- {row}" for row in LATER),
        "",
        "## Where the time goes",
        "",
        f"Imports of a switch, {sum(imports.values()):.3f} s: {where.in_words(imports)}.",
    ]
    if switches:
        phases = where.phases(switches)
        lines += [
            "",
            f"Phases of a switch, {sum(phases.values()):.3f} s in all: {where.in_words(phases)}. "
            "The rest is starting Python, the configuration, the plan and the end.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
