"""Where the time goes: imports by package, and the phases of the switches that were measured."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

COMMAND = "lanectl.cli.changes"
LATE = ["aiohttp", "jsonschema", "prometheus_client.parser"]
"""What a switch imports on its way."""


def imports(*modules: str, runs: int = 3) -> dict[str, float]:
    """Seconds that importing takes, by the package whose modules they are; the quickest of runs."""
    best: dict[str, float] = {}
    for _ in range(runs):
        command = [sys.executable, "-X", "importtime", "-c", f"import {', '.join(modules)}"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        found: defaultdict[str, float] = defaultdict(float)
        for micros, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", told):
            package = name.partition(".")[0]
            known = package if package not in sys.stdlib_module_names else "standard library"
            found[known] += int(micros) / 1e6
        if not best or sum(found.values()) < sum(best.values()):
            best = dict(found)
    return best


def phases(documents: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Median seconds of each phase of these switches."""
    timings = [document["receipt"]["timings"] for document in documents]
    return {name: statistics.median(t[name] for t in timings) for name in timings[0]}


def in_words(seconds: dict[str, float], *, least: float = 0.005) -> str:
    """`a 0.120 s, b 0.050 s`, the longest first; what is below `least` is summed up."""
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    told = [f"{name} {value:.3f} s" for name, value in ordered if value >= least]
    rest = sum(value for _, value in ordered if value < least)
    return ", ".join([*told, f"all others {rest:.3f} s"]) if rest else ", ".join(told)
