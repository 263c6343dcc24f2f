"""Histories of a stream `s` and a table `t` for views, cut into epochs, and plain Spark SQL over what is there in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from magnetar.pipeline.operators.changelog import DELETE, INSERT
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.sql.statements import CreateSink, CreateSource, CreateView
from magnetar.pipeline.views.lowering.stages import ROW_ID
from tests.support.operators import DOUBLES, GROUPS, INTEGERS, Row, plain
from tests.support.view_runner import History, changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITH = "WITH (connector = 'pulsar', topic = 'x', service.url = 'pulsar://localhost:6650')"
SOURCES = f"""
CREATE SOURCE s (i BIGINT, g VARCHAR, n BIGINT, v DOUBLE, m NUMERIC(10, 2), ts TIMESTAMPTZ,
                 WATERMARK FOR ts AS ts - INTERVAL '10 minutes') {WITH} FORMAT PLAIN ENCODE JSON;
CREATE TABLE t (k BIGINT PRIMARY KEY, g VARCHAR, n BIGINT, v DOUBLE, m NUMERIC(10, 2)) {WITH} FORMAT UPSERT ENCODE JSON;
"""
DAY = datetime(2026, 1, 1, tzinfo=UTC)
_VALUES = [("g", pa.string()), ("n", pa.int64()), ("v", pa.float64()), ("m", pa.decimal128(10, 2))]
STREAM = pa.schema([("i", pa.int64()), *_VALUES, ("ts", pa.timestamp("us", "UTC")), (ROW_ID, pa.string())])
TABLE = pa.schema([("k", pa.int64()), *_VALUES, (ROW_ID, pa.string())])

_DECIMALS = st.sampled_from([None, Decimal("-1.25"), Decimal("0.00"), Decimal("0.01"), Decimal("99999999.99")])
_VALUE = st.fixed_dictionaries({"g": GROUPS, "n": INTEGERS, "v": DOUBLES, "m": _DECIMALS})
_MINUTES = st.one_of(st.none(), st.integers(0, 90))


def catalog(text: str) -> Catalog:
    """Of these statements."""
    found = Catalog()
    for statement in parse(text):
        assert isinstance(statement, CreateSource | CreateView | CreateSink)
        found = found.create(statement)
    return found


@st.composite
def histories(draw: st.DrawFn, rows_max: int = 12) -> History:
    """Rows of `s`, upserts and deletes of `t`, the units of each epoch; one group gets most rows, few keys change often."""
    epochs = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    stream: list[list[Row]] = [[] for _ in epochs]
    table: list[list[tuple[int, Row]]] = [[] for _ in epochs]
    at = st.integers(0, len(epochs) - 1)
    arrivals = sorted(
        draw(st.lists(st.tuples(at, _VALUE, _MINUTES), max_size=rows_max)), key=lambda arrival: arrival[0]
    )
    for number, (epoch, value, minutes) in enumerate(arrivals):
        time = None if minutes is None else DAY + timedelta(minutes=minutes)
        stream[epoch].append({"i": number, **value, "ts": time, ROW_ID: f"s{number:04}"})
    step = st.tuples(at, st.integers(0, 4), st.sampled_from([INSERT, INSERT, DELETE]), _VALUE)
    for number, (epoch, key, change, value) in enumerate(draw(st.lists(step, max_size=rows_max))):
        table[epoch].append((change, {"k": key, **value, ROW_ID: f"t{number:04}"}))
    return History(
        {
            "s": [changes(STREAM, [(INSERT, row) for row in rows]) for rows in stream],
            "t": [changes(TABLE, rows) for rows in table],
        },
        epochs,
    )


def final_rows(history: History, name: str) -> list[Row]:
    """What a source comes to: all rows of the stream, the last row of each of the table's keys."""
    rows: dict[Any, Row] = {}
    for frame in history.sources[name]:
        for row in frame.to_dicts():
            change, row_id = row.pop("_change"), row.pop(ROW_ID)
            key = row["k"] if name == "t" else row_id
            if change == DELETE:
                rows.pop(key, None)
            else:
                rows[key] = row
    return list(rows.values())


def expected(
    spark: SparkSession, queries: Mapping[str, str], given: Sequence[History]
) -> dict[str, tuple[StructType, list[Counter[Any]]]]:
    """By query what plain Spark SQL gives over the final input: the columns, and the rows of each history."""
    together: dict[str, DataFrame] = {}
    for number, history in enumerate(given):
        for name, schema in (("s", STREAM), ("t", TABLE)):
            wanted = pa.schema([column for column in schema if column.name != ROW_ID])
            frame = pl.DataFrame(final_rows(history, name), schema=changes(wanted, []).drop("_change").schema)
            spark.createDataFrame(frame.to_arrow(compat_level=pl.CompatLevel.oldest())).createOrReplaceTempView(name)
        for name, query in queries.items():
            found = spark.sql(query).selectExpr(f"{number} AS _history", "*")
            together[name] = together[name].unionAll(found) if number else found
    results: dict[str, tuple[StructType, list[Counter[Any]]]] = {}
    for name, rows in together.items():
        counted: list[Counter[Any]] = [Counter() for _ in given]
        for row in pl.DataFrame(rows.toArrow()).to_dicts():
            counted[row.pop("_history")][plain_row(row)] += 1
        results[name] = rows.drop("_history").schema, counted
    return results


def plain_row(row: Row) -> tuple[tuple[str, Any], ...]:
    """To count equal rows."""
    return tuple((name, plain(value)) for name, value in row.items())
