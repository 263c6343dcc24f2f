"""Ranges as Spark's tasks."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.offsets import Range, split
from magnetar.pipeline.connect.segment_order import reading_order


class RangePartition(InputPartition):
    """One task's range."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def split_all(topics: Topics, parts: list[Range], at_least: int) -> list[Range]:
    """Ranges cut by entries until there are about `at_least`; without the admin API, which knows the entries, as they are. No segment comes
    before an ancestor."""
    parts = sorted(parts, key=lambda part: reading_order(part.topic))
    if len(parts) >= at_least or not parts:
        return parts
    each = -(-at_least // len(parts))
    return [piece for part in parts for piece in _pieces(topics, part, each)]


def _pieces(topics: Topics, part: Range, at_least: int) -> list[Range]:
    sizes = topics.ledger_sizes(part.topic)
    return [part] if sizes is None else split(part, [(each.ledger, each.entries) for each in sizes], at_least)
