"""Conditions on key columns as rows of keys: what prunes a scan to the vnodes that can have them. A decision core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.table import StateTable

KEYS_MAX: Final = 10_000
"""Combinations of values that are looked up one by one; with more the whole table is read and filtered."""


def wanted_values(table: StateTable, key: Mapping[str, Sequence[Any]]) -> dict[str, pa.Array]:
    """The values of the option `key` in the columns' types; texts are read as Spark writes them. OptionError."""
    found = {}
    for name, values in key.items():
        column = next((known for known in table.key if known.lower() == name.lower()), None)
        if column is None:
            raise OptionError(
                f"key: {name} is not a key column of {table.name}; those are: {', '.join(table.key) or 'none'}"
            )
        kind = table.schema.field(column).type
        try:
            found[column] = _typed(values, kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise OptionError(f"key: {name} is {kind}, which {list(values)} are not: {error}") from error
    return found


def pushed_values(table: StateTable, conditions: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, pa.Array]:
    """Of conditions `column IN values`, those that can prune; whatever does not fit is left to Spark, which filters anyway."""
    found: dict[str, pa.Array] = {}
    for name, values in conditions:
        if name not in table.key or name in found:
            continue
        kind = table.schema.field(name).type
        # Spark's = takes 0.0 for -0.0 and any NaN for another; times without a zone are another thing than instants.
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            continue
        if pa.types.is_timestamp(kind) and any(
            _zoned(value) != (kind.tz is not None) for value in values if value is not None
        ):
            continue
        try:
            found[name] = pa.array(list(values), kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue
    return found


def both(first: Mapping[str, pa.Array], second: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Both conditions; `first` wins where both name a column: what `second` says Spark checks again."""
    return {**second, **first}


def key_rows(table: StateTable, values: Mapping[str, pa.Array]) -> pa.Table | None:
    """All combinations, for `read_slices`; None when they do not say the vnode, or are too many."""
    if not table.distributed_by or any(name not in values for name in table.distributed_by):
        return None
    distinct = {name: values[name].unique() for name in table.key if name in values}
    if prod(len(each) for each in distinct.values()) > KEYS_MAX:
        return None
    rows = list(product(*(range(len(each)) for each in distinct.values())))
    columns = {
        # not pa.array, which imports pandas: a third of a second for who asks once
        name: each.take(pl.Series([row[position] for row in rows], dtype=pl.Int64).to_arrow())
        for position, (name, each) in enumerate(distinct.items())
    }
    return pa.table(columns)


def vnode_bits(table: StateTable, keys: pa.Table | None) -> int:
    """The vnodes that can have these keys; all when there are no keys."""
    if keys is None:
        return (1 << table.vnode_count) - 1
    return vnode_set.of({int(vnode) for vnode in table.vnodes_of(keys)})


def _zoned(value: Any) -> bool:
    return getattr(value, "tzinfo", None) is not None


def _typed(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if any(isinstance(value, str) for value in values) and not pa.types.is_string(kind):
        texts = pa.array([None if value is None else str(value) for value in values], pa.string())
        return texts.cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
    return pa.array(list(values), kind)
