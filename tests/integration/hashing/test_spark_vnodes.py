"""Vnodes in Spark SQL are those of Python: every type Spark has, NULLs, edges and random values, through a real session."""

from __future__ import annotations

import math
import random
import struct
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'magnetar[spark]'")

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import types as T  # noqa: E402

from magnetar.hashing.errors import KeyEncodingError  # noqa: E402
from magnetar.hashing.key_encoding import Interval, encode_key  # noqa: E402
from magnetar.hashing.key_types import KeyType  # noqa: E402
from magnetar.hashing.spark_sql import key_expression, vnode_expression  # noqa: E402
from magnetar.hashing.vnode import vnode  # noqa: E402

RANDOM = random.Random(20_26)


@pytest.fixture(scope="module", autouse=True)
def far_away(spark: SparkSession) -> Iterator[None]:
    """A zone with daylight saving: neither instants nor wall clocks may depend on it."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.sparkContext.setLogLevel("OFF")
    yield
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.session.timeZone", zone)


def check(spark: SparkSession, spark_type: Any, values: list[Any]) -> None:
    frame = spark.createDataFrame([(value,) for value in values], T.StructType([T.StructField("c", spark_type)]))
    check_frame(frame, values)


def check_frame(frame: Any, values: list[Any]) -> None:
    text = frame.schema[0].dataType.simpleString()
    kinds = [KeyType.from_spark(text)]
    rows = frame.selectExpr(
        f"hex({key_expression([('c', text)])}) k", f"{vnode_expression({'c': text}, 300)} v"
    ).collect()
    assert [row.k for row in rows] == [encode_key([value], kinds).hex().upper() for value in values]
    assert [row.v for row in rows] == [vnode([value], kinds, 300) for value in values]


def integers(bits: int) -> list[int | None]:
    edges = [0, 1, -1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1]
    return [None, *edges, *(RANDOM.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1)) for _ in range(40))]


@pytest.mark.parametrize(
    ("spark_type", "values"),
    [
        (T.BooleanType(), [True, False, None]),
        (T.ByteType(), integers(8)),
        (T.ShortType(), integers(16)),
        (T.IntegerType(), integers(32)),
        (T.LongType(), integers(64)),
        (T.StringType(), ["", "a", "é日\U0001f600", None, "x" * 1000]),
        (T.BinaryType(), [b"", b"\x00\xff", None, b"q" * 300]),
        (
            T.DoubleType(),
            [
                None,
                0.0,
                -0.0,
                math.nan,
                math.inf,
                -math.inf,
                5e-324,
                -5e-324,
                2.2250738585072014e-308,
                sys.float_info.max,
            ]
            + [RANDOM.gauss(0, 10.0 ** RANDOM.randrange(-300, 300)) for _ in range(40)],
        ),
        (
            T.FloatType(),
            [None, 0.0, -0.0, math.nan, math.inf, 1e-45, -1e-45]
            + [struct.unpack("<f", struct.pack("<I", RANDOM.getrandbits(32)))[0] for _ in range(40)],
        ),
        (
            T.DateType(),
            [None, date(1, 1, 1), date(9999, 12, 31), date(2000, 2, 29), date(1900, 2, 28)]
            + [date.fromordinal(RANDOM.randrange(1, 3652059)) for _ in range(100)],
        ),
        (
            T.TimestampNTZType(),
            [None, datetime(2024, 3, 10, 2, 30), datetime(1969, 12, 31, 23, 59, 59, 999999)]
            + [datetime(1, 1, 1) + timedelta(microseconds=RANDOM.randrange(2 * 10**17)) for _ in range(60)],
        ),
        (
            T.TimestampType(),
            [None, *(datetime.fromtimestamp(RANDOM.randrange(2 * 10**9), UTC) for _ in range(60))],
        ),
        (
            T.DayTimeIntervalType(),
            [None, timedelta(0), *(timedelta(microseconds=RANDOM.randrange(-(10**17), 10**17)) for _ in range(60))],
        ),
        (T.ArrayType(T.ArrayType(T.StringType())), [[["a", None], [], None], [], None]),
        (T.MapType(T.StringType(), T.IntegerType()), [{"b": 1, "a": None}, {}, None]),
        (
            T.StructType([T.StructField("a", T.IntegerType()), T.StructField("n", T.ArrayType(T.DoubleType()))]),
            [(1, [2.5, None]), (None, None), None],
        ),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, T.DataType) else "",
)
def test_every_type(spark: SparkSession, spark_type: Any, values: list[Any]) -> None:
    check(spark, spark_type, values)


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (38, 0), (38, 10), (38, 38), (30, 29), (5, 5)])
def test_decimals(spark: SparkSession, precision: int, scale: int) -> None:
    with localcontext() as context:
        context.prec = 80
        numbers = [0, 1, -1, 10**precision - 1, 1 - 10**precision, 2**96, 2**96 - 1]
        numbers += [RANDOM.randrange(-(10**precision) + 1, 10**precision) for _ in range(30)]
        numbers += [RANDOM.randrange(-99, 99) * 10 ** RANDOM.randrange(precision - 1) for _ in range(30)]
        values = [None, *(Decimal(n).scaleb(-scale) for n in numbers if abs(n) < 10**precision)]
        # As text: PySpark's own way into the JVM rounds to 34 digits.
        texts = [(None if value is None else format(value, "f"),) for value in values]
        frame = spark.createDataFrame(texts, "t string").selectExpr(f"cast(t AS decimal({precision},{scale})) c")
        check_frame(frame, values)


def test_year_month_intervals(spark: SparkSession) -> None:
    literals = {"5-0": 60, "-7-3": -87, "178956970-7": 2**31 - 1}
    rows = ", ".join(f"(INTERVAL '{text}' YEAR TO MONTH)" for text in literals)
    frame = spark.sql(f"SELECT * FROM VALUES {rows} AS t(c)")
    check_frame(frame, [Interval(months, 0, 0) for months in literals.values()])


def test_golden_values_and_several_columns(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(114, 514, "k"), (None, 1, None)], "a int, b int, c string")
    for count, expected in ((256, 97), (4096, 1377), (32768, 21857)):
        assert frame.selectExpr(f"{vnode_expression({'a': 'int', 'b': 'int'}, count)} v").first().v == expected
    rows = frame.selectExpr(f"{vnode_expression({'a': 'int', 'c': 'string', 'b': 'int'})} v").collect()
    types = ("int", "varchar", "int")
    assert [row.v for row in rows] == [vnode((114, "k", 514), types), vnode((None, None, 1), types)]


def test_serial_keys(spark: SparkSession) -> None:
    ids = [None, 0, (123456 << 22) | (77 << 12) | 5, 2**62]
    frame = spark.createDataFrame([(value,) for value in ids], "c bigint")
    for count in (256, 300, 2048):
        rows = frame.selectExpr(f"{vnode_expression({'c': 'serial'}, count)} v").collect()
        assert [row.v for row in rows] == [vnode((value,), ("serial",), count) for value in ids]


def test_types_without_an_expression_say_so() -> None:
    for spark_type in ("jsonb", "int256", "vector"):
        with pytest.raises(KeyEncodingError, match="Python or Arrow"):
            vnode_expression({"c": spark_type})
