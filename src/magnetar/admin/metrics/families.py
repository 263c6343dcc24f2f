"""Prometheus' text format, written a table at a time: one row of numbers per labelled thing, one family per column."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

ROWS_PER_TURN = 500
"""Lines written before other connections get their turn."""

Row = tuple[str, Sequence[float]]
"""Finished labels, and a number per column."""


def labels(**values: str) -> str:
    """`{name="value",...}` with the values escaped."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in values.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def heading(name: str) -> str:
    return f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n"


async def table(columns: Sequence[str], rows: Sequence[Row]) -> AsyncIterator[str]:
    """One family after the other, each with a line per row. Nothing at all without rows."""
    if not rows:
        return
    for place, name in enumerate(columns):
        yield heading(name)
        for first in range(0, len(rows), ROWS_PER_TURN):
            part = rows[first : first + ROWS_PER_TURN]
            yield "".join([f"{name}{about} {_number(values[place])}\n" for about, values in part])
            await asyncio.sleep(0)


def families(names: Iterable[tuple[str, float]], about: str) -> Iterator[str]:
    """Families of one line each."""
    for name, value in names:
        yield f"{heading(name)}{name}{about} {_number(value)}\n"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)
