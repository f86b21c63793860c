"""Waiting until a lane runs nothing, by its own gauges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lanectl.core.lane import Lane
from lanectl.ports import Ports

POLL_S = 0.1
QUIET_READINGS = 2
"""So many readings of zero in a row: a gauge can be between two requests of one agent."""
UNKNOWN_LIMIT_S = 5.0
"""A lane without gauges will not grow them: do not wait out the whole deadline for it."""


@dataclass(frozen=True)
class Drained:
    drained: bool
    why: str = ""
    load: float | None = None


def drain(
    ports: Ports, lane: Lane, wait: Callable[[float], None], say: Callable[[str], None]
) -> Drained:
    """Wait until running + waiting is zero, at most `drain_timeout_s`. Absent means unknown."""
    clock = ports.clock
    began = clock.monotonic()
    quiet, known_at, load = 0, began, None
    told = -1.0
    while True:
        metrics = ports.api.metrics(timeout_s=2.0)
        load = metrics.load if metrics else None
        now = clock.monotonic()
        if load is not None:
            known_at = now
            quiet = quiet + 1 if load == 0 else 0
            if quiet >= QUIET_READINGS:
                return Drained(True, load=0.0)
            if load and load != told:
                told = load
                say(f"waiting for {load:.0f} requests to finish")
        elif now - known_at >= min(UNKNOWN_LIMIT_S, lane.drain_timeout_s):
            return Drained(False, "the lane does not tell what runs and waits (/metrics)")
        if now - began >= lane.drain_timeout_s:
            still = "an unknown number of" if load is None else f"{load:.0f}"
            return Drained(
                False,
                f"{still} requests still run or wait after {lane.drain_timeout_s:.0f} s",
                load,
            )
        wait(POLL_S if quiet == 0 else 0.01)
