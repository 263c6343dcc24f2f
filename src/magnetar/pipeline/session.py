"""A SparkSession with the settings that were measured to pay, on a Java that is found or comes from PyPI."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.base.errors import StartupError
from magnetar.base.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS: Final = 3
"""Of a task on this machine, where Spark itself would try once: a Python worker that dies is then not the end of an epoch."""

EXTRA_HINT: Final = "Spark is not installed: pip install 'magnetar[spark]'"
VECTOR_MODULE: Final = "jdk.incubator.vector"

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
    if SparkSession.getActiveSession() is None:
        prepare_java(os.environ)
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


def prepare_java(environment: os._Environ[str] | dict[str, str]) -> Path:
    """Set JAVA_HOME in `environment` to a Java that Spark runs on; returns it."""
    java = find_java().resolve()
    home = java.parent.parent
    if lacks_vector_module(home):
        home = launcher_home(java)
    environment["JAVA_HOME"] = str(home)
    return home


def lacks_vector_module(home: Path) -> bool:
    """Whether a runtime says that it has no vector module, which Spark's scripts ask for and Spark does without."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return False
    modules = [line for line in text.splitlines() if line.startswith("MODULES=")]
    return bool(modules) and VECTOR_MODULE not in modules[0]


def launcher_home(java: Path) -> Path:
    """A directory to be JAVA_HOME, whose `bin/java` is `java` without the flag for the vector module. Goes with this process."""
    home = Path(tempfile.mkdtemp(prefix="magnetar-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(_LAUNCHER.format(module=VECTOR_MODULE, java=str(java).replace("'", "'\\''")), encoding="utf-8")
    script.chmod(0o755)
    return home


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


_LAUNCHER: Final = """#!/bin/sh
# Rotates the arguments once and leaves out the one for {module}.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
  count=$((count - 1))
done
exec '{java}' "$@"
"""
