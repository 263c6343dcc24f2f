#!/usr/bin/env python3
"""What an epoch costs and how large the state is while a view grows by 10 and by 100 times; beside it Spark's RocksDB state store.

  views_growth.py [--keys N,N,N] [--rows N] [--epochs N] [--units N] [--only NAME,...] [--directory DIR] [--json] [--plot FILE]

For each number of keys one epoch brings every key once, then `--epochs` epochs bring `--rows` rows each, of keys chosen evenly. Counted are
the epochs behind the first and its successor (which warms up): the median, the slowest, and what lies on disk in the end. For magnetar
those are the runs that the manifest names; for Spark everything below the checkpoint's `state` (it keeps 100 batches).
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

from magnetar.pipeline.session import build_session
from views import FILES_PER_EPOCH, ours, spark_own

WARM_UP = 2
Line = dict[str, Any]


def write_input(spark: Any, directory: Path, keys: int, rows: int, epochs: int) -> None:
    """All keys once, then the epochs; files are taken by their time of change."""
    target = directory / "in"
    target.mkdir(parents=True)
    for epoch in range(epochs + 1):
        key = "id" if epoch == 0 else f"pmod(hash(id, {epoch}), {keys})"
        count = keys if epoch == 0 else rows
        frame = spark.range(0, count, 1, FILES_PER_EPOCH).selectExpr(f"concat('key-', {key}) AS k", "id AS v")
        frame.write.mode("overwrite").parquet(str(directory / "part"))
        for place, written in enumerate(sorted((directory / "part").glob("*.parquet"))):
            written.rename(target / f"{epoch:05d}-{place}.parquet")
        time.sleep(0.01)


def measure(spark: Any, name: str, source: Path, place: Path, units: int) -> tuple[list[float], int]:
    """Seconds of each epoch, bytes of state after the last one."""
    if name == "magnetar":
        seconds, reports = ours(spark, source, place, units)
        return seconds, reports[-1].state_bytes
    seconds = spark_own(spark, source, place, name)
    return seconds, sum(path.stat().st_size for path in (place / "checkpoint" / "state").rglob("*") if path.is_file())


def line(name: str, keys: int, seconds: list[float], state_bytes: int) -> Line:
    counted = seconds[WARM_UP:] or seconds
    return {
        "name": name,
        "keys": keys,
        "epoch_s": round(statistics.median(counted), 3),
        "slowest_s": round(max(counted), 3),
        "state_bytes": state_bytes,
        "bytes_per_key": round(state_bytes / keys, 1),
    }


def plot(path: Path, lines: list[Line]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "magnetar", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, (times, sizes) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name in dict.fromkeys(each["name"] for each in lines):
        mine = [each for each in lines if each["name"] == name]
        keys = [each["keys"] for each in mine]
        (drawn,) = times.plot(keys, [each["epoch_s"] for each in mine], marker="o", label=f"{name}, median epoch")
        slowest = [each["slowest_s"] for each in mine]
        times.plot(keys, slowest, marker=".", linestyle=":", color=drawn.get_color(), label=f"{name}, slowest")
        sizes.plot(keys, [each["state_bytes"] / 1e6 for each in mine], marker="o", color=drawn.get_color(), label=name)
    for axes, title, unit in ((times, "an epoch", "seconds"), (sizes, "state", "MB")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("keys")
        axes.set_ylabel(unit)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    options = parse_arguments()
    work = Path(tempfile.mkdtemp(prefix="views-growth-", dir=options.directory))
    settings = {"spark.sql.shuffle.partitions": str(options.units), "spark.driver.memory": "6g"}
    spark = build_session(options.master, settings=settings)
    lines: list[Line] = []
    try:
        for keys in [int(text) for text in options.keys.split(",")]:
            source = work / str(keys)
            write_input(spark, source, keys, options.rows, options.epochs)
            for name in options.only.split(","):
                place = work / f"{name}-{keys}"
                place.mkdir()
                lines.append(line(name, keys, *measure(spark, name, source / "in", place, options.units)))
                shutil.rmtree(place, ignore_errors=True)  # as in views.py
                print(json.dumps(lines[-1]), file=sys.stderr)
            shutil.rmtree(source)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.plot:
        plot(options.plot, lines)
    if options.json:
        print(json.dumps(lines))
    else:
        for each in lines:
            print(
                f"{each['name']:9} {each['keys']:>9,} keys   epoch {each['epoch_s']:.2f} s, slowest {each['slowest_s']:.2f} s   "
                f"state {each['state_bytes'] / 1e6:.1f} MB, {each['bytes_per_key']:.0f} bytes a key"
            )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="10000,100000,1000000")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--units", type=int, default=4)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--only", default="magnetar,rocksdb")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
