#!/usr/bin/env python3
"""Nexmark's queries in Apache Flink and as views, over the same files in turns on one machine.

  FLINK_JARS=DIR nexmark_flink.py [--events N] [--epochs N] [--rounds N] [--only q0,q1] [--state hashmap|rocksdb] [--dir DIR] [--json]

DIR holds Flink's jars with its SQL client, flink-parquet, and Hadoop's classes, which that needs (bench/README.md says where to get them);
Java 17. Flink runs as its SQL client runs it, in one process with two slots, in streaming mode, with mini-batches of 2 s or 50,000 rows as
in its own Nexmark benchmark, and a checkpoint to disk every 10 s. Its sink takes rows and drops them. Each query runs `--rounds` times and
once before that to warm up, in one process; its time is that of the whole job from its submission, of the best run. magnetar's side is
nexmark.py: events/s by the median epoch behind the first two, with its views kept and readable. The queries are those that both write in
nearly the same words; Flink gets its own for windows. Rows are not compared here: nexmark.py does that. Ends with 1 when a side fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nexmark
from magnetar.pipeline.session import build_session

COLUMNS = nexmark.COLUMNS | {"side_input": "key BIGINT, value VARCHAR"}
TYPES = {"VARCHAR": "STRING", "TIMESTAMP": "TIMESTAMP(3)"}
WINDOWED = "window_start, window_end"
_COUNTS = (
    "SELECT auction, count(*) AS num, window_start, window_end FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, "
    f"INTERVAL '10' SECOND)) GROUP BY auction, {WINDOWED}"
)
_TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"
FLINK = {
    "q5": f"SELECT A.auction, A.num FROM ({_COUNTS}) A JOIN (SELECT max(num) AS maxn, {WINDOWED} FROM ({_COUNTS}) GROUP BY {WINDOWED}) M "
    "ON A.window_start = M.window_start AND A.window_end = M.window_end AND A.num >= M.maxn",
    "q7": "SELECT B.auction, B.price, B.bidder, B.date_time FROM bid B JOIN (SELECT max(price) AS maxprice, window_end AS ends FROM "
    f"{_TUMBLE.format('bid')} GROUP BY {WINDOWED}) M ON B.price = M.maxprice "
    "WHERE B.date_time BETWEEN M.ends - INTERVAL '10' SECOND AND M.ends",
    "q8": f"SELECT P.id, P.name, P.window_start FROM (SELECT id, name, {WINDOWED} FROM {_TUMBLE.format('person')} "
    f"GROUP BY id, name, {WINDOWED}) P "
    f"JOIN (SELECT seller, {WINDOWED} FROM {_TUMBLE.format('auction')} GROUP BY seller, {WINDOWED}) A "
    "ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end",
    "q17": nexmark.QUERIES["q17"].sql.replace(
        "to_char(date_time, 'YYYY-MM-DD')", "date_format(date_time, 'yyyy-MM-dd')"
    ),
}
"""Flink's words for the queries that it writes otherwise."""
SAME = ("q0", "q1", "q2", "q3", "q4", "q9", "q18", "q19", "q20", "q22")
WORDS = {
    "SPLIT_PART(": "SPLIT_INDEX(",
    " AS final": " AS last_price",
    "Q.final": "Q.last_price",
    " AS avg": " AS average",
    " AS day": " AS `day`",
}
"""What Flink names otherwise, or keeps for itself."""
NAMES = sorted({*FLINK, *SAME}, key=lambda name: int(name[1:]))

SETTINGS = {
    "execution.target": "local",
    "execution.runtime-mode": "streaming",
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "table.dml-sync": "true",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "execution.checkpointing.interval": "10s",
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",  # else a job that is done waits for the next one
}
OPENED = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.time",
    "java.base/java.nio",
    "java.base/java.net",
    "java.base/sun.nio.ch",
)
JAVA = ["java", "-Xmx3g", "-XX:+IgnoreUnrecognizedVMOptions", *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENED)]
DONE = "Complete execution of the SQL update statement"


def flink_types(columns: str) -> str:
    kept = columns.replace(" PRIMARY KEY", "")
    for ours, theirs in TYPES.items():
        kept = kept.replace(f" {ours}", f" {theirs}")
    return ", ".join(f"`{name}` {kind}" for name, kind in (column.split() for column in kept.split(", ")))


