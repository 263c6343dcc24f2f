"""`magnetar pipeline` against a real server: run, look, query, rescale, kill and go on, stop; each command a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psycopg
import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.waiting import wait_until

EPOCH_TIMEOUT_S = 200.0
"""A JVM, its Python workers and two epochs, on a machine that does other things as well."""

SQL = """
CREATE SOURCE flights (carrier VARCHAR, delay BIGINT)
WITH (connector = 'pulsar', topic = '{topic}', startingOffsets = 'earliest') FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW delays AS SELECT carrier, count(*) AS n, sum(delay) AS total FROM flights GROUP BY carrier;
CREATE MATERIALIZED VIEW worst AS SELECT carrier, delay FROM flights WHERE delay >= 298;
"""
SCRIPT = """
from magnetar.pipeline import Pipeline
pipeline = Pipeline("flights")
pipeline.sql(open({file!r}).read())
if __name__ == "__main__":
    raise SystemExit("the command runs it, not the script")
"""


class Commands:
    """Of one home, one server and one file."""

    def __init__(self, home: Path, server: ServerProcess, topic: str) -> None:
        self.home = home
        self.file = home / "flights.sql"
        self.file.write_text(SQL.format(topic=topic))
        self.addresses = ["--service-url", server.service_url, "--admin-url", server.http_url]
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *args: str, code: int = 0) -> str:
        done = subprocess.run(
            self._command(*args), capture_output=True, text=True, env=self._environment(), timeout=EPOCH_TIMEOUT_S
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def status(self) -> dict[str, Any]:
        path = self.home / "pipelines/flights/status.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def drive(self, *args: str) -> subprocess.Popen[str]:
        errors: IO[str] = (self.home / "run.err").open("a")
        with errors, (self.home / "run.out").open("a") as out:
            command = self._command("run", str(self.file), *self.addresses, "--json", *args)
            self.started.append(
                subprocess.Popen(command, stdout=out, stderr=errors, text=True, env=self._environment())
            )
        return self.started[-1]

    def epochs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / "run.out").read_text().splitlines()]

    def wait_for_rows(self, rows: int, driver: subprocess.Popen[str]) -> None:
        def read() -> bool:
            assert driver.poll() is None, (self.home / "run.err").read_text()
            return sum(epoch["rows_in"] for epoch in self.epochs()) >= rows

        wait_until(read, EPOCH_TIMEOUT_S, f"{rows} rows")

    def _command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "magnetar", "pipeline", *args]

    def _environment(self) -> dict[str, str]:
        return os.environ | {"MAGNETAR_HOME": str(self.home)}


@pytest.fixture
def commands(tmp_path: Path, server: ServerProcess, topic: str) -> Iterator[Commands]:
    commands = Commands(tmp_path, server, topic)
    yield commands
    for process in commands.started:
        if process.poll() is None:
            process.kill()
            process.wait()


def send(client: pulsar.Client, topic: str, numbers: range) -> None:
    producer = client.create_producer(topic, batching_enabled=True)
    for number in numbers:
        producer.send_async(json.dumps({"carrier": f"C{number % 5}", "delay": number}).encode(), None)
    producer.flush()
    producer.close()


def expected(total: int) -> list[dict[str, Any]]:
    return [
        {"carrier": f"C{rest}", "n": len(range(rest, total, 5)), "total": sum(range(rest, total, 5))}
        for rest in range(5)
    ]


@pytest.mark.long
def test_run_look_rescale_kill_go_on_stop(commands: Commands, client: pulsar.Client, topic: str) -> None:
    send(client, topic, range(200))
    driver = commands.drive("--units", "2", "--metrics-port", "0", "--serve", "0", "--ui")
    commands.wait_for_rows(200, driver)
    remarks = (commands.home / "run.err").read_text()
    metrics = remarks.rpartition("metrics: ")[2].split()[0]
    with urllib.request.urlopen(metrics, timeout=60) as answer:
        assert 'magnetar_pipeline_rows_total{pipeline="flights"} 200.0' in answer.read().decode()
    wait_until(lambda: commands.status()["lag_messages"] == 0, 60)
    status = json.loads(commands("status", "--json"))
    assert (status["state"], status["units"], status["rows"]) == ("running", 2, 200)
    assert status["views"]["delays"]["changes"] == 5

    wait_until(lambda: "views: " in (commands.home / "run.err").read_text(), 60)
    url = (commands.home / "run.err").read_text().rpartition("views: ")[2].split()[0]
    with psycopg.connect(url, user="me", autocommit=True) as connection:
        found = connection.execute("SELECT * FROM delays ORDER BY carrier").fetchall()
        assert found == [tuple(row.values()) for row in expected(200)]

    refused = commands("run", str(commands.file), *commands.addresses, code=1)
    assert f"process {driver.pid} already; stop it with: magnetar pipeline stop flights" in refused

    moved = json.loads(commands("rescale", "--units", "3", "--json", "--timeout", str(EPOCH_TIMEOUT_S)))
    assert moved["vnodes_moved"] == 85
    assert "300 units for 256 vnodes" in commands("rescale", "--units", "300", code=1)

    driver.kill()
    driver.wait()
    commands("status", code=1)
    assert commands.status()["state"] == "running", "what it wrote last"
    assert json.loads(commands("list", "--json"))[0]["state"] == "killed"

    send(client, topic, range(200, 300))
    driver = commands.drive()
    commands.wait_for_rows(300, driver)
    assert commands.status()["units"] == 3
    query = ["query", "SELECT * FROM delays ORDER BY carrier", "--json"]
    assert json.loads(commands(*query)) == expected(300)
    worst = [{"carrier": "C3", "delay": 298}, {"carrier": "C4", "delay": 299}]
    assert json.loads(commands("query", "SELECT * FROM worst ORDER BY delay", "--json")) == worst, (
        "without the row's id"
    )

    driver.send_signal(signal.SIGINT)
    assert driver.wait(60) == 0
    assert commands.status()["state"] == "stopped"
    assert "flights stopped at epoch" in (commands.home / "run.err").read_text()


@pytest.mark.long
def test_a_script_runs_once_and_a_running_one_is_stopped(
    commands: Commands, client: pulsar.Client, topic: str, server: ServerProcess
) -> None:
    text = SQL.format(topic=topic).replace("topic =", f"service.url = '{server.service_url}', topic =")
    commands.file.write_text(text)
    script = commands.home / "mine.py"
    script.write_text(SCRIPT.format(file=str(commands.file)))
    send(client, topic, range(50))
    lines = commands("run", str(script), "--once", "--json").splitlines()
    assert sum(json.loads(line)["rows_in"] for line in lines) == 50
    assert "says name, directory and addresses itself" in commands("run", str(script), "--name", "x", code=1)

    driver = commands.drive()
    wait_until(lambda: commands.status().get("state") == "running", EPOCH_TIMEOUT_S)
    answer = json.loads(commands("stop", "--json", "--timeout", str(EPOCH_TIMEOUT_S)))
    assert answer["stopped"] is True
    assert driver.wait(60) == 0
    commands("drop", "flights", "--yes")
    assert json.loads(commands("list", "--json")) == []


def test_what_cannot_run_says_why(commands: Commands) -> None:
    assert "such file" in commands("run", str(commands.home / "none.sql"), code=1)
    bad = commands.home / "bad.sql"
    bad.write_text(commands.file.read_text() + "\nCREATE MATERIALIZED VIEW w AS SELECT * FROM delays LIMIT 0;")
    refused = commands("run", str(bad), "--service-url", "pulsar://localhost:1", code=1)
    down = commands("run", str(commands.file), "--service-url", "pulsar://localhost:1", code=1)
    assert "pulsar://localhost:1 refuses connections" in down
    assert "line 7" in refused
    script = commands.home / "broken.py"
    script.write_text("x = 1\nraise ValueError('of mine')\n")
    assert "broken.py:2: ValueError: of mine" in commands("run", str(script), code=1)
    script.write_text("x = 1\n")
    assert "makes 0 pipelines" in commands("run", str(script), code=1)
    assert "expected KEY=VALUE" in commands("run", str(commands.file), "--conf", "x=1", code=1)
    assert json.loads(commands("list", "--json")) == [], "nothing of it left a directory"
