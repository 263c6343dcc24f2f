"""Intervals as PostgreSQL reads them. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {
    **dict.fromkeys(["microsecond", "microseconds", "us", "usec", "usecs"], (0, 0, 1)),
    **dict.fromkeys(["millisecond", "milliseconds", "ms", "msec", "msecs"], (0, 0, 1000)),
    **dict.fromkeys(["second", "seconds", "s", "sec", "secs"], (0, 0, 1_000_000)),
    **dict.fromkeys(["minute", "minutes", "m", "min", "mins"], (0, 0, 60_000_000)),
    **dict.fromkeys(["hour", "hours", "h", "hr", "hrs"], (0, 0, 3_600_000_000)),
    **dict.fromkeys(["day", "days", "d"], (0, 1, 0)),
    **dict.fromkeys(["week", "weeks", "w"], (0, 7, 0)),
    **dict.fromkeys(["month", "months", "mon", "mons"], (1, 0, 0)),
    **dict.fromkeys(["year", "years", "y", "yr", "yrs"], (12, 0, 0)),
    **dict.fromkeys(["decade", "decades"], (120, 0, 0)),
    **dict.fromkeys(["century", "centuries"], (1200, 0, 0)),
}
"""Months, days and microseconds of each."""

_DAY_US: Final = 86_400_000_000


def interval_parts(text: str) -> tuple[int, int, int] | None:
    """Months, days and microseconds of an interval as PostgreSQL reads it; None for what is none."""
    rest, backwards = re.subn(r"\bago\s*$", "", text.strip().lower())
    months = days = micros = Decimal(0)
    tokens = re.findall(r"[+-]?\d+:\d+(?::\d+(?:\.\d+)?)?|[+-]?(?:\d+\.?\d*|\.\d+)|[a-z]+|\S", rest)
    if not tokens:
        return None
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if ":" in token:
            sign = -1 if token.startswith("-") else 1
            hours, minutes, *seconds = token.lstrip("+-").split(":")
            whole = Decimal(hours) * 3600 + Decimal(minutes) * 60 + Decimal(seconds[0] if seconds else 0)
            micros += sign * whole * 1_000_000
            continue
        if re.fullmatch(r"[+-]?[\d.]+", token) is None:
            return None
        number, word = Decimal(token), "second"
        if at < len(tokens) and tokens[at].isalpha():
            word = tokens[at]
            at += 1
        elif at < len(tokens) and ":" in tokens[at]:
            word = "day"
        if word not in _UNITS:
            return None
        of_months, of_days, of_micros = _UNITS[word]
        exact = number * of_months
        months += int(exact)
        exact_days = number * of_days + (exact - int(exact)) * 30
        days += int(exact_days)
        micros += (exact_days - int(exact_days)) * _DAY_US + number * of_micros
    sign = -1 if backwards else 1
    return sign * int(months), sign * int(days), sign * round(micros)
