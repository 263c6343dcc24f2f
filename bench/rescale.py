#!/usr/bin/env python3
"""From 4 to 5 units: a view's rescale against what Spark offers for its own stateful queries.

  rescale.py [--keys N] [--rows N] [--units N] [--before N] [--only view|all] [--directory DIR] [--json]

Both keep count, sum, min and max per key over the same Parquet files, four an epoch (a row a key unless `--rows` says more). The view's
number of units is changed while it runs, in the epoch behind the first `--before` (units merge in every fourth one), and once more alone,
without rows; beside it a run of the same epochs without a change. A streaming query of Spark keeps the number of state
partitions it began with, so it is stopped, its checkpoint repartitioned offline (RocksDB only, since Spark 4.3), and started again; or
everything is read again from the beginning with a new checkpoint.
For the issue's figures: `--keys 100000` and `--keys 1000000`; one and three minutes on 2 cores.
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
from pathlib import Path
from typing import Any

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping, diff
from magnetar.pipeline.session import build_session
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.views.control.driver import Driver, claim
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.epoch.spark_steps import SparkTypes
from magnetar.pipeline.views.lowering.program import assemble
from views import (
    FILES_PER_EPOCH,
    PROVIDERS,
    SQL,
    STATE_STORE,
    ParquetFiles,
    aggregates,
    read_files,
    watched,
    write_input,
)

BEFORE = 6
"""Epochs before the change; the first two warm up, and units merge in the fifth and the ninth."""
AFTER = 3


class View:
    """The pipeline of `views.py` in a directory."""

    def __init__(self, spark: Any, place: Path, units: int) -> None:
        self._spark = spark
        self._units = units
        self._files = StateFiles(str(place))
        self._catalog = Catalog()
        for statement in parse(SQL):
            self._catalog = self._catalog.create(statement)  # type: ignore[arg-type]

    @property
    def manifest(self) -> Manifest:
        found = ManifestStore(self._files, SystemClock()).latest()
        assert found is not None
        return found

    def run(self, files: Path, at: int, units: int) -> list[EpochReport]:
        """All files; `units` are asked for early enough to be there behind the first `at` epochs of this run, and a planned one."""
        claimed = claim(self._files, SystemClock(), self._units)
        program, views = assemble(self._catalog, claimed.views, SparkTypes(self._spark))
        reports: list[EpochReport] = []

        def on_epoch(report: EpochReport) -> None:
            reports.append(report)
            if len(reports) == at - 1:  # the next is planned by now, as there are more files
                driver.rescale(units)

        driver = Driver(self._spark, self._files, SystemClock(), program, ParquetFiles(files), on_epoch=on_epoch)
        driver.start(claimed, views)
        if at == 0:
            driver.rescale(units)
        driver.run(once=True)
        driver.close()
        return reports


def view(spark: Any, work: Path, units: int, epochs_before: int) -> dict[str, Any]:
    place, nothing = work / "view", work / "nothing"
    nothing.mkdir()
    steady = View(spark, work / "steady", units).run(work / "in", epochs_before, units)
    site = View(spark, place, units)
    reports = site.run(work / "in", epochs_before, units + 1)
    seconds = [report.duration_s["total"] for report in reports]
    changed = next(place for place, report in enumerate(reports) if report.vnodes_moved)
    moved = reports[changed]
    site.run(nothing, 0, units)
    before = site.manifest
    (alone,) = site.run(nothing, 0, units + 1)
    after = site.manifest
    moves = diff(VnodeMapping.from_json(before.mapping), VnodeMapping.from_json(after.mapping))
    written = sum(os.path.getsize(place / path) for path in after.run_paths() - before.run_paths())
    return {
        "vnodes_moved": moved.vnodes_moved,
        "state_bytes": after_bytes(after),
        "bytes_rewritten": written,
        "pause_with_rows_s": moved.pause_s,
        "pause_alone_s": alone.pause_s,
        "keys_moved": len(moves) / VnodeMapping.from_json(after.mapping).vnodes,
        "epoch_of_change": changed + 1,
        "epoch_before_s": statistics.median(seconds[2:changed]),
        "epoch_with_change_s": seconds[changed],
        "epoch_after_s": seconds[changed + 1],
        "same_epochs_without_change_s": [each.duration_s["total"] for each in steady[changed - 1 :]],
        "epochs_s": seconds[changed - 1 :],
        "phases_with_change_s": dict(moved.duration_s),
        "phases_without_change_s": dict(steady[changed].duration_s),
    }


def after_bytes(manifest: Manifest) -> int:
    return sum(run.size_bytes for state in manifest.tables.values() for run in state.runs)


def spark_own(spark: Any, work: Path, units: int, epochs_before: int) -> dict[str, Any]:
    files, checkpoint = work / "spark-in", work / "checkpoint"
    files.mkdir()
    every = sorted((work / "in").iterdir())
    give(every[: epochs_before * FILES_PER_EPOCH], files)
    steady = query(spark, files, checkpoint)
    before = size(checkpoint)
    began = time.monotonic()
    spark._streamingCheckpointManager.repartition(str(checkpoint), units + 1)
    repartitioned = time.monotonic() - began
    written = size(checkpoint) - before
    give(every[epochs_before * FILES_PER_EPOCH :], files)
    began = time.monotonic()
    resumed = query(spark, files, checkpoint)
    restart = time.monotonic() - began - sum(resumed[1:])
    spark.conf.set("spark.sql.shuffle.partitions", str(units + 1))
    began = time.monotonic()
    query(spark, files, work / "checkpoint-anew")
    return {
        "checkpoint_bytes": before,
        "bytes_written": written,
        "repartition_s": repartitioned,
        "restart_to_first_batch_s": restart,
        "batch_before_s": statistics.median(steady[2:]),
        "first_batch_after_s": resumed[0],
        "anew_s": time.monotonic() - began,
    }


def give(found: list[Path], to: Path) -> None:
    for file in found:
        os.link(file, to / file.name)


def query(spark: Any, files: Path, checkpoint: Path) -> list[float]:
    """Seconds of each batch."""
    grouped = read_files(spark, files).groupBy("k").agg(*aggregates())

    def run() -> None:
        writer = grouped.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    return watched(spark, run)


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main() -> int:
    arguments = parse_arguments()
    rows = arguments.rows or arguments.keys
    epochs = arguments.before + AFTER
    settings = {"spark.sql.shuffle.partitions": str(arguments.units), "spark.driver.memory": "6g"}
    spark = build_session(arguments.master, settings=settings)
    spark.conf.set(STATE_STORE, PROVIDERS["rocksdb"])
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    work = Path(tempfile.mkdtemp(prefix="rescale-", dir=arguments.directory))
    try:
        write_input(spark, work, rows * epochs, arguments.keys, epochs)
        ours = view(spark, work, arguments.units, arguments.before)
        theirs = spark_own(spark, work, arguments.units, arguments.before) if arguments.only == "all" else {}
    finally:
        shutil.rmtree(work, ignore_errors=True)
    document = {"keys": arguments.keys, "rows_per_epoch": rows, "units": arguments.units, "view": ours, "spark": theirs}
    if arguments.json:
        print(json.dumps(document))
        return 0
    print(f"{arguments.keys:,} keys, {rows:,} rows an epoch, {arguments.units} -> {arguments.units + 1} units")
    for name, figures in (("magnetar", ours), ("spark", theirs)):
        for figure, value in figures.items():
            print(f"{name:9} {figure:28} {shown(value):>14}")
    return 0


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=0, help="of an epoch")
    parser.add_argument("--units", type=int, default=4)
    parser.add_argument("--before", type=int, default=BEFORE, help="epochs before the change")
    parser.add_argument("--only", choices=("view", "all"), default="all")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
