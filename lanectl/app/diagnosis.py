"""One thing that doctor says, and how a check says that it could not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeVar

Severity = Literal["error", "warning", "unknown", "info", "ok"]
WORST_FIRST: Final[tuple[Severity, ...]] = ("error", "warning", "unknown", "info", "ok")


@dataclass(frozen=True)
class Diagnosis:
    """mend: what to type, or what to put where. source: who reported it, `vllm#35800`.

    check: a stable code in kebab case; doctor fills in the name of the check that said it.
    """

    severity: Severity
    message: str
    mend: str = ""
    source: str = ""
    check: str = ""


def ok(message: str) -> Diagnosis:
    return Diagnosis("ok", message)


def info(message: str, mend: str = "", source: str = "") -> Diagnosis:
    return Diagnosis("info", message, mend, source)


def warning(message: str, mend: str, source: str = "") -> Diagnosis:
    return Diagnosis("warning", message, mend, source)


def error(message: str, mend: str, source: str = "") -> Diagnosis:
    return Diagnosis("error", message, mend, source)


def unknown(message: str, mend: str = "") -> Diagnosis:
    return Diagnosis("unknown", f"could not tell: {message}", mend)


@dataclass(frozen=True)
class NotKnown:
    """Stands where a fact could not be observed."""

    why: str
    mend: str = ""


class Untold(Exception):
    """A check met a fact that is not known; doctor reports that in its place."""

    def __init__(self, fact: NotKnown) -> None:
        super().__init__(fact.why)
        self.fact = fact


T = TypeVar("T")


def need(fact: T | NotKnown) -> T:
    """The fact. Raises Untold when it is not known, which ends the check with `unknown`."""
    if isinstance(fact, NotKnown):
        raise Untold(fact)
    return fact
