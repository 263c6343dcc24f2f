"""Changes of a table: a frame with `_change` and the table's columns.

0 insert and 2 update_after add a row, 3 delete and 1 update_before take one away; an update is 1 and 2 of the same key. What a set of
changes comes to does not depend on their order: equal rows cancel, and what is left takes away at most one row of a key and adds at
most one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import ChangelogError
from magnetar.pipeline.state.table import as_frame

CHANGE: Final = "_change"
INSERT: Final = 0
UPDATE_BEFORE: Final = 1
UPDATE_AFTER: Final = 2
DELETE: Final = 3

_ONE: Final = "_one"
_AFTER: Final = "_after"
_WEIGHT: Final = "_weight"


def empty(schema: pa.Schema) -> pl.DataFrame:
    """No rows of these columns, as polars types them."""
    return as_frame(schema.empty_table())


def empty_changelog(schema: pa.Schema) -> pl.DataFrame:
    """No changes of these columns."""
    return with_change(empty(schema), INSERT)


def with_change(rows: pl.DataFrame, change: int) -> pl.DataFrame:
    """All rows as one kind of change. Rows without columns are none, where a literal would make one of them."""
    return rows.select(pl.repeat(change, rows.height, dtype=pl.Int8).alias(CHANGE), pl.all())


def weight() -> pl.Expr:
    """1 for changes that add a row, -1 for those that take one away."""
    return pl.when(pl.col(CHANGE).is_in([INSERT, UPDATE_AFTER])).then(1).otherwise(-1).cast(pl.Int64)


def checked(delta: pl.DataFrame | None, schema: pa.Schema) -> pl.DataFrame:
    """The delta with `_change` and the schema's columns and types only; None is an empty one. ChangelogError."""
    wanted = empty_changelog(schema)
    if delta is None:
        return wanted
    try:
        found = delta.select(pl.col(name).cast(dtype) for name, dtype in wanted.schema.items())
    except pl.exceptions.PolarsError as error:
        raise ChangelogError(f"changes of {schema.names} are needed, not these of {delta.columns}: {error}") from error
    if found.height and not found[CHANGE].is_in([INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE]).fill_null(False).all():
        raise ChangelogError(f"{CHANGE} is 0 (insert), 1 (update_before), 2 (update_after) or 3 (delete)")
    return found


def require_append_only(delta: pl.DataFrame, what: str) -> None:
    """ChangelogError when a change is not an insert."""
    if delta.height and not (delta[CHANGE] == INSERT).all():
        raise ChangelogError(f"{what} takes inserts only; state that its input is not append-only, or upsert before it")


def net(delta: pl.DataFrame, key: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows taken away and rows added, all told; each key at most once in each. ChangelogError when that is not what is left."""
    columns = [name for name in delta.columns if name != CHANGE]
    left = delta.group_by(columns, maintain_order=True).agg(weight().sum().alias(_WEIGHT)).filter(pl.col(_WEIGHT) != 0)
    parts = []
    for sign, verb in ((-1, "taken away"), (1, "added")):
        part = left.filter(pl.col(_WEIGHT).sign() == sign)
        if part.height:
            doubled = part.filter(pl.col(_WEIGHT).abs() > 1)
            if not doubled.height:
                doubled = part.filter(part.select(keyed(part, key)).is_duplicated())
            if doubled.height:
                raise ChangelogError(
                    f"the row with the key {key_of(doubled, key)} is {verb} more than once in one epoch"
                )
        parts.append(part.select(columns))
    return parts[0], parts[1]


def difference(old: pl.DataFrame, new: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The changelog that makes `new` of `old`, by key. Each key at most once in each frame; the columns are the same."""
    columns = new.columns
    values = [name for name in columns if name not in key]
    old, _ = with_one(old.select(columns), key)
    new, on = with_one(new, key)
    both = old.join(new, on=on, how="inner", nulls_equal=True, suffix=_AFTER)
    if values:
        differs = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name + _AFTER)) for name in values)
        both = both.filter(differs)
    else:
        both = both.clear()
    after = both.select(pl.col(name if name in key else name + _AFTER).alias(name) for name in columns)
    changes = [
        with_change(both.select(columns), UPDATE_BEFORE),
        with_change(after, UPDATE_AFTER),
        with_change(old.join(new, on=on, how="anti", nulls_equal=True).select(columns), DELETE),
        with_change(new.join(old, on=on, how="anti", nulls_equal=True).select(columns), INSERT),
    ]
    return pl.concat(changes).sort(*key, CHANGE, nulls_last=False, maintain_order=True)


def applied(rows: pl.DataFrame, delta: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The rows after these changes. ChangelogError when they take away what is not there or add what is."""
    removed, added = net(delta, key)
    kept = without(rows, removed, key)
    return pl.concat([kept, added_to(kept, added, key)])


def without(rows: pl.DataFrame, removed: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Rows less the removed ones, which must be there with the same values. ChangelogError."""
    if not removed.height:
        return rows
    changed = difference(removed, matching(rows, removed.select(keyed(removed, key))), key)
    if changed.height:
        raise ChangelogError(
            f"a row is taken away that is not there (or is there with other values): {row_of(changed)}"
        )
    return (
        rows.with_columns(pl.lit(1).alias(_ONE))
        .join(
            removed.select(pl.lit(1).alias(_ONE), *key),
            on=[_ONE, *key],
            how="anti",
            nulls_equal=True,
            maintain_order="left",
        )
        .drop(_ONE)
    )


def added_to(rows: pl.DataFrame, added: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The added rows, whose keys must not be among the rows. ChangelogError."""
    if added.height and rows.height:
        there = matching(added, rows.select(keyed(rows, key)))
        if there.height:
            raise ChangelogError(f"a row is added whose key {key_of(there, key)} is there already; upsert before it")
    return added


def matching(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """The rows with one of these keys (NULL is a value), in their order. Keys without columns: all rows if there is a key."""
    if _ONE in keys.columns:
        return rows if keys.height else rows.clear()
    return rows.join(keys, on=keys.columns, how="semi", nulls_equal=True, maintain_order="left")


def equal_join(left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """Pairs of rows with equal, not NULL, columns; NaN is equal to itself.

    The constant in the key is for polars 2.1, which joins one row with NaN as the only key column to none.
    """
    one = pl.lit(1).alias(_ONE)
    return left.with_columns(one).join(right.with_columns(one), on=[_ONE, *on], how="inner").drop(_ONE)


def with_one(frame: pl.DataFrame, key: Sequence[str]) -> tuple[pl.DataFrame, list[str]]:
    """The frame and the columns to join it by: with a constant among them where there is no key, or polars needs it.

    polars 2.1 joins one row with NaN as the only key column to none.
    """
    if len(key) > 1 or (key and not frame.schema[key[0]].is_float()):
        return frame, list(key)
    return frame.with_columns(pl.lit(1).alias(_ONE)), [_ONE, *key]


def keyed(frame: pl.DataFrame, key: Sequence[str]) -> list[pl.Expr]:
    """What to select for a key; a key without columns needs one to have rows."""
    return [pl.col(name) for name in key] if key else [pl.repeat(1, frame.height, dtype=pl.Int32).alias(_ONE)]


def key_of(rows: pl.DataFrame, key: Sequence[str]) -> dict[str, Any]:
    """Of the first row, for a message."""
    return rows.select(key).row(0, named=True) if key else {}


def row_of(rows: pl.DataFrame) -> dict[str, Any]:
    """The first row, for a message."""
    return rows.drop(CHANGE, strict=False).row(0, named=True)
