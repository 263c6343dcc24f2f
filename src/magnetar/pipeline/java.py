"""The Java that Spark runs on: found or from PyPI, started with an archive of the classes that Spark loads.

Java calls it an application class data archive (JEP 310 and 350): the JVM maps it into memory instead of reading, checking and linking
each class, which is half of the CPU time of starting Spark. It belongs to one build of Java and one class path, which its name holds; Java
ignores one that does not fit. Making it takes a start of Spark and a few seconds more, once for an installation:
`make_in_background` does it in a process of its own with the least priority, while the first pipeline runs.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from magnetar.base.clock import SystemClock
from magnetar.base.java import find_java
from magnetar.pipeline.home import DEFAULT_HOME, HOME_VARIABLE

VECTOR_MODULE: Final = "jdk.incubator.vector"

VARIABLE: Final = "MAGNETAR_CLASS_ARCHIVE"
"""The directory of archives instead of `$MAGNETAR_HOME/cache`, or `off`."""

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""What does not fit is said on stdout otherwise, as is each class that cannot be archived."""

LOWEST_PRIORITY: Final = 19
BEGINS_AFTER_S: Final = 30.0
"""In the background: until then a pipeline that has just started needs the cores for its first rows."""

UNUSED_S: Final = 60 * 86_400.0
"""An archive takes 160 MB: those that nothing was started with for so long go when another one is made."""

JVM_EXIT_TIMEOUT_S: Final = 300.0
"""For the JVM to write its archive when Spark has stopped; some seconds on a machine that has nothing else to do."""


def prepare_java(environment: os._Environ[str] | dict[str, str]) -> Path:
    """Set JAVA_HOME in `environment` to one that Spark runs on; returns its `java`."""
    java = find_java().resolve()
    home = java.parent.parent
    if lacks_vector_module(home):
        home = launcher_home(java)
    environment["JAVA_HOME"] = str(home)
    return java


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


def archive_path(java: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the archive for this Java and the PySpark that is installed lies or would lie; None when it is switched off or cannot be."""
    wanted = environment.get(VARIABLE, "")
    if wanted.lower() == "off":
        return None
    jars = _jars()
    if not jars:
        return None
    home = Path(environment.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser()
    directory = Path(wanted) if wanted else home / "cache"
    known = hashlib.sha256(str(java).encode())
    for path in (java, *jars):
        with suppress(OSError):
            stat = path.stat()
            known.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return directory / f"spark-classes-{known.hexdigest()[:16]}.jsa"


def archive_options(java: Path) -> str:
    """What the JVM is to be started with, empty without an archive."""
    path = archive_path(java)
    if path is None or not _is_plain(path) or not path.is_file():
        return ""
    with suppress(OSError):
        os.utime(path)  # it is in use
    return f"-XX:SharedArchiveFile={path} {QUIET}"


def make_in_background(java: Path) -> Path | None:
    """Begin to make the archive in BEGINS_AFTER_S, unless it is there or switched off. Where it will be, if this process makes it.

    It ends with this process at the latest, and leaves nothing of what is not finished then.
    """
    path = archive_path(java)
    if path is None or path.is_file() or not _is_plain(path):
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        making = subprocess.Popen(
            [sys.executable, "-m", "magnetar.pipeline.java", str(path), str(BEGINS_AFTER_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None  # a home that cannot be written to costs a slower start and nothing else
    atexit.register(_end, making, path)
    return path


def make(path: Path) -> None:
    """Start Spark, by the Java that JAVA_HOME names, run what most pipelines run, and keep the classes that took.

    OSError when the archive cannot be written, subprocess.TimeoutExpired when Java has not done so in JVM_EXIT_TIMEOUT_S.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    partial = _partial(path, os.getpid())
    try:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config(JAVA_OPTIONS, f"-XX:ArchiveClassesAtExit={partial} {QUIET}").getOrCreate()
        rows = spark.range(1000).selectExpr("id % 7 AS k", """'{"a": ' || id || '}' AS v""", "current_timestamp() AS t")
        rows = rows.selectExpr("k", "from_json(v, 'a BIGINT').a AS a", "t")
        rows.groupBy("k").agg({"a": "sum", "t": "max"}).collect()
        rows.repartition(2, "k").select("k").mapInArrow(lambda batches: batches, "k BIGINT").collect()
        spark.stop()
        java = _java()
        java.stdin.close()
        java.wait(JVM_EXIT_TIMEOUT_S)
        partial.replace(path)
        _remove_unused(path.parent)
    finally:
        if (java := _java()) is not None and java.poll() is None:
            java.kill()  # else it would write when this process has ended
            java.wait()
        partial.unlink(missing_ok=True)


def _java() -> Any:
    """Spark's, a child of this process; None before it has been started."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return None if gateway is None else gateway.proc


def _remove_unused(directory: Path) -> None:
    """Remove archives that nothing has been started with for UNUSED_S: their Java or PySpark is gone."""
    now_s = SystemClock().now_ms() / 1000
    for path in directory.glob("spark-classes-*.jsa"):
        with suppress(OSError):
            if now_s - path.stat().st_mtime > UNUSED_S:
                path.unlink()


def _partial(path: Path, process_id: int) -> Path:
    return path.with_suffix(f".{process_id}")


def _jars() -> list[Path]:
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        return []
    return sorted((Path(found.submodule_search_locations[0]) / "jars").glob("*.jar"))


def _is_plain(path: Path) -> bool:
    """Whether Spark's scripts hand the path on in one piece."""
    return not any(letter.isspace() or letter in "\"'\\" for letter in str(path))


def _end(process: subprocess.Popen[bytes], path: Path) -> None:
    """The JVM is in the process group of `process`. It is killed, since Java writes its archive when it is asked to end."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
            _partial(path, process.pid).unlink(missing_ok=True)


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


def main(arguments: Sequence[str]) -> None:
    """Make the archive at the path and after the seconds that are given, or else at once where it belongs, unless it is there."""
    os.nice(LOWEST_PRIORITY)
    time.sleep(float(arguments[1]) if len(arguments) > 1 else 0.0)
    path = Path(arguments[0]) if arguments else archive_path(prepare_java(os.environ))
    if path is not None and not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)


if __name__ == "__main__":
    main(sys.argv[1:])
