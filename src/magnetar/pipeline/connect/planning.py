"""Ranges as Spark's tasks."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.offsets import Range, split


class RangePartition(InputPartition):
    """One task's range."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def split_all(topics: Topics, parts: list[Range], at_least: int) -> list[Range]:
    """Ranges cut by entries until there are about `at_least`; without the admin API, which knows the entries, as they are."""
    if len(parts) >= at_least or topics.admin is None or not parts:
        return parts
    each = -(-at_least // len(parts))
    return [piece for part in parts for piece in split(part, topics.admin.ledgers(part.topic), each)]
