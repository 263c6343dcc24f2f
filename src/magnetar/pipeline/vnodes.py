"""Vnodes in DataFrames: the number of a row's vnode, and rows sent to the parallel unit that holds it.

The three steps of consistent hashing, nothing else decides placement: key to vnode, vnode to unit by the mapping, unit to task by
Spark's `repartitionById`, for which the unit has to be a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.spark_sql import vnode_expression
from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VNODE: Final = "_vnode"
UNIT: Final = "_pid"


def vnode(frame: DataFrame, *columns: str, count: int = DEFAULT_VNODES) -> Column:
    """The vnode of each row by its key `columns`, in their order: `magnetar.hashing.vnode`, bit for bit, inside the JVM.

    The frame says the columns' types. Raises StateSchemaError for a column it does not have, KeyEncodingError for a type that
    cannot be a key.
    """
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if missing := [name for name in columns if name not in types]:
        raise StateSchemaError(f"no column {missing[0]}; there are: {', '.join(types)}")
    return F.expr(vnode_expression([(_quoted(name), types[name]) for name in columns], count))


def dispatch(frame: DataFrame, mapping: VnodeMapping, key: Sequence[str]) -> DataFrame:
    """The rows with `_vnode` and `_pid`, each in the task whose index is its unit's index in `mapping.units`."""
    named = frame.withColumn(VNODE, vnode(frame, *key, count=mapping.vnodes))
    # One SQL literal: a call of F.lit for each of 256 numbers takes 41 ms per epoch.
    placed = named.withColumn(UNIT, F.expr(f"get(array({', '.join(map(str, mapping.owners))}), {VNODE})"))
    return placed.repartitionById(len(mapping.units), UNIT)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
