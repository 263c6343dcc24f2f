#!/usr/bin/env python3
"""A project of Spark Declarative Pipelines: 1 % new rows taken in by kept views, beside Spark's full refresh of the same.

  declarative.py [--rows N] [--keys N] [--new FRACTION] [--rounds N] [--directory DIR] [--json] [--check]

Rows lie in Parquet files. Each round adds a file with the given part of new rows, refreshes each view of the project by itself, and times
Spark's own way: the query over all files, written as Parquet, with adaptive execution. Both in one session, after a round that does not
count. The rows have to be the same at the end. `--check` ends with 1 when a view is not 20 times faster.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from magnetar.pipeline.declarative.project import load_project
from magnetar.pipeline.declarative.run import Run
from magnetar.pipeline.session import build_session

TARGET = 20.0
VIEWS = {
    "totals": "SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most FROM events GROUP BY k",
    "means": "SELECT k % 1000 AS g, sum(v) / count(*) AS mean FROM events WHERE v > 10 GROUP BY k % 1000 HAVING count(*) > 1",
    "chosen": "SELECT k, v * 2 AS twice FROM events WHERE v % 10 = 0",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--new", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    root = Path(tempfile.mkdtemp(prefix="magnetar-declarative-", dir=given.directory))
    spark = build_session("local[2]", settings={"spark.sql.adaptive.enabled": "true"})
    try:
        found = measure(spark, root, given)
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{given.rows:,} rows, {given.keys:,} keys, {given.new:.1%} new; medians of {given.rounds} in seconds")
        for name, each in found.items():
            print(f"{name:10} kept {each['kept_s']:7.2f}   full {each['full_s']:7.2f}   {each['times']:6.1f} times")
    return 1 if given.check and any(each["times"] < TARGET for each in found.values()) else 0


def measure(spark: Any, root: Path, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    data, files = root / "events", 8
    add(spark, data, "first", 0, given.rows, given.keys, files)
    (root / "transformations").mkdir()
    statements = [f"CREATE MATERIALIZED VIEW {name} AS {query};" for name, query in VIEWS.items()]
    (root / "transformations" / "views.sql").write_text("\n".join(statements))
    (root / "transformations" / "events.py").write_text(
        "from pyspark import pipelines as dp\n\n\n@dp.temporary_view\ndef events():\n"
        f"    return spark.read.option('recursiveFileLookup', 'true').schema('k bigint, v bigint').parquet('{data}')\n"
    )
    spec = root / "spark-pipeline.yml"
    spec.write_text(
        f"name: bench\nstorage: file://{root}/storage\ndatabase: bench\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    project = load_project(spec)
    Run(spark, project).run()
    kept: dict[str, list[float]] = {name: [] for name in VIEWS}
    full: dict[str, list[float]] = {name: [] for name in VIEWS}
    new = max(round(given.rows * given.new), 1)
    for number in range(given.rounds + 1):
        add(spark, data, f"new-{number}", given.rows + number * new, new, given.keys, 1)
        for each in Run(spark, project).run():
            kept[each.name].append(each.duration_s)
        for name, query in VIEWS.items():
            began = time.perf_counter()
            spark.sql(query).write.mode("overwrite").parquet(str(root / "full" / name))
            full[name].append(time.perf_counter() - began)
    for name, query in VIEWS.items():
        expected, found = spark.sql(query), spark.table(f"bench.{name}")
        if expected.exceptAll(found).count() or found.exceptAll(expected).count():
            sys.exit(f"{name}: the kept rows are not those of the query")
    return {
        name: {
            "kept_s": (ours := statistics.median(kept[name][1:])),
            "full_s": (theirs := statistics.median(full[name][1:])),
            "times": theirs / ours,
        }
        for name in VIEWS
    }


def add(spark: Any, data: Path, name: str, first: int, count: int, keys: int, files: int) -> None:
    rows = spark.range(first, first + count, 1, files).selectExpr(f"pmod(xxhash64(id), {keys}) AS k", "id % 1000 AS v")
    rows.write.parquet(str(data / name))


if __name__ == "__main__":
    sys.exit(main())
