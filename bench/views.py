#!/usr/bin/env python3
"""A view with count, sum, min and max per key against Spark's own streaming aggregation, RocksDB and HDFS-backed, and its batch one.

  views.py [--rows N] [--keys N] [--epochs N] [--units N] [--rounds N] [--directory DIR] [--only NAME,...] [--json] [--check]

All read the same Parquet files, four an epoch (as a topic has partitions), and take turns. An epoch lasts from the end of the one before
to its own, as one may be planned while another runs; rows/s is by the median epoch of a run from the third on, and the median run counts.
State and checkpoints lie below `--directory`: a tmpfs leaves the disk out of it. Units, and with them the partitions of Spark's state
stores, are as many as cores unless told otherwise, which is what both do by themselves (`build_session`).
`batch` aggregates the files of each epoch on their own, without a state, and throws the groups away. Beside the rows/s stand the seconds of
a core that the JVM and the Python workers took for a million rows, which say something on a busy machine as well.
`--check` exits with 1 below 3 times the rows/s of RocksDB or 1.3 times those of the HDFS-backed store, and with 100,000 keys below
3,000,000 rows/s or those of `batch`.
For the figures of docs/explanation/pipelines.md:
`--rows 10000000 --keys 100000 --rounds 5 --check`, then `--keys 1000000 --rounds 2`; 4 and 5 minutes
on 2 cores. What is run first in a JVM has it compiled, at the expense of its first round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from magnetar.base.clock import SystemClock
from magnetar.pipeline.session import build_session
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.control.driver import Driver, claim
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.epoch.spark_steps import SparkTypes
from magnetar.pipeline.views.lowering.program import assemble

SQL = """
CREATE SOURCE s (k VARCHAR, v BIGINT)
  WITH (connector = 'pulsar', service.url = 'pulsar://none:1', topic = 't', on.decode.error = 'strict') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW m AS SELECT k, count(*) AS c, sum(v) AS s, min(v) AS lo, max(v) AS hi FROM s GROUP BY k;
"""
SCHEMA = "k string, v bigint"
WARM_UP = 2
FILES_PER_EPOCH = 4
"""One would be one map task for everybody, with the other cores idle."""
TARGETS = {"rocksdb": 3.0, "hdfs": 1.3}
"""Times as many rows/s, with 100,000 keys and with 1,000,000."""
ROWS_PER_S = 3_000_000
"""With 100,000 keys."""
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}


class ParquetFiles:
    """Stands where the topics do: a directory of files of one source, some of them a micro-batch. Another bench's rows: a subclass."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def positions(self, source: Any, known: Mapping[str, Any] | None) -> dict[str, Any]:
        return dict(known or {})

    def stream(self, spark: Any, sources: Mapping[str, Any], start: Mapping[str, Any]) -> Any:
        return read_files(spark, self.directory)

    def range(self, spark: Any, source: Any, start: Any, end: Any) -> Any:
        raise NotImplementedError("a bench begins with an empty pipeline")

    def native(self, source: Any, names: Mapping[str, str]) -> Any:
        return ParquetRows(dict(names))

    def decoded(self, raw: Any, source: Any, counted: Any = None) -> Any:
        return raw.selectExpr("k", "v", "cast(0 AS tinyint) AS _change", "'' AS _row_id")

    def dead_letters(self, raw: Any, source: Any) -> None:
        return None

    def tail(self, sources: Any) -> Any:
        return FilesTail(self.directory)

    def reading(self, source: Any) -> Any:
        raise NotImplementedError("there is no topic to read from")

    def acknowledge(self, source: Any, positions: Any) -> None:
        pass

    def lag(self, source: Any, positions: Any) -> None:
        return None

    def close(self) -> None:
        pass


class FilesTail:
    """The files of the directory as the end of a topic: some more of them an epoch. A position is a number of files."""

    is_silent = False

    def __init__(self, directory: Path) -> None:
        self._files = [str(path) for path in sorted(directory.glob("*.parquet"))]

    def stop_at_end(self) -> None:
        pass

    def ends(self, start: Mapping[str, Any]) -> dict[str, Any]:
        taken = start["s"].get("files", 0)
        return {"s": {"files": taken + FILES_PER_EPOCH}} if taken < len(self._files) else {}

    def ranges(self, name: str, start: Any, end: Any) -> list[str]:
        return self._files[(start or {}).get("files", 0) : end["files"]]

    pieces = ranges

    def entries(self, name: str, parts: Any) -> int:
        return sys.maxsize  # no epoch is one of few rows

    def wait(self, start: Any, timeout_s: float) -> None:
        pass

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class ParquetRows:
    """Reads files in the task, as messages of a topic are read there. `names`: by the aggregate's name the file's."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def grouped(self, parts: Any, partials: Any) -> Any:
        columns = ", ".join(f'"{old}" AS "{name}"' for name, old in self.names.items())
        yield partials.of_rows(f"SELECT {columns} FROM read_parquet({list(parts)})")


if __name__ != "__main__" and __name__ in sys.modules:  # tasks cannot import a bench
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


class FilesDriver(Driver):
    """Reads files where the pipeline's own reads topics."""

    def frame_of(self, name: str, pieces: Any) -> Any:
        return self._spark.read.schema(SCHEMA).parquet(*pieces)


