"""Logging: the standard library, one line per event, to stderr. Configured by the command line only.

Library code takes `logging.getLogger(__name__)` and puts ids into the line as `key=value`. No log call per message: one line
per connection, ledger, rollover or ownership change at most. Names and versions that clients choose stand in such lines as they
are: the formatter alone sees to it that one event stays one line, and that no terminal obeys it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from magnetar.base.printable import lines, one_line

FORMAT = "%(asctime)s %(levelname)-5s %(name)s  %(message)s"


class SafeFormatter(logging.Formatter):
    """What would end a line or control a terminal is escaped in messages; in tracebacks, which have lines of their own, the latter."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return lines(super().formatException(ei))


def configure(level: str = "INFO") -> None:
    """Send records of `level` and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
