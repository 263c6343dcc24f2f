"""A changelog while a view is lowered: where it comes from, what was done to it, and what is known of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.views.lowering.stages import ROW_ID, Filter, Select, Step, quoted

HIDDEN: Final = "_key_"
"""How columns begin that are there for a key and that nobody asked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where changes come from, and the steps since."""

    origin: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """The columns that hold a row's window, by their present names (None: dropped), and the sources whose watermark closes it."""

    start: str | None
    end: str | None
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class Changes:
    """A relation: the changes of several parts with the same columns, each row from one of them.

    `schema`: all columns, hidden ones among them. `key`: what makes a row unique, at any time. `columns`: those that people see.
    `times`: columns with a watermark, and the sources that it is of.
    """

    parts: tuple[Part, ...]
    schema: pa.Schema
    key: tuple[str, ...]
    columns: tuple[str, ...]
    append_only: bool
    times: Mapping[str, frozenset[str]] = field(default_factory=dict)
    windows: Windows | None = None

    def column(self, sql: str) -> str | None:
        """The column that this Spark SQL is nothing but the name of."""
        for name in self.schema.names:
            if sql == quoted(name) or sql.lower() == name.lower():
                return str(name)
        return None

    def expanded(self, outputs: Sequence[Named]) -> tuple[Named, ...]:
        """With the columns in place of `*`."""
        found: list[Named] = []
        for output in outputs:
            found += [Named(quoted(name), name) for name in self.columns] if output.name == "*" else [output]
        return tuple(found)

    def with_key(self, outputs: Sequence[Named], prefix: str = HIDDEN) -> tuple[tuple[Named, ...], tuple[str, ...]]:
        """The outputs and behind them the key columns that they lack; and the key by its new names."""
        selected = list(outputs)
        key: list[str] = []
        for column in self.key:
            found = next((output.name for output in outputs if self.column(output.sql) == column), None)
            if found is None:
                own = column == ROW_ID and prefix == HIDDEN
                found = column if own or column.startswith(prefix) else prefix + column
                while any(output.name.lower() == found.lower() for output in selected):
                    found += "_"
                selected.append(Named(quoted(column), found))
            key.append(found)
        return tuple(selected), tuple(key)

    def after(self, steps: Sequence[Step], schema: pa.Schema, **changed: object) -> Changes:
        """With these steps at the end of every part, which leave this schema."""
        parts = tuple(Part(part.origin, (*part.steps, *steps)) for part in self.parts)
        return replace(self, parts=parts, schema=schema, **changed)  # type: ignore[arg-type]

    def times_of(self, outputs: Sequence[Named]) -> dict[str, frozenset[str]]:
        """The watermarks that the outputs keep."""
        kept = {output.name: self.column(output.sql) for output in outputs}
        return {
            name: self.times[column] for name, column in kept.items() if column is not None and column in self.times
        }

    def windows_of(self, outputs: Sequence[Named]) -> Windows | None:
        """The windows that the outputs keep."""
        if self.windows is None:
            return None
        names = {self.column(output.sql): output.name for output in reversed(outputs)}
        windows = self.windows
        return Windows(
            None if windows.start is None else names.get(windows.start),
            None if windows.end is None else names.get(windows.end),
            windows.sources,
        )


def steps_of(condition: str | None, outputs: Sequence[Named]) -> tuple[Step, ...]:
    """Filter, then select."""
    select = Select(tuple(outputs))
    return (select,) if condition is None else (Filter(condition), select)


def renames(steps: Sequence[Step], schema: pa.Schema) -> dict[str, str] | None:
    """What the steps come to when they do nothing but rename columns of the schema: new name to old. None when they do more."""
    names = {name: name for name in schema.names}
    for step in steps:
        if not isinstance(step, Select):
            return None
        below = {**{quoted(name): old for name, old in names.items()}, **names}
        lowered = {name.lower(): old for name, old in names.items()}
        found = {}
        for output in step.outputs:
            old = below.get(output.sql) or lowered.get(output.sql.lower())
            if old is None:
                return None
            found[output.name] = old
        names = found
    return names
