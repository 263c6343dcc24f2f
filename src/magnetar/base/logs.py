"""Logging: the standard library, one line per event, to stderr. Configured by the command line only.

Library code takes `logging.getLogger(__name__)` and puts ids into the line as `key=value`. No log call per message: one line
per connection, ledger, rollover or ownership change at most.
"""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)-5s %(name)s  %(message)s"


def configure(level: str = "INFO") -> None:
    """Send records of `level` and above to stderr."""
    logging.basicConfig(level=level.upper(), format=FORMAT, stream=sys.stderr, force=True)
