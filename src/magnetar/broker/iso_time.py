"""Times as Pulsar prints them."""

from __future__ import annotations

from datetime import UTC, datetime

_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the last one that has this form: later times are shown as this one."""


def iso_time(timestamp_ms: int) -> str:
    """`2013-01-01T10:00:00.000Z`."""
    timestamp_ms = max(0, min(timestamp_ms, _LATEST_MS))
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"
