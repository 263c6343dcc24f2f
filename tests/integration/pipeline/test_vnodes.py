"""Rows go to the task that the mapping names, by the vnodes of `magnetar.hashing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.hashing.key_types import KeyType
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.vnode import vnode as python_vnode
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.vnodes import dispatch, vnode

KEY = [KeyType.from_spark("bigint"), KeyType.from_spark("string")]


def test_every_row_lands_in_its_units_task(spark: Any) -> None:
    frame = spark.range(300).selectExpr("id", "IF(id % 7 = 0, NULL, concat('k', id % 11)) `odd name`")
    mapping = VnodeMapping.even(3, 64)

    def here(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get().partitionId()
        for batch in batches:
            yield batch.append_column("task", pa.array([task] * batch.num_rows, pa.int32()))

    sent = dispatch(frame, mapping, ["id", "odd name"])
    rows = sent.mapInArrow(here, "id bigint, `odd name` string, _vnode int, _pid int, task int").collect()
    assert len(rows) == 300
    for row in rows:
        assert row["_vnode"] == python_vnode([row["id"], row["odd name"]], KEY, 64)
        assert row["task"] == row["_pid"] == mapping.owners[row["_vnode"]]
    with pytest.raises(StateSchemaError, match="there are: id, odd name"):
        vnode(frame, "name")
