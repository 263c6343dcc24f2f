"""Time as a value passed in, so that the simulator can own it.

Timers go through the event loop (`loop.call_later`), which the simulator replaces as a whole.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the last one that has this form: later times are shown as this one."""


class Clock(Protocol):
    """Two clocks: the wall clock for what users see, the monotonic one for everything that measures or leases."""

    def now_ms(self) -> int:
        """Wall time in ms since the epoch; may jump. For publish time, TTL and delayed delivery only."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def since_boot_s(self) -> float:
        """As `monotonic_s`, and goes on while the machine sleeps, where the operating system has such a clock."""
        return time.clock_gettime(_SINCE_BOOT)


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def iso_time(timestamp_ms: int) -> str:
    """A time as Pulsar prints it: `2013-01-01T10:00:00.000Z`."""
    timestamp_ms = max(0, min(timestamp_ms, _LATEST_MS))
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"