def read_files(spark: Any, directory: Path) -> Any:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH).parquet(str(directory))


def write_input(spark: Any, directory: Path, rows: int, keys: int, epochs: int) -> None:
    """Uniform keys; the files of one epoch are as large as those of another."""
    each = rows // epochs
    for epoch in range(epochs):
        frame = spark.range(epoch * each, (epoch + 1) * each, 1, FILES_PER_EPOCH).selectExpr(
            f"concat('key-', pmod(hash(id, 17), {keys})) AS k", "id AS v"
        )
        frame.write.mode("overwrite").parquet(str(directory / "part"))
        (directory / "in").mkdir(exist_ok=True)
        for place, written in enumerate(sorted((directory / "part").glob("*.parquet"))):
            written.rename(directory / "in" / f"{epoch:05d}-{place}.parquet")
        time.sleep(0.01)  # files are taken by their time of change


def ours(spark: Any, files: Path, place: Path, units: int) -> tuple[list[float], list[EpochReport]]:
    """Seconds of each epoch, and what the driver says of it."""
    catalog = Catalog()
    for statement in parse(SQL):
        catalog = catalog.create(statement)  # type: ignore[arg-type]
    state, clock = StateFiles(str(place / "pipeline")), SystemClock()
    claimed = claim(state, clock, units)
    program, views = assemble(catalog, claimed.views, SparkTypes(spark))
    reports: list[EpochReport] = []
    ends = [time.monotonic()]

    def done(report: EpochReport) -> None:
        reports.append(report)
        ends.append(time.monotonic())

    driver = FilesDriver(spark, state, clock, program, ParquetFiles(files), on_epoch=done, low_latency=True)
    run_driver(driver, claimed, views)
    return between(ends), reports


def run_driver(driver: Driver, claimed: Any, views: Any) -> None:
    driver.start(claimed, views)
    driver.run(once=True)
    driver.close()


def spark_own(spark: Any, files: Path, place: Path, store: str) -> list[float]:
    spark.conf.set(STATE_STORE, PROVIDERS[store])
    spark.conf.unset("spark.sql.codegen.aggregate.map.twolevel.partialOnly")  # as Spark has it
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    found = read_files(spark, files).groupBy("k").agg(*aggregates())

    def run() -> None:
        writer = found.writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    return watched(spark, run)


def spark_batch(spark: Any, files: Path) -> list[float]:
    """Seconds for the files of each epoch."""
    seconds = []
    paths = sorted(str(path) for path in files.glob("*.parquet"))
    for first in range(0, len(paths), FILES_PER_EPOCH):
        began = time.monotonic()
        rows = spark.read.schema(SCHEMA).parquet(*paths[first : first + FILES_PER_EPOCH])
        rows.groupBy("k").agg(*aggregates()).write.format("noop").mode("overwrite").save()
        seconds.append(time.monotonic() - began)
    return seconds


def aggregates() -> list[Any]:
    from pyspark.sql import functions as F

    return [F.count("*").alias("c"), F.sum("v").alias("s"), F.min("v").alias("lo"), F.max("v").alias("hi")]


def watched(spark: Any, run: Callable[[], None]) -> list[float]:
    """Runs a query of Spark's own; the seconds of its batches with rows."""
    from pyspark.sql.streaming import StreamingQueryListener

    ends: list[float] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            if event.progress.numInputRows:
                began = datetime.fromisoformat(event.progress.timestamp).timestamp()
                ends[:] = ends or [began]
                ends.append(began + event.progress.durationMs["triggerExecution"] / 1000)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            done.append(True)

    done: list[bool] = []
    listener = Listener()
    spark.streams.addListener(listener)
    run()
    deadline = time.monotonic() + 30
    while not done and time.monotonic() < deadline:
        time.sleep(0.05)
    spark.streams.removeListener(listener)
    return between(ends)


def between(ends: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(ends)]


def rows_per_s(seconds: list[float], rows: int) -> float:
    counted = seconds[WARM_UP:] or seconds
    return rows / statistics.median(counted)


