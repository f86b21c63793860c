"""A short list of log lines after which a starting vLLM does not come up (field notes 11 to 18)."""

from __future__ import annotations

FATAL = (
    "is less than desired GPU memory utilization",
    "error: unrecognized arguments",
    "error: argument ",
    "CUDA out of memory",
    "torch.OutOfMemoryError",
    "exceeds available Mamba cache blocks",
    "No available memory for the cache blocks",
    "is larger than the maximum number of tokens that can be stored in KV cache",
    "Engine core initialization failed",
    "[Errno 98] Address already in use",
)
"""Each was seen to end a start; none occurs in the log of a server that came up."""

NOT_THE_PROFILE = (
    "is less than desired GPU memory utilization",
    "Address already in use",
)
"""Somebody else holds the memory or the port: says nothing against the revision (note 11)."""

_NOISE = ("For more information", "See stack trace", "Root cause", "http://", "https://")


def fatal_line(log: str) -> str:
    """The first fatal line of a log, trimmed to 300 characters, or the empty string.

    Where no line is known, the last `…Error: …` line counts only for a process that has ended;
    that is for the caller to decide, with `last_words`.
    """
    for line in log.splitlines():
        if any(mark in line for mark in FATAL):
            return line.strip()[:300]
    return ""


def last_words(log: str) -> str:
    """The likeliest cause in the log of a process that ended: its last error line, else its last.

    The very last line can be only a link, the cause one or twenty lines above it (note 11d).
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        if "rror:" in line and not line.startswith(_NOISE):
            return line[:300]
    for line in reversed(lines):
        if not any(noise in line for noise in _NOISE):
            return line[:300]
    return ""


def is_profile_fault(log: str) -> bool:
    """False when the log blames something outside the revision."""
    return not any(mark in log for mark in NOT_THE_PROFILE)