def script(name: str, events: Path, place: Path, state: str, runs: int) -> str:
    """What the SQL client reads: settings, sources, and the same job `runs` times."""
    settings = SETTINGS | {"state.backend.type": state, "execution.checkpointing.dir": f"file://{place}/checkpoints"}
    lines = [f"SET '{key}' = '{value}';" for key, value in settings.items()]
    for source, columns in COLUMNS.items():
        watermark = ", WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND" if "date_time" in columns else ""
        lines.append(
            f"CREATE TABLE {source} ({flink_types(columns)}{watermark}) "
            f"WITH ('connector' = 'filesystem', 'path' = 'file://{events / source}', 'format' = 'parquet');"
        )
    query = FLINK.get(name) or nexmark.QUERIES[name].sql
    for word, instead in WORDS.items():
        query = query.replace(word, instead)
    lines.append(f"CREATE TEMPORARY VIEW found AS {' '.join(query.split())};")
    lines += [
        f"CREATE TABLE dropped{run} WITH ('connector' = 'blackhole') AS SELECT * FROM found;" for run in range(runs)
    ]
    return "\n".join(lines)


def in_flink(jars: Path, name: str, events: Path, place: Path, state: str, runs: int) -> list[float]:
    """Seconds of each run. Raises SystemExit when Flink refuses the query."""
    place.mkdir(parents=True)
    (place / "conf").mkdir()
    (place / "conf" / "config.yaml").write_text("taskmanager.numberOfTaskSlots: 2\n")
    (place / "query.sql").write_text(script(name, events, place, state, runs))
    command = [
        *JAVA,
        "-cp",
        f"{place / 'conf'}:{jars}/*",
        "org.apache.flink.table.client.SqlClient",
        "embedded",
        "-f",
        str(place / "query.sql"),
    ]
    environment = os.environ | {"FLINK_CONF_DIR": str(place / "conf")}
    times, log = [], []
    with (
        (place / "errors").open("w") as errors,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=place,
        ) as process,
    ):
        assert process.stdout
        since = time.perf_counter()
        for line in process.stdout:
            log.append(line)
            if DONE in line:  # each statement begins when the one before it has ended
                times.append(time.perf_counter() - since)
                since = time.perf_counter()
    if len(times) != runs:
        raise SystemExit(f"Flink did not run {name}:\n{''.join(log)[-3000:]}\n{(place / 'errors').read_text()[-1000:]}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--units", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="runs of Flink that count")
    parser.add_argument("--only", help=f"some of {','.join(NAMES)}")
    parser.add_argument(
        "--state", choices=["hashmap", "rocksdb"], default="hashmap", help="where Flink keeps its state"
    )
    parser.add_argument("--dir", help="where files go; the default is the system's temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    jars = os.environ.get("FLINK_JARS")
    if not jars or not list(Path(jars).glob("flink-sql-client*.jar")):
        parser.error(
            "FLINK_JARS must name a directory with Flink's jars, its SQL client among them; bench/README.md says where to get them"
        )
    names = options.only.split(",") if options.only else NAMES
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"{', '.join(unknown)}: choose among {', '.join(NAMES)}")
    folder = Path(tempfile.mkdtemp(prefix="nexmark-", dir=options.dir))
    results: dict[str, dict[str, float]] = {}
    try:
        nexmark.write_events(folder / "events", options.events, options.epochs)
        spark = build_session("local[2]", settings={"spark.driver.memory": "4g"})
        each = options.events / options.epochs
        for name in names:
            seconds = nexmark.run(spark, [name], folder / "events", folder / f"views-{name}", options.units)
            ours = each / statistics.median(seconds[nexmark.WARM_UP :])
            times = in_flink(
                Path(jars), name, folder / "events", folder / f"flink-{name}", options.state, options.rounds + 1
            )
            theirs = options.events / min(times[1:])
            results[name] = {"magnetar": ours, "flink": theirs, "ratio": ours / theirs}
            if not options.json:
                print(
                    f"{name}: magnetar {ours:,.0f}, Flink {theirs:,.0f} events/s, ratio {ours / theirs:.2f}", flush=True
                )
        if options.json:
            json.dump(results, sys.stdout)
            print()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
