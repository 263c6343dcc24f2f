"""Lengths of time: `INTERVAL '90 seconds'` as microseconds and back. Months and years have no fixed length and are refused."""

from __future__ import annotations

import re

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
}
_PART = re.compile(r"\s*(\d{1,15})(?:\.(\d{1,6}))?\s*([a-zA-Z]+)\s*")
_CLOCK = re.compile(r"(\d{1,6}):(\d{1,2})(?::(\d{1,2}))?")


def interval_us(text: str, unit: str | None = None) -> int:
    """Microseconds of `'1 hour 30 minutes'`, `'01:30:00'`, or `'90'` with `unit`. ValueError with the fix otherwise."""
    text = text.strip()
    clock = _CLOCK.fullmatch(text)
    if clock and unit is None:
        hours, minutes, seconds = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    if unit is not None:
        text = f"{text} {unit}"
    total, at = 0, 0
    while match := _PART.match(text, at):
        total += _part_us(match[1], match[2] or "", match[3])
        at = match.end()
    if at == 0 or at != len(text):
        raise ValueError(f"{text[:40]!r} is not an interval; write for example '10 minutes'")
    return total


def _part_us(whole: str, fraction: str, unit: str) -> int:
    name = unit.lower()
    name = _SHORT.get(name, name.removesuffix("s"))
    if name not in _UNITS_US:
        raise ValueError(f"{unit!r} has no fixed length; use days, hours, minutes, seconds or milliseconds")
    length = _UNITS_US[name]
    return int(whole) * length + int(fraction.ljust(6, "0")) * length // 1_000_000


def interval_text(length_us: int) -> str:
    """The length in its largest whole unit: `10 minutes`."""
    for name in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        if length_us % _UNITS_US[name] == 0 and length_us:
            count = length_us // _UNITS_US[name]
            return f"{count} {name}{'' if count == 1 else 's'}"
    return "0 seconds"
