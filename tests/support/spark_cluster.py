"""A Spark master and a worker as processes of their own, from pyspark's own scripts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pyspark

from magnetar.pipeline.java import prepare_java
from tests.support.waiting import wait_until

START_TIMEOUT_S = 120.0
"""Two JVMs, on a machine that does other things as well."""


class SparkCluster:
    """`close` it. Executors see nothing of the tests' environment but what a driver gives them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        prepare_java(self._environment)
        self._environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        self.url = ""

    def start(self, cores: int = 2) -> SparkCluster:
        self._run("Master", "--port", "0", "--webui-port", "0")
        self.url = self._waits_for("Master", r"Starting Spark master at (spark://\S+)")
        self._run(
            *("Worker", "--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", "1g"),
            *("--work-dir", str(self.work), self.url),
        )
        self._waits_for("Worker", r"(Successfully registered) with master")
        return self

    @property
    def work(self) -> Path:
        """Where executors run and log."""
        return self._directory / "work"

    def logs(self) -> list[Path]:
        """Of master, worker and executors."""
        return [*self._directory.glob("*.log"), *self.work.rglob("std*")]

    def close(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            process.wait(30)

    def _run(self, name: str, *arguments: str) -> None:
        script = Path(self._environment["SPARK_HOME"]) / "bin" / "spark-class"
        command = [str(script), f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", "127.0.0.1", *arguments]
        with self._log(name).open("wb") as log:
            self._started.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, cwd=self._directory)
            )

    def _waits_for(self, name: str, pattern: str) -> str:
        def told() -> re.Match[str] | None:
            assert self._started[-1].poll() is None, self._log(name).read_text()
            return re.search(pattern, self._log(name).read_text())

        found = wait_until(told, START_TIMEOUT_S, f"the {name}")
        assert found is not None
        return found[1]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name.lower()}.log"
