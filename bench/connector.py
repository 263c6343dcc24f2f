#!/usr/bin/env python3
"""Topic to DataFrame, measured in one run against a loop over the official client and against the same rows in Parquet.

  connector.py [--rows N] [--rounds N] [--size BYTES] [--dir DIR] [--json] [--check]

Contenders take turns; the median counts, in rows a second of wall clock. Beside it stands the CPU time a row of the broker, of Spark's
JVM and of Python (the loop, or Spark's workers; too little where one of them ended), which other work on the machine disturbs less.
`--check` exits with 1 when a target is missed. All rows are random bytes with a short key, in batches of the client's own size; Spark
runs on two cores and throws its rows away (`noop`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
from pyspark.sql import SparkSession

from magnetar.pipeline.connect.reading.columns import schema_for
from magnetar.pipeline.session import build_session
from magnetar.testing.server import ServerProcess

TOPIC = "persistent://public/default/rows"
OVER_CLIENT_LOOP = 2.5
OF_PARQUET = 0.5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """CPU time so far, in seconds."""

    broker: float
    jvm: float
    python: float

    def since(self, before: Cpu) -> Cpu:
        return Cpu(*(now - then for now, then in zip(self, before, strict=True)))


def cpu(server: ServerProcess) -> Cpu:
    """Of this process and all below it. A worker that has ended counts with its parent."""
    found: dict[int, tuple[int, str, list[int]]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                name, _, rest = (each / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:  # it has just ended
                continue
            fields = rest.split()
            found[int(each.name)] = int(fields[1]), name, [int(field) for field in fields[11:15]]
    broker, jvm, python = 0, 0, 0
    for pid, (_, name, ticks) in found.items():
        parents = [pid]
        while parents[-1] in found:
            parents.append(found[parents[-1]][0])
        if os.getpid() not in parents:
            continue
        if server.pid in parents:
            broker += sum(ticks[:2])
        elif name == "java":
            jvm += sum(ticks[:2])
        else:
            python += sum(ticks[:2] if pid == os.getpid() else ticks)
    return Cpu(broker / TICKS_PER_S, jvm / TICKS_PER_S, python / TICKS_PER_S)


def fill(client: pulsar.Client, topic: str, rows: int, size_bytes: int) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=20, block_if_queue_full=True
    )
    failed: list[Any] = []
    for number in range(rows):
        sent = lambda result, _id: failed.append(result) if result != pulsar.Result.Ok else None  # noqa: E731
        producer.send_async(os.urandom(size_bytes), sent, partition_key=str(number % 1000))
    producer.flush()
    producer.close()
    assert not failed, failed[0]


def loop(client: pulsar.Client, topic: str, rows: int) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
    for _ in range(rows):
        reader.read_next().data()
    reader.close()


def measure(
    spark: SparkSession, server: ServerProcess, topic: str, rows: int, rounds: int, size_bytes: int, directory: Path
) -> list[dict[str, Any]]:
    """Lines of the table. `topic` does not exist yet; `directory` is for the Parquet files."""
    client = pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        fill(client, topic, rows, size_bytes)
        options = {"service.url": server.service_url, "admin.url": server.http_url, "topic": topic}
        source = spark.read.format("magnetar").options(**options, minPartitions="2")
        whole = spark.read.format("magnetar").options(**options)
        frames = {
            "value": source.schema(schema_for(["value"])).load(),
            "value, one task": whole.schema(schema_for(["value"])).load(),
            "all columns": spark.read.format("magnetar").options(**options, minPartitions="2").load(),
        }
        assert frames["value"].count() == rows
        frames["all columns"].write.parquet(str(directory / "parquet"))
        frames["Parquet, all columns"] = spark.read.parquet(str(directory / "parquet"))
        work: dict[str, Callable[[], None]] = {"client loop": lambda: loop(client, topic, rows)}
        for name, frame in frames.items():
            work[name] = lambda frame=frame: frame.write.format("noop").mode("overwrite").save()
        times: dict[str, list[float]] = {name: [] for name in work}
        used: dict[str, list[Cpu]] = {name: [] for name in work}
        for _ in range(rounds + 1):
            for name, run in work.items():
                before, begun = cpu(server), time.perf_counter()
                run()
                times[name].append(time.perf_counter() - begun)
                used[name].append(cpu(server).since(before))
    finally:
        client.close()
    rates = {name: rows / statistics.median(found[1:]) for name, found in times.items()}  # the first round warms up
    targets = {"value": OVER_CLIENT_LOOP, "all columns": OF_PARQUET}
    lines: list[dict[str, Any]] = []
    for name, rate in rates.items():
        beside = "Parquet, all columns" if name == "all columns" else "client loop"
        took = Cpu(*(statistics.median(part) for part in zip(*used[name][1:], strict=True)))
        lines.append(
            {
                "name": name,
                "rows_per_s": round(rate),
                "ratio": round(rate / rates[beside], 2),
                "beside": beside,
                "target": targets.get(name),
                "cpu_us_a_row": {part: round(each / rows * 1e6, 2) for part, each in took._asdict().items()},
            }
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--dir", help="Where the server's and the Parquet files lie meanwhile, such as /dev/shm.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        server = ServerProcess(Path(directory) / "data").start()
        spark = build_session("local[2]")
        try:
            lines = measure(spark, server, TOPIC, arguments.rows, arguments.rounds, arguments.size, Path(directory))
        finally:
            spark.stop()
            server.close()
    if arguments.json:
        print(json.dumps(lines))
    else:
        for each in lines:
            target = f" (target {each['target']})" if each["target"] else ""
            parts = ", ".join(f"{part} {took:.2f}" for part, took in each["cpu_us_a_row"].items())
            total = sum(each["cpu_us_a_row"].values())
            print(
                f"{each['name']:22} {each['rows_per_s']:>10,} rows/s  {each['ratio']:.2f} of {each['beside']}{target}; "
                f"CPU us a row {total:.2f}: {parts}"
            )
    missed = [each for each in lines if each["target"] and each["ratio"] < each["target"]]
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
