"""A driver that is shot at: `-m tests.support.fault_driver DIRECTORY FILE`. A line of JSON in is a run, a line of JSON out its end.

In: `{}` (nobody is killed) or `{"point", "victim", "broker": pid, "fired": path}`. Out: `{"error": null or its class, "text"}`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import SparkContext

from magnetar.pipeline.session import build_session
from magnetar.pipeline.state import files
from magnetar.pipeline.views.control import driver
from magnetar.pipeline.views.epoch import epoch, stage_job
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.pipeline.views.sink import sinks
from tests.support import fault_points


def jvm_pid() -> int:
    gateway: Any = SparkContext._gateway
    return int(gateway.proc.pid)


def main() -> None:
    directory, file = sys.argv[1:]
    spark = build_session("local[2]")
    fault_points.install(SimpleNamespace(driver=driver, epoch=epoch, stage_job=stage_job, sinks=sinks, files=files))
    for line in sys.stdin:
        wanted = json.loads(line)
        fault_points.armed.clear()
        if wanted:
            pids = {"worker": (), "jvm": (jvm_pid(),), "driver": (os.getpid(),), "broker": (wanted["broker"],)}
            shot = fault_points.Shot(wanted["point"], pids[wanted["victim"]], jvm_pid(), wanted["fired"])
            fault_points.armed.append(shot)
        answer: dict[str, Any] = {"error": None, "text": ""}
        try:
            pipeline = Pipeline("p", directory, spark, units=2)
            pipeline.sql(Path(file).read_text())
            pipeline.run(once=True)
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)[:2000]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
