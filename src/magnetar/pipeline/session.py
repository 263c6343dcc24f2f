"""A SparkSession with the settings that were measured to pay, on a Java that is found or comes from PyPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.base.errors import StartupError
from magnetar.pipeline.java import JAVA_OPTIONS, archive_options, prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS: Final = 3
"""Of a task on this machine, where Spark itself would try once: a Python worker that dies is then not the end of an epoch."""

EXTRA_HINT: Final = "Spark is not installed: pip install 'magnetar[spark]'"

SETTINGS: Final[dict[str, str]] = {
    # Loopback TCP adds about 40 ms to every round of Python tasks.
    "spark.python.unix.domain.socket.enabled": "true",
    # Task index and parallel unit must stay the same number.
    "spark.sql.adaptive.enabled": "false",
    # Else Spark adds up a batch's bytes before every row: a quarter of a job that hands all its rows to Python. Rows are the bound, as
    # they were before Spark counted bytes; a column of a batch may have 2 GiB, so 200 KiB a row.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Partial results are made behind the shuffle, in one step: Spark's faster map is for those before it unless told otherwise.
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
    "spark.sql.session.timeZone": "UTC",
    # Without it Spark refuses a Python source that takes filters (`magnetar.view` with pushdown=true).
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own patterns plus what Pulsar calls its credentials.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|auth-?params|authparams|private-?key",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|auth-?params|authparams|private-?key",
}

LOCAL_CHECKPOINTS: Final = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""An empty trigger takes 39 ms with it, 79 ms with Spark's default. For checkpoints on local disks only."""


def build_session(
    master: str = "local[2]",
    *,
    app_name: str = "magnetar",
    settings: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
    log_path: Path | None = None,
) -> SparkSession:
    """A session, or the running one of this process. `settings` are Spark's keys and win over those above. `local[N]` means
    `local[N, TASK_ATTEMPTS]`.

    `log_path`: where Spark's processes on this machine write what they would say on stdout and stderr.

    Raises StartupError, with the fix, when PySpark or a Java of version 17 is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise StartupError(EXTRA_HINT) from error
    faster = ""
    if SparkSession.getActiveSession() is None:
        java = prepare_java(os.environ)
        faster = archive_options(java) if master.startswith("local") else ""
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault(
                "SPARK_LOCAL_IP", "127.0.0.1"
            )  # nothing listens elsewhere, nor do executors of local-cluster
    chosen = {"spark.master": with_attempts(master), "spark.app.name": app_name, **SETTINGS}
    if master.startswith("local"):
        chosen[LOCAL_CHECKPOINTS[0]] = LOCAL_CHECKPOINTS[1]
        # A hash of every shuffled row, to find out whether output that was lost and made again is other: here none gets lost.
        # Either of the two has it computed.
        chosen["spark.sql.shuffle.orderIndependentChecksum.enabled"] = "false"
        chosen["spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"] = "false"
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.sql.shuffle.partitions"] = _threads(master)
    chosen |= dict(settings or {})
    if faster:
        chosen[JAVA_OPTIONS] = f"{chosen.get(JAVA_OPTIONS, '')} {faster}".strip()
    if log_path is not None:
        _start_logging_to(log_path, chosen)
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def _start_logging_to(log_path: Path, settings: Mapping[str, str]) -> None:
    """Start the JVM with a file for its output, unless it runs already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._active_spark_context is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        gateway = SparkContext._gateway or launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)


def classic(spark: SparkSession) -> SparkSession:
    """The session. StartupError for one of Spark Connect, which has no way to Spark's planner and tasks."""
    if hasattr(spark, "_jsparkSession"):
        return spark
    raise StartupError(
        "views are kept in a classic session, and this one is of Spark Connect: take magnetar.pipeline.session.build_session(), or leave "
        "`spark` out. What a pipeline keeps can be read by Spark Connect: spark.read.format('magnetar.view')"
    )


def with_attempts(master: str) -> str:
    """`local` and `local[N]` with retries of tasks; what says them itself, and other masters, as they are."""
    if master == "local":
        master = "local[1]"
    if not master.startswith("local[") or "," in master:
        return master
    return f"{master.rstrip(']')}, {TASK_ATTEMPTS}]"


def _threads(master: str) -> str:
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    return inside if inside.isdigit() else str(os.cpu_count() or 1)
