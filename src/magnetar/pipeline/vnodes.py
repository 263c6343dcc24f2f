"""Vnodes in DataFrames: the number of a row's vnode, and rows sent to the parallel unit that holds it.

The three steps of consistent hashing, nothing else decides placement: key to vnode, vnode to unit by the mapping, unit to task by
Spark's `repartitionById`, for which the unit has to be a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from pyspark.sql import functions as F

from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.spark_sql import vnode_expression
from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VNODE: Final = "_vnode"
UNIT: Final = "_pid"

ARRAYS_KEPT: Final = 8
"""Mappings whose literals are kept; then the one that was not used for longest goes."""


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
    return named.withColumn(UNIT, unit_index(frame.sparkSession, mapping)).repartitionById(len(mapping.units), UNIT)


def unit_index(spark: SparkSession, mapping: VnodeMapping) -> Column:
    """The index in `mapping.units` of a row's unit by its `_vnode`."""
    return F.get(_literal(spark.sparkContext._gateway, mapping.owners), F.col(VNODE))


@lru_cache(ARRAYS_KEPT)
def _literal(_gateway: object, numbers: tuple[int, ...]) -> Column:
    """One literal of an array, for as long as there is this JVM. It takes a call of the JVM a number, 41 ms for 256 of them, but only
    once; `array(0, 0, ...)` as SQL is parsed in each epoch, and walked by each of Spark's rules."""
    return F.lit(np.array(numbers, np.int32))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
