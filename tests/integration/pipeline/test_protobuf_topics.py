"""Protobuf: a topic read by a descriptor file, a sink that registers its schema, and that topic read by its own schema."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.pipeline.connect.errors import SourceError
from magnetar.pipeline.connect.reading.protobuf_values import reader
from magnetar.pipeline.connect.writing.protobuf_rows import encoder
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import latest, view_rows
from tests.support.protobuf_types import order_type
from tests.support.topics import drain, produce
from tests.unit.pipeline.test_protobuf import SCHEMA

SENT = {
    "i32": 1, "s64": -2, "u64": Decimal(2**64 - 1), "word": "ünï", "raw": b"\x00", "kind": "PAID", "flag": True,
    "at": datetime(2026, 1, 2, tzinfo=UTC), "place": {"city": "Bern", "lat": 46.9},
    "places": [{"city": "Rom", "lat": 41.9}], "amounts": {"a": 1}, "words": ["x"], "perhaps": 5,
}  # fmt: skip


@pytest.mark.timeout(600)
def test_protobuf_comes_in_and_goes_out(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    order = order_type()
    path = tmp_path / "order.pb"
    path.write_bytes(order.files)
    client.subscribe(f"{topic}-out", "kept").close()
    client.subscribe(f"{topic}-dead", "kept").close()
    encode = encoder(order, SCHEMA)
    produce(client, topic, [encode(SENT), b"\xff\xff", encode({"i32": 2})])
    connector = f"connector = 'pulsar', service.url = '{server.service_url}', startingOffsets = 'earliest'"
    form = f"ENCODE PROTOBUF (message = 'shop.Order', schema.location = 'file://{path}'"
    text = f"""
    CREATE SOURCE orders WITH ({connector}, topic = '{topic}', dead.letter.topic = '{topic}-dead')
      FORMAT PLAIN {form}, on.decode.error = 'dead_letter');
    CREATE MATERIALIZED VIEW v AS
      SELECT i32, u64, kind, at, (place).city, (places[1]).lat AS lat, amounts['a'] AS a, perhaps, word FROM orders;
    CREATE SINK out AS SELECT i32, kind, at, place, amounts FROM orders
      WITH (connector = 'pulsar', service.url = '{server.service_url}', topic = '{topic}-out') FORMAT PLAIN {form});
    """

    def run(statements: str) -> None:
        pipeline = Pipeline("p", str(tmp_path / "p"), spark, units=2)
        pipeline.sql(statements)
        pipeline.prepare(report=False)
        pipeline.run(once=True)

    run(text)
    rows = {row[:-1] for row in view_rows(tmp_path / "p", "v")}
    assert rows == {
        (1, Decimal(2**64 - 1), "PAID", datetime(2026, 1, 2, tzinfo=UTC), "Bern", 41.9, 1, 5, "ünï"),
        (2, Decimal(0), "UNKNOWN", None, None, None, None, None, ""),
    }
    (dead,) = drain(client, f"{topic}-dead")
    assert (dead.data(), dead.properties()["source"]) == (b"\xff\xff", "orders")
    assert dead.properties()["reason"].startswith("cannot be read as PLAIN PROTOBUF: DecodeError")

    columns = [SCHEMA.field(name) for name in ("i32", "kind", "at", "place", "amounts")]
    read = reader(order.descriptor(), columns)
    found = sorted((read(each.data()) for each in drain(client, f"{topic}-out")), key=lambda row: row["i32"])
    assert found[0] == {"i32": 1, "kind": "PAID", "at": SENT["at"], "place": SENT["place"], "amounts": [("a", 1)]}

    # the sink has registered its message, so that the topic says by itself what is in it
    run(
        f"CREATE SOURCE again WITH ({connector}, topic = '{topic}-out') FORMAT PLAIN ENCODE PROTOBUF;"
        "CREATE MATERIALIZED VIEW w AS SELECT i32, kind, (place).city FROM again;"
    )
    assert {row[:3] for row in view_rows(tmp_path / "p", "w")} == {(1, "PAID", "Bern"), (2, "UNKNOWN", None)}
    assert "s64 BIGINT" in str(latest(tmp_path / "p").views["catalog"])

    with pytest.raises(SourceError, match="register one of the type PROTOBUF_NATIVE"):
        run(f"CREATE SOURCE bad WITH ({connector}, topic = '{topic}') FORMAT PLAIN ENCODE PROTOBUF;")
