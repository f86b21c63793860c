"""Following a change: live phases on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from lanectl.cli.tables import note, shown
from lanectl.cli.worker import Message
from lanectl.errors import Interrupted

TICK_S = 0.1
AGAIN = "(Ctrl-C again stops only the following)"


class Channel(Protocol):
    """Where the worker's messages come from; `cli.worker` has the real one."""

    closed: bool

    def messages(self, timeout_s: float, /) -> Iterator[Message]: ...


class View(Protocol):
    def show(self, message: Message) -> None: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...


class Plain:
    """One line a phase and a wait, on standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def show(self, message: Message) -> None:
        if "say" in message:
            elapsed = time.monotonic() - self._began
            print(f"{elapsed:7.1f}s  {shown(message['say'])}", file=sys.stderr, flush=True)

    def tick(self) -> None: ...

    def close(self) -> None: ...


class Live:
    """Each phase on a line of its own: elapsed, what it waits for, how long it usually takes."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._phases: list[list[Any]] = []
        self._usual: Mapping[str, float] = {}
        self._names: frozenset[str] = frozenset()
        self._live = RichLive(console=Console(stderr=True), auto_refresh=False, transient=False)
        self._live.start()

    def show(self, message: Message) -> None:
        from lanectl.core.switch import Phase

        now = time.monotonic()
        if "opened" in message:
            self._usual = message.get("usual", {})
        if "say" in message:
            text = message["say"]
            if text in {str(phase) for phase in Phase}:
                if self._phases:
                    self._phases[-1][2] = now
                self._phases.append([text, now, None, ""])
            elif self._phases:
                self._phases[-1][3] = text
            else:
                self._phases.append([text, now, now, ""])
        self.tick()

    def tick(self) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for name, began, ended, wait in self._phases:
            usual = self._usual.get(name)
            hint = f"usually {usual:.1f} s" if usual and ended is None else ""
            style = "bold" if ended is None else "dim"
            # As Text: in a plain string rich would look for its own markup.
            took = f"{(ended or now) - began:6.1f} s"
            cells = (Text(shown(cell)) for cell in (name, took, wait, hint))
            table.add_row(*cells, style=style)
        self._live.update(table, refresh=True)

    def close(self) -> None:
        if self._phases and self._phases[-1][2] is None:
            self._phases[-1][2] = time.monotonic()
        self.tick()
        self._live.stop()


def view() -> View:
    return Live() if sys.stderr.isatty() else Plain()


def follow(channel: Channel, undo: Callable[[str], str]) -> tuple[str, Message]:
    """Follow the worker until it tells an end: the change's id and that message (`done`, `error`).

    undo: called with the id of the change at the first Ctrl-C, once there is one; says what came
    of it. The second Ctrl-C raises Interrupted, and the worker goes on. The id is empty when
    nothing was opened; the message is `{}` when the channel ended without one: then the journal
    must tell.
    """
    window = view()
    opened, interrupts, asked = "", 0, False
    end: Message = {}
    try:
        while not end and not channel.closed:
            try:
                if interrupts and opened and not asked:
                    asked = True
                    note(f"{undo(opened)} {AGAIN}")
                for message in channel.messages(TICK_S):
                    opened = message.get("opened", opened)
                    window.show(message)
                    if "done" in message or "error" in message:
                        end = message
                window.tick()
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    raise Interrupted(
                        f"no longer following {opened or 'the change'}: it goes on by itself",
                        next_step="lanectl status",
                    ) from None
                if not opened:
                    note(f"this change has not begun yet; asked to undo once it has {AGAIN}")
    finally:
        window.close()
    return opened, end
