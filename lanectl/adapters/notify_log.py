"""`ports.Notifier` that writes to the log: what is told when no other way is configured."""

from __future__ import annotations

import logging

_log = logging.getLogger("lanectl")


class LogNotifier:
    def tell(self, lane: str, title: str, body: str) -> None:
        """One line, whatever line breaks and control characters the parts hold."""
        text = f"{lane}: {title}: {body}"
        _log.warning("%s", "".join(c if c.isprintable() else " " for c in text))