def main() -> int:
    arguments = parse_arguments()
    names = arguments.only.split(",")
    work = Path(tempfile.mkdtemp(prefix="views-", dir=arguments.directory))
    spark = build_session(arguments.master, settings={"spark.driver.memory": "6g"})
    arguments.units = arguments.units or spark.sparkContext.defaultParallelism
    spark.conf.set("spark.sql.shuffle.partitions", arguments.units)
    figures: dict[str, list[float]] = {name: [] for name in names}
    core_s: dict[str, list[float]] = {name: [] for name in names}
    phases: dict[str, float] = {}
    try:
        write_input(spark, work, arguments.rows, arguments.keys, arguments.epochs)
        each = arguments.rows // arguments.epochs
        warm_up(spark, names, work, arguments.units)
        for turn in range(arguments.rounds):
            for name in names:
                before_s = used_core_s()
                seconds, reports = run_one(spark, name, work / "in", work / f"{name}-{turn}", arguments.units)
                core_s[name].append((used_core_s() - before_s) / (len(seconds) * each) * 1e6)
                phases = median_phases(reports) if reports else phases
                figures[name].append(rows_per_s(seconds, each))
                cost = f"{core_s[name][-1]:.2f} core-seconds a million"
                print(
                    f"{name:9} {figures[name][-1]:>12,.0f} rows/s   {cost}   epochs {rounded(seconds)}", file=sys.stderr
                )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return report(arguments, figures, core_s, phases)


def used_core_s() -> float:
    """Of this process and all that it has started, the JVM and its workers among them, since they began."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        used[number] = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    todo, found = [os.getpid()], 0.0
    while todo:
        number = todo.pop()
        todo += children.get(number, [])
        found += used.get(number, 0.0)
    return found


def run_one(spark: Any, name: str, files: Path, place: Path, units: int) -> tuple[list[float], list[EpochReport]]:
    """Seconds of each epoch, and what a view's driver says of them."""
    place.mkdir()
    try:
        if name == "batch":
            return spark_batch(spark, files), []
        return ours(spark, files, place, units) if name == "magnetar" else (spark_own(spark, files, place, name), [])
    finally:
        shutil.rmtree(place, ignore_errors=True)  # a state store of Spark's may be writing a snapshot still


def warm_up(spark: Any, names: list[str], work: Path, units: int) -> None:
    """Everybody's first epochs once, uncounted: the JVM compiles what all of them run, at the expense of who is first."""
    some = work / "some"
    some.mkdir()
    for path in sorted((work / "in").iterdir())[: WARM_UP * FILES_PER_EPOCH]:
        (some / path.name).hardlink_to(path)
    for name in names:
        run_one(spark, name, some, work / f"{name}-warm", units)


def median_phases(reports: list[EpochReport]) -> dict[str, float]:
    counted = reports[WARM_UP:] or reports
    names = counted[0].duration_s if counted else {}
    return {name: round(statistics.median(each.duration_s.get(name, 0.0) for each in counted), 3) for name in names}


def rounded(seconds: list[float]) -> str:
    return " ".join(f"{each:.2f}" for each in seconds)


def report(
    arguments: argparse.Namespace,
    figures: dict[str, list[float]],
    core_s: dict[str, list[float]],
    phases: dict[str, float],
) -> int:
    medians = {name: statistics.median(found) for name, found in figures.items()}
    cost = {name: round(statistics.median(found), 2) for name, found in core_s.items()}
    mine = medians.get("magnetar", 0.0)
    ratios = {name: mine / value for name, value in medians.items() if name != "magnetar"}
    document = {
        "rows": arguments.rows,
        "keys": arguments.keys,
        "rows_per_s": medians,
        "core_s_per_million": cost,
        "times": ratios,
        "phases_s": phases,
    }
    if arguments.json:
        print(json.dumps(document))
    else:
        print(f"{arguments.rows:,} rows, {arguments.keys:,} keys, {arguments.epochs} epochs, {arguments.units} units")
        for name, value in medians.items():
            against = f"   magnetar is {ratios[name]:.2f} times as fast" if name in ratios else f"   {phases}"
            print(f"{name:9} {value:>12,.0f} rows/s   {cost[name]:.2f} core-seconds a million{against}")
    return int(arguments.check and not reaches(arguments.keys, mine, ratios))


def reaches(keys: int, mine: float, ratios: Mapping[str, float]) -> bool:
    """Whether the goals are met, as far as their contenders ran."""
    if keys == 100_000 and (mine < ROWS_PER_S or ratios.get("batch", 1.0) < 1.0):
        return False
    return all(ratios.get(name, least) >= least for name, least in TARGETS.items())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--units", type=int, help="Spark's cores if not given")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--only", default="magnetar,rocksdb,hdfs,batch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
