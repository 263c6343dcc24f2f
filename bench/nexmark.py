#!/usr/bin/env python3
"""Nexmark's queries 0 to 22 as views, checked beside DuckDB, with the rate of each.

  nexmark.py [--events N] [--epochs N] [--units N] [--only q4,q5] [--check-only] [--directory DIR] [--json]

The events are Nexmark's: of 50, one is a person, three are auctions and 46 are bids, made from a fixed seed. They lie in Parquet files,
which stand where the topics do, so the rates are of the views alone. First all queries run as the views of one pipeline, over several
epochs, and their rows have to be DuckDB's over the same files; then each runs by itself: events/s is by the median epoch behind the first
two. Ends with 1 when a row differs. Some of DuckDB's answers are asked for in other words, which stand beside the query.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

from magnetar.base.clock import SystemClock
from magnetar.pipeline.session import build_session
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.sql.statements import CreateSink, CreateSource, CreateView
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.control.driver import Driver, claim
from magnetar.pipeline.views.epoch.spark_steps import SparkTypes
from magnetar.pipeline.views.lowering.program import assemble
from magnetar.pipeline.views.source.sources import SOURCE
from views import ParquetFiles

WARM_UP = 2
WITH = "WITH (connector = 'pulsar', service.url = 'pulsar://none:1', topic = 't', on.decode.error = 'strict') FORMAT {} ENCODE JSON"
COLUMNS = {
    "person": "id BIGINT, name VARCHAR, email_address VARCHAR, credit_card VARCHAR, city VARCHAR, state VARCHAR, "
    "date_time TIMESTAMP, extra VARCHAR",
    "auction": "id BIGINT, item_name VARCHAR, description VARCHAR, initial_bid BIGINT, reserve BIGINT, date_time TIMESTAMP, "
    "expires TIMESTAMP, seller BIGINT, category BIGINT, extra VARCHAR",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, date_time TIMESTAMP, extra VARCHAR",
    "side_input": "key BIGINT PRIMARY KEY, value VARCHAR",
}


@dataclass(frozen=True)
class Nexmark:
    """A query as RisingWave writes it, and DuckDB's words for it where they are others. `collapsed`: a query over both results, which are
    relations called `found`: where the result depends on the moment at which a row came."""

    sql: str
    duckdb: str = ""
    collapsed: str = ""


def _ranks(name: str, of: str) -> str:
    return ", ".join(
        f"count({of}) filter (where {condition}) AS rank{number}_{name}"
        for number, condition in enumerate(
            ["price < 10000", "price >= 10000 and price < 1000000", "price >= 1000000"], 1
        )
    )


_COUNTS = (
    f"count(*) AS total_bids, {_ranks('bids', '*')}, count(distinct bidder) AS total_bidders, {_ranks('bidders', 'distinct bidder')}, "
    f"count(distinct auction) AS total_auctions, {_ranks('auctions', 'distinct auction')}"
)
_BIDS = "A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires"
QUERIES = {
    "q0": Nexmark("SELECT auction, bidder, price, date_time FROM bid"),
    "q1": Nexmark("SELECT auction, bidder, 0.908 * price AS price, date_time FROM bid"),
    "q2": Nexmark(
        "SELECT auction, price FROM bid WHERE auction = 1007 OR auction = 1020 OR auction = 2001 OR auction = 2019 OR auction = 2087"
    ),
    "q3": Nexmark(
        "SELECT P.name, P.city, P.state, A.id FROM auction AS A INNER JOIN person AS P ON A.seller = P.id "
        "WHERE A.category = 10 AND (P.state = 'or' OR P.state = 'id' OR P.state = 'ca')"
    ),
    "q4": Nexmark(
        "SELECT Q.category, AVG(Q.final) AS avg FROM (SELECT MAX(B.price) AS final, A.category FROM auction A, bid B "
        f"WHERE {_BIDS} GROUP BY A.id, A.category) Q GROUP BY Q.category"
    ),
    "q5": Nexmark("""
        SELECT AuctionBids.auction, AuctionBids.num FROM (
          SELECT bid.auction, count(*) AS num, window_start AS starttime
          FROM HOP(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
          GROUP BY window_start, bid.auction
        ) AS AuctionBids
        JOIN (
          SELECT max(CountBids.num) AS maxn, CountBids.starttime_c FROM (
            SELECT count(*) AS num, window_start AS starttime_c
            FROM HOP(bid, date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
            GROUP BY bid.auction, window_start
          ) AS CountBids
          GROUP BY CountBids.starttime_c
        ) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime_c AND AuctionBids.num >= MaxBids.maxn
        """),
    "q6": Nexmark(f"""
        SELECT Q.seller, AVG(Q.final) OVER
            (PARTITION BY Q.seller ORDER BY Q.date_time ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS avg
        FROM (
          SELECT ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price) AS rank, A.seller, B.price AS final, B.date_time
          FROM auction AS A, bid AS B
          WHERE {_BIDS}
        ) AS Q
        WHERE Q.rank <= 1
        """),
    "q7": Nexmark("""
        SELECT B.auction, B.price, B.bidder, B.date_time
        FROM bid B
        JOIN (
          SELECT MAX(price) AS maxprice, window_end AS date_time
          FROM TUMBLE(bid, date_time, INTERVAL '10' SECOND)
          GROUP BY window_end
        ) B1 ON B.price = B1.maxprice
        WHERE B.date_time BETWEEN B1.date_time - INTERVAL '10' SECOND AND B1.date_time
        """),
    "q8": Nexmark("""
        SELECT P.id, P.name, P.starttime
        FROM (
          SELECT id, name, window_start AS starttime, window_end AS endtime
          FROM TUMBLE(person, date_time, INTERVAL '10' SECOND)
          GROUP BY id, name, window_start, window_end
        ) P
        JOIN (
          SELECT seller, window_start AS starttime, window_end AS endtime
          FROM TUMBLE(auction, date_time, INTERVAL '10' SECOND)
          GROUP BY seller, window_start, window_end
        ) A ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
        """),
    "q9": Nexmark(f"""
        SELECT id, item_name, description, initial_bid, reserve, date_time, expires, seller, category,
               auction, bidder, price, bid_date_time
        FROM (
          SELECT A.*, B.auction, B.bidder, B.price, B.date_time AS bid_date_time,
            ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time ASC) AS rownum
          FROM auction A, bid B
          WHERE {_BIDS}
        ) tmp
        WHERE rownum <= 1
        """),
    "q10": Nexmark(
        "SELECT auction, bidder, price, date_time, TO_CHAR(date_time, 'YYYY-MM-DD') AS date, TO_CHAR(date_time, 'HH:MI') AS time FROM bid"
    ),
    "q11": Nexmark(
        """
        SELECT B.bidder, count(*) AS bid_count,
          SESSION_START(B.date_time, INTERVAL '10' SECOND) AS starttime, SESSION_END(B.date_time, INTERVAL '10' SECOND) AS endtime
        FROM bid B
        GROUP BY B.bidder, SESSION(B.date_time, INTERVAL '10' SECOND)
        """,
        """
        SELECT bidder, count(*), min(date_time), max(date_time) + INTERVAL 10 SECOND FROM (
          SELECT *, sum(CAST(first AS INT)) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM (
            SELECT *, coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) > INTERVAL 10 SECOND, true)
              AS first FROM bid))
        GROUP BY bidder, session
        """,
    ),
    "q12": Nexmark(
        """
        SELECT B.bidder, count(*) AS bid_count,
          TUMBLE_START(B.p_time, INTERVAL '10' SECOND) AS starttime, TUMBLE_END(B.p_time, INTERVAL '10' SECOND) AS endtime
        FROM (SELECT *, PROCTIME() AS p_time FROM bid) B
        GROUP BY B.bidder, TUMBLE(B.p_time, INTERVAL '10' SECOND)
        """,
        "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
        "SELECT bidder, CAST(sum(bid_count) AS BIGINT) FROM found GROUP BY bidder",
    ),
    "q13": Nexmark(
        "SELECT B.auction, B.bidder, B.price, B.date_time, S.value FROM bid B "
        "JOIN side_input FOR SYSTEM_TIME AS OF PROCTIME() S ON mod(B.auction, 10000) = S.key",
        "SELECT B.auction, B.bidder, B.price, B.date_time, S.value FROM bid B JOIN side_input S ON mod(B.auction, 10000) = S.key",
    ),
    "q14": Nexmark("""
        SELECT auction, bidder, 0.908 * price AS price,
          CASE
            WHEN extract(hour from date_time) >= 8 AND extract(hour from date_time) <= 18 THEN 'dayTime'
            WHEN extract(hour from date_time) <= 6 OR extract(hour from date_time) >= 20 THEN 'nightTime'
            ELSE 'otherTime'
          END AS bidTimeType,
          date_time, extra
        FROM bid
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
        """),
    "q15": Nexmark(f"SELECT TO_CHAR(date_time, 'yyyy-MM-dd') AS day, {_COUNTS} FROM bid GROUP BY to_char(date_time, 'yyyy-MM-dd')"),
    "q16": Nexmark(
        f"SELECT channel, to_char(date_time, 'yyyy-MM-dd') AS day, max(to_char(date_time, 'HH:mm')) AS minute, {_COUNTS} FROM bid "
        "GROUP BY channel, to_char(date_time, 'yyyy-MM-dd')"
    ),
    "q17": Nexmark(
        f"SELECT auction, to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS total_bids, {_ranks('bids', '*')}, "
        "min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price "
        "FROM bid GROUP BY auction, to_char(date_time, 'YYYY-MM-DD')"
    ),
    "q18": Nexmark(
        "SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT *, ROW_NUMBER() OVER "
        "(PARTITION BY bidder, auction ORDER BY date_time DESC) AS rank_number FROM bid) WHERE rank_number <= 1"
    ),
    "q19": Nexmark(
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid) "
        "WHERE rank_number <= 10"
    ),
    "q20": Nexmark(
        "SELECT auction, bidder, price, channel, url, B.date_time AS date_timeB, item_name, description, initial_bid, reserve, "
        "A.date_time AS date_timeA, expires, seller, category FROM bid B INNER JOIN auction A ON B.auction = A.id WHERE A.category = 10"
    ),
    "q21": Nexmark(
        """
        SELECT auction, bidder, price, channel,
          CASE
            WHEN lower(channel) = 'apple' THEN '0'
            WHEN lower(channel) = 'google' THEN '1'
            WHEN lower(channel) = 'facebook' THEN '2'
            WHEN lower(channel) = 'baidu' THEN '3'
            ELSE REGEXP_MATCH(url, '(&|^)channel_id=([^&]*)')[2]
          END AS channel_id
        FROM bid
        WHERE REGEXP_MATCH(url, '(&|^)channel_id=([^&]*)')[2] IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
        """
    ),
    "q22": Nexmark(
        "SELECT auction, bidder, price, channel, SPLIT_PART(url, '/', 4) AS dir1, SPLIT_PART(url, '/', 5) AS dir2, "
        "SPLIT_PART(url, '/', 6) AS dir3 FROM bid"
    ),
}  # fmt: skip


def statements(names: list[str]) -> str:
    """The pipeline's file."""
    sources = [
        f"CREATE {'TABLE' if 'PRIMARY KEY' in columns else 'SOURCE'} {name} ({columns}) "
        f"{WITH.format('UPSERT' if 'PRIMARY KEY' in columns else 'PLAIN')};"
        for name, columns in COLUMNS.items()
    ]
    return "\n".join([*sources, *(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name].sql};" for name in names)])


def write_events(directory: Path, events: int, epochs: int) -> None:
    """A file of each source for each epoch. Times of bids and their prices are all different, so that no order has ties."""
    pick = np.random.default_rng(42)
    number = np.arange(events, dtype=np.int64)
    place = number % 50
    times = 1_700_000_000_000_000 + number * 9_973
    persons, auctions = number[place == 0], number[(place > 0) & (place < 4)]
    bids = number[place >= 4]
    people, lots = len(persons), len(auctions)
    text = np.array(["q", "wer", "asd fgh", "zxcv", "tyui"])
    frames = {
        "person": {
            "id": np.arange(people) + 1000,
            "name": np.char.add("name ", (np.arange(people) % 97).astype(str)),
            "email_address": np.char.add(np.arange(people).astype(str), "@example.com"),
            "credit_card": np.char.add("4000 ", (np.arange(people) % 9999).astype(str)),
            "city": pick.choice(["Phoenix", "Portland", "Boise", "Kent"], people),
            "state": pick.choice(["az", "or", "id", "ca", "wa"], people),
            "date_time": times[persons],
            "extra": pick.choice(text, people),
        },
        "auction": {
            "id": np.arange(lots) + 1000,
            "item_name": np.char.add("item ", (np.arange(lots) % 89).astype(str)),
            "description": pick.choice(text, lots),
            "initial_bid": pick.integers(1, 1000, lots),
            "reserve": pick.integers(1000, 5000, lots),
            "date_time": times[auctions],
            "expires": times[auctions] + pick.integers(1_000_000, 20_000_000, lots),
            "seller": np.minimum(auctions // 50, people - 1)
            - pick.integers(0, 20, lots) % np.maximum(auctions // 50, 1)
            + 1000,
            "category": pick.integers(10, 15, lots),
            "extra": pick.choice(text, lots),
        },
        "bid": _bids(pick, bids, times, lots, people),
        "side_input": {"key": np.arange(10_000), "value": np.char.add("value ", np.arange(10_000).astype(str))},
    }
    ends = {"person": persons, "auction": auctions, "bid": bids}
    for name, columns in frames.items():
        (directory / name).mkdir(parents=True)
        frame = pl.DataFrame(columns).with_row_index("rid").with_columns(pl.col("rid").cast(pl.String).str.zfill(12))
        frame = frame.with_columns(
            pl.col(column).cast(pl.Datetime("us", "UTC")) for column in ("date_time", "expires") if column in columns
        )
        for epoch in range(epochs):
            at = ends.get(name, np.zeros(len(frame), np.int64)) * epochs // events
            frame.filter(pl.Series(at == epoch)).write_parquet(directory / name / f"{epoch:05d}.parquet")
            time.sleep(0.01)  # files are taken by their time of change


def _bids(pick: Any, bids: Any, times: Any, lots: int, people: int) -> dict[str, Any]:
    count = len(bids)
    hot = np.minimum(bids * 3 // 50, lots - 1)
    channel = pick.choice(["Google", "Apple", "facebook", "Baidu", "channel-1", "channel-2"], count)
    third = count // 3 + 1
    prices = np.concatenate(
        [
            100 + pick.permutation(max(third, 9_000))[:third],
            20_000 + pick.permutation(max(third, 900_000))[:third] + max(third - 9_000, 0),
            2_000_000 + pick.permutation(max(count, 60_000_000))[: count - 2 * third] + max(third - 900_000, 0),
        ]
    )
    url = np.char.add("https://www.nexmark.com/a", (np.arange(count) % 13).astype(str))
    url = np.char.add(
        np.char.add(url, "/b/item.htm?query=1"), np.where(np.arange(count) % 3, "&channel_id=", "&other=")
    )
    return {
        "auction": hot - pick.integers(0, 60, count) % (hot + 1) + 1000,
        "bidder": pick.integers(0, max(people, 1), count) + 1000,
        "price": pick.permutation(prices),
        "channel": channel,
        "url": np.char.add(url, (np.arange(count) % 7).astype(str)),
        "date_time": times[bids],
        "extra": pick.choice(["abc", "ccc", "x y", ""], count),
    }


class EventFiles(ParquetFiles):
    """For each source a directory of files, one of them a micro-batch."""

    def stream(self, spark: Any, sources: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        from pyspark.sql import functions as F

        frames = []
        for name in sources:
            schema = spark.read.parquet(str(self.directory / name)).schema
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            frame = reader.parquet(str(self.directory / name))
            frames.append(frame.withColumn(SOURCE, F.lit(name)) if len(sources) > 1 else frame)
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)

    def decoded(self, raw: Any, source: Any, counted: Any = None) -> Any:
        columns = [column.name for column in source.columns]
        return raw.selectExpr(*columns, "cast(0 AS tinyint) AS _change", "rid AS _row_id")


def run(spark: Any, names: list[str], events: Path, place: Path, units: int) -> list[float]:
    """The seconds of each epoch of a pipeline with these views."""
    catalog = Catalog()
    for statement in parse(statements(names)):
        assert isinstance(statement, CreateSource | CreateView | CreateSink)
        catalog = catalog.create(statement)
    state, clock = StateFiles(str(place)), SystemClock()
    claimed = claim(state, clock, units)
    program, views = assemble(catalog, claimed.views, SparkTypes(spark))
    ends = [time.monotonic()]
    driver = Driver(spark, state, clock, program, EventFiles(events), on_epoch=lambda _: ends.append(time.monotonic()))
    driver.start(claimed, views)
    driver.run(once=True)
    driver.close()
    return [after - before for before, after in pairwise(ends)]


def oracle(events: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB over the same files, with the functions that it names otherwise."""
    found = duckdb.connect()
    found.execute("SET timezone = 'UTC'")
    for name in COLUMNS:
        times = [c for c in ("date_time", "expires") if f"{c} TIMESTAMP" in COLUMNS[name]]
        replaced = ", ".join(f"{column} AT TIME ZONE 'UTC' AS {column}" for column in times)
        replaced = f" REPLACE ({replaced})" if times else ""
        found.execute(f"CREATE VIEW {name} AS SELECT * EXCLUDE (rid){replaced} FROM '{events / name}/*.parquet'")
    found.execute(
        "CREATE MACRO to_char(t, f) AS CASE upper(f) WHEN 'YYYY-MM-DD' THEN strftime(t, '%Y-%m-%d') "
        "WHEN 'HH:MI' THEN strftime(t, '%I:%M') WHEN 'HH:MM' THEN strftime(t, '%I:%m') END"
    )
    found.execute(
        "CREATE MACRO regexp_match(s, p) AS CASE WHEN regexp_matches(s, p) THEN [regexp_extract(s, p, 1), regexp_extract(s, p, 2)] END"
    )
    return found


def in_duckdb(sql: str) -> str:
    """TUMBLE and HOP as what they mean."""

    def window(found: re.Match[str]) -> str:
        table, column, lengths = found[2], found[3], re.findall(r"INTERVAL '(\d+)' SECOND", found[4])
        slide, size = int(lengths[0]), int(lengths[-1])
        start = f"time_bucket(INTERVAL {slide} SECOND, {column}, TIMESTAMP '1970-01-01') - to_seconds({slide} * k)"
        return (
            f"(SELECT {table}.*, {start} AS window_start, {start} + to_seconds({size}) AS window_end "
            f"FROM {table}, range({size // slide}) AS windows(k)) AS {table}"
        )

    return re.sub(r"\b(TUMBLE|HOP)\((\w+), (\w+), ([^)]*)\)", window, sql)


def plain(value: Any) -> Any:
    """Numbers by their value, in twelve digits; times without a zone."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal):
        return f"{float(value):.12g}"
    return value.replace(tzinfo=None)


def differences(spark: Any, names: list[str], events: Path, place: Path) -> dict[str, str]:
    """By query: what its view has and DuckDB's answer has not, and the other way round."""
    asked, different = oracle(events), {}
    for name in names:
        query = QUERIES[name]
        view = spark.read.format("magnetar.view").options(pipeline=str(place), view=name, pin="false").load().toArrow()
        if query.collapsed:
            asked.register("found", view)
            ours = Counter(tuple(map(plain, row)) for row in asked.execute(query.collapsed).fetchall())
            asked.unregister("found")
        else:
            ours = Counter(tuple(map(plain, row.values())) for row in view.to_pylist())
        theirs = Counter(
            tuple(map(plain, row)) for row in asked.execute(query.duckdb or in_duckdb(query.sql)).fetchall()
        )
        if ours != theirs:
            one, other = ours - theirs, theirs - ours
            different[name] = (
                f"{one.total()} rows here only, as {next(iter(one), None)}; {other.total()} in DuckDB only, as {next(iter(other), None)}"
            )
        elif not ours:
            different[name] = "no rows at all: the events are too few"
    return different


def main(argv: list[str] | None = None, spark: Any = None) -> int:
    arguments = parse_arguments(argv)
    names = arguments.only.split(",") if arguments.only else list(QUERIES)
    work = Path(tempfile.mkdtemp(prefix="nexmark-", dir=arguments.directory))
    session = spark or build_session("local[*]", settings={"spark.driver.memory": "4g"})
    units = arguments.units or session.sparkContext.defaultParallelism
    try:
        write_events(work / "events", arguments.events, arguments.epochs)
        run(session, names, work / "events", work / "all", units)
        different = differences(session, names, work / "events", work / "all")
        rates: dict[str, float] = {}
        for name in [] if arguments.check_only else names:
            seconds = run(session, [name], work / "events", work / name, units)
            rates[name] = arguments.events / arguments.epochs / statistics.median(seconds[WARM_UP:] or seconds)
    finally:
        if spark is None:
            session.stop()
        shutil.rmtree(work)
    if arguments.json:
        print(json.dumps({"events": arguments.events, "different": different, "events_per_s": rates}))
    else:
        for name in names:
            rate = f"{rates[name]:12,.0f} events/s" if name in rates else ""
            print(f"{name:4} {'DIFFERS: ' + different[name] if name in different else 'equal'}{rate}")
    return 1 if different else 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--units", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--directory")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
