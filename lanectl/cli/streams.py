"""Standard streams that may be closed, full, or without a reader: none of it changes an outcome."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO


class Output:
    """Standard output. Once it cannot be written any more, what follows goes nowhere.

    A change that was committed keeps its exit code, whoever listened.
    """

    def __init__(self, real: TextIO) -> None:
        self._real, self._lost = real, False

    def write(self, text: str) -> int:
        if not self._lost:
            try:
                return self._real.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        if not self._lost:
            try:
                self._real.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._lost = True
        # What is still buffered is flushed at exit, and must not fail there once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._real.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"lanectl: standard output: {error.strerror}", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def prepare() -> None:
    """Give every closed standard stream a place to go, and let standard output be lost."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # The descriptor must be taken as well: a pipe or a database would get its number.
            held = os.open(os.devnull, os.O_RDWR)
            if held != fd:
                os.dup2(held, fd)
                os.close(held)
            setattr(sys, name, os.fdopen(fd, mode))
    sys.stdout = Output(sys.stdout)
