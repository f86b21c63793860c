"""Numbers of one run: pairs taken in turn, their medians, and how a row is printed."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table. goal None: told for comparison, not judged.

    values and peer: seconds. A row with a peer is judged by the median of its pairs' ratios, one
    without by the median of its values.
    """

    what: str
    values: Sequence[float]
    peer: Sequence[float] = ()
    peer_name: str = ""
    goal: float | None = None

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.values, self.peer, strict=True)]

    @property
    def measured(self) -> float:
        return statistics.median(self.ratios if self.peer else self.values)

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.measured <= self.goal

    def cells(self) -> list[str]:
        unit = "" if self.peer else " s"
        places = 2 if self.peer else 3
        spread = self.ratios if self.peer else self.values
        low, middle, high = (f"{n:.{places}f}" for n in (min(spread), self.measured, max(spread)))
        return [
            self.what,
            seconds(self.values),
            f"{self.peer_name} {seconds(self.peer)}" if self.peer else "",
            f"{middle}{unit} ({low} to {high})",
            "" if self.goal is None else f"≤ {self.goal:g}{unit}",
            {True: "met", False: "MISSED", None: ""}[self.met],
        ]


HEADER = ["what", "lanectl", "against", "measured (min to max)", "goal", ""]


def seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} s"


def in_turn(
    count: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Measure both `count` times, next to each other, each going first every other time."""
    a: list[float] = []
    b: list[float] = []
    for number in range(count):
        if number % 2:
            b.append(theirs())
            a.append(ours())
        else:
            a.append(ours())
            b.append(theirs())
    return a, b


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up on a terminal."""
    lines = [list(header), *map(list, rows)]
    widths = [max(3, *(len(line[n]) for line in lines)) for n in range(len(header))]
    text = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([text[0], rule, *text[1:]])


def machine() -> str:
    """The machine in words; nothing that names it."""
    one, five, _ = os.getloadavg()
    real_time = os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)
    return (
        f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}; load average {one:.1f} (5 minutes: {five:.1f}) at the end"
        + (", all sides at real-time priority because others used the machine" * real_time)
    )
