"""Decides whether data written with one Avro schema can be read with another one, by Avro's rules of schema resolution. Pure.

"Can" means whatever the data is: every branch of a writer's union and every symbol of its enum must be readable. Records are not
compared by name, as in Pulsar's broker (it asks Java's resolving grammar, which looks only at their fields); enums and fixed types are.
"""

from __future__ import annotations

from magnetar.broker.schemas.avro_schema import AvroField, AvroType, printable
from magnetar.broker.schemas.types import InvalidSchemaError

COMPARISONS_MAX = 50_000
"""Pairs of types compared for one answer; beyond it the schemas are refused: unions of unions of records can ask for any number."""

SYMBOLS_PER_COMPARISON = 16
"""So many symbols of an enum cost as much as one comparison of types."""

RESOLUTION_DEPTH_MAX = 200
"""Types within types on the way to one pair; named types can be chained deeper than any schema is nested."""

PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Writer's primitive type -> reader's types it is promoted to."""


def why_unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """None when `reader` reads everything that `writer` writes, else the first reason. Raises InvalidSchemaError beyond the bounds."""
    return _Resolution().check(reader, writer, 0)


class _Resolution:
    """One question. `_known` holds pairs that are readable, those under way included: a recursive type is readable if nothing
    else speaks against it. When a pair turns out unreadable, what was concluded since it began may rest on it and is forgotten."""

    __slots__ = ("_comparisons", "_failed", "_known")

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], None] = {}
        self._failed: dict[tuple[int, int], str] = {}
        self._comparisons = 0

    def check(self, reader: AvroType, writer: AvroType, depth: int) -> str | None:
        self._count(1, depth)
        if writer.kind == "union":
            return next(filter(None, (self.check(reader, branch, depth + 1) for branch in writer.branches)), None)
        if reader.kind == "union":
            return self._reader_union(reader, writer, depth)
        if reader.kind != writer.kind:
            promoted = reader.kind in PROMOTIONS.get(writer.kind, ())
            return None if promoted else f"{_called(writer)} cannot be read as {_called(reader)}"
        if reader.kind == "record":
            return self._record(reader, writer, depth)
        if reader.kind == "enum":
            self._count(len(writer.symbols) // SYMBOLS_PER_COMPARISON, depth)
            return _enum(reader, writer)
        if reader.kind == "fixed":
            return _fixed(reader, writer)
        if reader.element is not None and writer.element is not None:
            return self.check(reader.element, writer.element, depth + 1)
        return None

    def _count(self, comparisons: int, depth: int) -> None:
        self._comparisons += comparisons
        if self._comparisons > COMPARISONS_MAX or depth > RESOLUTION_DEPTH_MAX:
            raise InvalidSchemaError("the schemas are too complex to be compared")

    def _reader_union(self, reader: AvroType, writer: AvroType, depth: int) -> str | None:
        for branch in reader.branches:
            if self.check(branch, writer, depth + 1) is None:
                return None
        return f"{_called(writer)} cannot be read as any branch of the reader's union"

    def _record(self, reader: AvroType, writer: AvroType, depth: int) -> str | None:
        pair = (id(reader), id(writer))
        if pair in self._known:
            return None
        if pair in self._failed:
            return self._failed[pair]
        self._count(len(reader.fields), depth)
        before = len(self._known)
        self._known[pair] = None
        for field in reader.fields:
            problem = self._field(field, writer, depth)
            if problem is not None:
                while len(self._known) > before:
                    self._known.popitem()
                self._failed[pair] = f"{_called(reader)}.{printable(field.name)}: {problem}"[:400]
                return self._failed[pair]
        return None

    def _field(self, field: AvroField, writer: AvroType, depth: int) -> str | None:
        source = writer.by_name.get(field.name)
        if source is None:
            source = next((writer.by_name[alias] for alias in field.aliases if alias in writer.by_name), None)
        if source is None:
            return None if field.has_default else "the writer has no such field, and it has no default"
        return self.check(field.type, source.type, depth + 1)


def _enum(reader: AvroType, writer: AvroType) -> str | None:
    if not reader.answers_to(writer):
        return f"enum {_called(writer)} cannot be read as enum {_called(reader)}"
    missing = sorted(writer.symbols - reader.symbols)
    if missing and not reader.has_default:
        return f"enum {_called(reader)} lacks {printable(', '.join(missing))} and has no default"
    return None


def _fixed(reader: AvroType, writer: AvroType) -> str | None:
    if not reader.answers_to(writer) or reader.size != writer.size:
        return f"fixed {_called(writer)} cannot be read as fixed {_called(reader)} (names and sizes must be equal)"
    return None


def _called(type_: AvroType) -> str:
    return printable(type_.name or type_.kind)
