"""Server-sent events out of bytes as they come in, cut anywhere."""

from __future__ import annotations

import codecs
import re

LINE_CHARS_MAX = 4 * 2**20
"""The longest line, and the longest event, in characters."""

_LINE_END = re.compile(r"\r\n|\n|\r")


class TooLong(Exception):
    """A line or an event is longer than LINE_CHARS_MAX."""


class EventSplitter:
    """Feed it bytes, take events: what stands after `data:`, several lines joined.

    By the WHATWG rules as far as a chat completion needs them: lines end in LF, CRLF or CR, an
    empty line ends an event, comments and other fields are passed over. Invalid UTF-8 becomes
    U+FFFD. What has not been ended by an empty line is never an event.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._line: list[str] = []
        self._line_chars = 0
        self._after_cr = False
        self._data: list[str] = []
        self._data_chars = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The events that are whole by now. Raises TooLong."""
        text = self._decoder.decode(chunk)
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if not text:
            return []
        self._after_cr = text.endswith("\r")
        *whole, rest = _LINE_END.split(text)
        events: list[str] = []
        for part in whole:
            self._add(part)
            line = "".join(self._line)
            self._line, self._line_chars = [], 0
            if line:
                self._take(line)
            elif self._data:
                events.append("\n".join(self._data))
                self._data, self._data_chars = [], 0
        self._add(rest)
        return events

    def _add(self, part: str) -> None:
        self._line_chars += len(part)
        if self._line_chars > LINE_CHARS_MAX:
            raise TooLong
        if part:
            self._line.append(part)

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name != "data":
            return
        self._data_chars += len(value)
        if self._data_chars > LINE_CHARS_MAX:
            raise TooLong
        self._data.append(value.removeprefix(" "))
