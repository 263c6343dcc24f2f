"""UNION ALL: no stage of its own, but several parts with the same columns; which part a row is from is in its key."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa

from magnetar.pipeline.sql.plan import Named, UnionAll
from magnetar.pipeline.views.changes import Changes
from magnetar.pipeline.views.lowering_context import Lowering
from magnetar.pipeline.views.stages import Select, quoted

_BRANCH = "_key_branch"


def lower_union(lowering: Lowering, node: UnionAll) -> Changes:
    """The changes of all inputs. Columns get the type that Spark finds for all of them."""
    branches = [lowering.changes(plan) for plan in node.inputs]
    columns = branches[0].columns
    names: list[dict[str, str]] = []
    keys: list[tuple[str, pa.DataType]] = []
    for place, branch in enumerate(branches):
        names.append({column: f"_key_{place}_{column}" for column in branch.key})
        keys += [(name, branch.schema.field(column).type) for column, name in names[-1].items()]
    types = [_common(lowering, branches, place) for place in range(len(columns))]
    parts = []
    for place, branch in enumerate(branches):
        outputs = [
            Named(_cast(branch, given, kind, lowering), column)
            for given, column, kind in zip(branch.columns, columns, types, strict=True)
        ]
        mine = {name: column for column, name in names[place].items()}
        outputs.append(Named(str(place), _BRANCH))
        for name, kind in keys:
            sql = quoted(mine[name]) if name in mine else f"CAST(NULL AS {lowering.spark_name(kind)})"
            outputs.append(Named(sql, name))
        key = (_BRANCH, *(name for name, _ in keys))
        parts.append(lowering.select(branch, None, outputs, key))
    times = {
        column: reduce(frozenset.union, [part.times[column] for part in parts])
        for column in columns
        if all(column in part.times for part in parts)
    }
    first = parts[0]
    return Changes(
        tuple(each for part in parts for each in part.parts),
        first.schema,
        first.key,
        columns,
        all(part.append_only for part in parts),
        times,
    )


def _common(lowering: Lowering, branches: list[Changes], place: int) -> pa.DataType:
    kinds = [branch.schema.field(branch.columns[place]).type for branch in branches]
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    both = pa.schema([pa.field(f"c{number}", kind) for number, kind in enumerate(kinds)])
    return lowering.after(both, [Select((Named(f"coalesce({', '.join(both.names)})", "c"),))]).field(0).type


def _cast(branch: Changes, column: str, kind: pa.DataType, lowering: Lowering) -> str:
    same = branch.schema.field(column).type == kind
    return quoted(column) if same else f"CAST({quoted(column)} AS {lowering.spark_name(kind)})"
