"""What the driver decodes by itself is what Spark decodes, for any message; what the two could read differently is left to Spark."""

from __future__ import annotations

import json
import random
from typing import Any

from pyspark.sql import SparkSession

from magnetar.pipeline.connect.options import read_options
from magnetar.pipeline.connect.reading.range_reader import KeptConnections
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.epoch.plain_stage import PlainSource
from magnetar.pipeline.views.source.decoding import PROBLEM, decode_values
from magnetar.pipeline.views.source.options import reader_options

SOURCE = """CREATE SOURCE src (k VARCHAR, n BIGINT, i INT, s SMALLINT, b BOOLEAN, d DOUBLE PRECISION)
  WITH (connector = 'pulsar', service.url = 'pulsar://nowhere:6650', topic = 't') FORMAT PLAIN ENCODE JSON"""
NAMES = ("k", "n", "i", "s", "b", "d")

USUAL = [
    b'{"k": "a", "n": 1, "i": 2, "s": 3, "b": true, "d": 1.5}',
    b"{}",
    b' {"k":null,"n":null,"d":7} ',
    b'{"n":-9223372036854775808,"i":-2147483648,"s":-32768,"d":-9223372036854775808}',
    b'{"n":9223372036854775807,"i":2147483647,"s":32767,"d":9007199254740993}',
    b'{"K":"other","N":5,"x":{"y":[1,{"k":"deep"}]},"z":1e300}',
    b'{"d":-0.0}',
    b'{"d":-0,"n":-0}',
    b'{"d":1e-320}',
    b'{"d":0.1,"k":"\\u0000\\ud83d\\ude00\\/\\b\\u00e4"}',
    b'{"d":123456789012345678901234567890.5}',
    b'{"d":4.9406564584124654e-324}',
    b'{"d":1.7976931348623157e308}',
    b'{"d":9007199254740993.0}',
    '{"k":"ä€😀\x7f\u2028","ä":1}'.encode(),
    b'{\r\n\t"k" : "x" ,\n"n"\t:\t12 }\n',
]
UNUSUAL = [
    None,
    b"",
    b" ",
    b"null",
    b"[]",
    b'"k"',
    b'[{"k":"a"}]',
    b'{"k":"a","k":"b"}',
    b'{"n":{},"n":1}',
    b'{"n":1,"\\u006e":2}',
    b'{"n":1.0}',
    b'{"n":1e2}',
    b'{"n":"1"}',
    b'{"n":true}',
    b'{"b":1}',
    b'{"b":"true"}',
    b'{"k":1}',
    b'{"k":{"a":1}}',
    b'{"d":"1.5"}',
    b'{"d":"NaN"}',
    b'{"d":NaN}',
    b'{"d":1e400}',
    b'{"i":2147483648}',
    b'{"s":40000}',
    b'{"n":9223372036854775808}',
    b'{"n":01}',
    b"{'k':'a'}",
    b'{"k":"a"',
    b'{"k":"a"} x',
    b'{"k":"a"}{"k":"b"}',
    b'{"k":"a"}, "x": {"k": 1}',
    b'{"k":"a\tb"}',
    b'{"k":"\xff"}',
    b'{"k":"\\ud800"}',
    b'{"k":"\\ud800x"}',
    b'{"k":"a",}',
    b'{k:"a"}',
    b'/* c */ {"k":"a"}',
    b'\xef\xbb\xbf{"k":"a"}',
    b'{"x":' + b"[" * 600 + b"]" * 600 + b"}",
    b'{"x":' + b"1" * 1100 + b"}",
    b'{"k":"' + b"a" * 40_000 + b'"}',
]


def random_messages(count: int, seed: int) -> list[bytes]:
    """Objects of values that fit and that do not, a third of them with a byte changed, left out or doubled."""
    draw = random.Random(seed)
    values: list[Any] = [
        "",
        "a",
        "ä",
        "\x00",
        '"',
        0,
        1,
        -1,
        2**15,
        2**31,
        2**63,
        -(2**63),
        1.5,
        1e22,
        0.1,
        True,
        False,
    ]
    values += [None, [], {}, {"k": 1}, [1, "x"], "NaN", "1"]
    found = []
    for _ in range(count):
        fields = [(draw.choice((*NAMES, "x", "K")), draw.choice(values)) for _ in range(draw.randint(0, 5))]
        text = (
            "{"
            + ",".join(
                f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=draw.random() < 0.5)}" for name, value in fields
            )
            + "}"
        )
        data = bytearray(text.encode())
        if draw.random() < 0.33:
            at, what = draw.randrange(len(data)), draw.random()
            if what < 0.3:
                del data[at]
            elif what < 0.6:
                data.insert(at, data[at])
            else:
                data[at] = draw.choice(b" \"{}[]:,\\/0129.eE+-'xnulltrue\t\x01\xff\x80")
        found.append(bytes(data))
    return found


def test_messages_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    source = parse_one(SOURCE)
    assert isinstance(source, CreateSource)
    plain = PlainSource.of(source, read_options(reader_options(source)), KeptConnections())
    assert plain is not None
    messages = [*USUAL, *UNUSUAL, *random_messages(3000, 7)]
    raw = spark.createDataFrame([(at, value) for at, value in enumerate(messages)], "at INT, value BINARY").repartition(
        2
    )
    found = decode_values(raw, source).frame.selectExpr("at", f"{PROBLEM} AS problem", "_decoded.*").collect()
    by_spark = {row["at"]: row for row in found}
    read = 0
    for at, value in enumerate(messages):
        mine = plain.decoded([value])
        if mine is None:
            assert value not in USUAL, value
            continue
        read += 1
        assert value not in UNUSUAL, value
        row = by_spark[at]
        assert row["problem"] is None, value
        expected = tuple(row[name] for name in NAMES)
        given = tuple(None if mine[0].get(name) is None else mine[0][name] for name in NAMES)
        assert tuple(map(repr, expected)) == tuple(
            map(repr, (*given[:5], None if given[5] is None else float(given[5])))
        ), value
    assert read > 500
