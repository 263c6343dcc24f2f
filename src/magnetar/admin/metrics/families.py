"""Prometheus' text format, written a table at a time: one row of numbers per labelled thing, one family per column."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from magnetar.admin.pacing import Pace

ROWS_PER_PIECE = 250
"""Lines written at once: less than a millisecond of work."""

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

Row = tuple[str, Sequence[float]]
"""Finished labels, and a number per column."""


def labels(**values: str) -> str:
    """`{name="value",...}` with the values escaped."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def heading(name: str) -> str:
    return f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n"


def parsed_labels(text: str) -> dict[str, str]:
    """What `labels` was made of."""
    return {
        name: _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
        for name, value in _LABEL.findall(text)
    }


def parsed_samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, number) of each line that `table` or `families` wrote."""
    for line in text.split("\n"):  # names may hold what `splitlines` takes for the end of a line
        if line and not line.startswith("#"):
            described, _, number = line.rpartition(" ")
            name, _, about = described.partition("{")
            yield name, parsed_labels(about), float(number)


async def table(columns: Sequence[str], rows: Sequence[Row], pace: Pace) -> AsyncIterator[str]:
    """One family after the other, each with a line per row. Nothing at all without rows."""
    if not rows:
        return
    for place, name in enumerate(columns):
        yield heading(name)
        for first in range(0, len(rows), ROWS_PER_PIECE):
            part = rows[first : first + ROWS_PER_PIECE]
            yield "".join([f"{name}{about} {_number(values[place])}\n" for about, values in part])
            await pace.breathe()


def families(names: Iterable[tuple[str, float]], about: str) -> Iterator[str]:
    """Families of one line each."""
    for name, value in names:
        yield f"{heading(name)}{name}{about} {_number(value)}\n"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)
