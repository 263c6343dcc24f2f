"""Pipelines and the connector on Spark's own clusters, as a user runs them there, with a token that nothing may show."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyspark
import pytest

import magnetar
from magnetar.testing.server import ServerProcess
from tests.support.spark_cluster import SparkCluster
from tests.support.tokens import AUDIENCE, SECRET, token
from tests.support.topics import drain, produce

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

RUN_TIMEOUT_S = 500.0
"""Spark with two executors, each a JVM with its Python workers, on a machine that does other things as well."""
ROWS = 300
SOURCE = str(Path(magnetar.__file__).parents[1])

SQL = """
CREATE SOURCE flights (carrier VARCHAR, delay BIGINT) WITH (connector = 'pulsar', topic = 'flights', startingOffsets = 'earliest',
  pulsar.client.authPluginClassName = 'AuthenticationToken', pulsar.client.authParams = 'token:{token}')
  FORMAT PLAIN ENCODE JSON;
CREATE MATERIALIZED VIEW delays AS SELECT carrier, count(*) AS n, sum(delay) AS total FROM flights GROUP BY carrier;
CREATE SINK changes FROM delays WITH (connector = 'pulsar', topic = 'changes',
  pulsar.client.authPluginClassName = 'AuthenticationToken', pulsar.client.authParams = 'token:{token}')
  FORMAT UPSERT ENCODE JSON;
"""

READER = """
import json, sys, urllib.request
from magnetar.pipeline.session import build_session

given = json.loads(sys.stdin.read())
spark = build_session(given["master"], settings=given["settings"] | {"spark.ui.enabled": "true", "spark.ui.port": "0"})
view = spark.read.format("magnetar.view").option("pipeline", "flights").option("view", "delays").load()
topic = spark.read.format("magnetar").options(**given["options"]).load()
rows = topic.selectExpr("from_json(cast(value AS string), 'carrier string, delay bigint') f").selectExpr("f.carrier", "f.delay")
rows.createOrReplaceTempView("rows")
again = spark.sql("SELECT carrier, count(*) n, sum(delay) total FROM rows GROUP BY carrier")
shown = [again._jdf.queryExecution().toString(), repr(topic), topic._jdf.queryExecution().explainString(
    spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted"))]
found = {"view": [row.asDict() for row in view.collect()], "topic": [row.asDict() for row in again.collect()]}
web, name = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
pages = [f"/api/v1/applications/{name}/{page}" for page in ("environment", "jobs", "stages", "allexecutors", "sql?details=true")]
for page in [*pages, "/environment/", "/SQL/", "/SQL/execution/?id=0", "/SQL/execution/?id=1", "/jobs/", "/executors/"]:
    with urllib.request.urlopen(web + page, timeout=30) as answer:
        shown.append(answer.read().decode())
found["shown"] = shown
found["executors"] = len(json.loads(shown[3 + pages.index(pages[3])]))
spark.stop()
print(json.dumps(found))
"""


@pytest.fixture
def credential() -> str:
    return token("pipelines")


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server(
        authenticationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey="data:;base64," + base64.b64encode(SECRET).decode(),
        tokenAudience=AUDIENCE,
        tokenAudienceClaim="aud",
        # The pipeline acknowledges all of the topic, and it is read again afterwards, on a slow machine minutes later.
        defaultRetentionTimeInMinutes=60,
        defaultRetentionSizeInMB=-1,
    )


@pytest.fixture(params=["local[2]", "local-cluster[2,1,1024]", "spark://"])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, list[Path]]]:
    """(its address, where executors keep their logs)."""
    if request.param == "spark://":
        (tmp_path / "cluster").mkdir()
        cluster = SparkCluster(tmp_path / "cluster")
        try:
            yield cluster.start().url, [tmp_path / "cluster"]
        finally:
            cluster.close()
        return
    if request.param == "local[2]":
        yield request.param, []
        return
    work = Path(pyspark.__file__).parent / "work"  # of the workers that Spark starts within the driver
    before = set(work.glob("app-*"))
    logs: list[Path] = [work]
    yield request.param, logs
    for directory in set(work.glob("app-*")) - before:
        shutil.rmtree(directory)
    if work.exists() and not any(work.iterdir()):
        work.rmdir()


def test_a_pipeline_and_its_tables_on_a_cluster(
    master: tuple[str, list[Path]],
    server: ServerProcess,
    connect: Callable[..., pulsar.Client],
    credential: str,
    tmp_path: Path,
) -> None:
    url, logs = master
    client = connect(server.service_url, authentication=pulsar.AuthenticationToken(credential))
    produce(
        client,
        "flights",
        [json.dumps({"carrier": f"C{number % 5}", "delay": number}).encode() for number in range(ROWS)],
    )
    home, events = tmp_path / "home", tmp_path / "events"
    home.mkdir()
    events.mkdir()
    file = tmp_path / "flights.sql"
    file.write_text(SQL.format(token=credential))
    # The package lies beside the cluster, not in its Python: a user who does not install it on all machines says where it is.
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executorEnv.PYTHONPATH": SOURCE,
    }
    run = runner(tmp_path, os.environ | {"MAGNETAR_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"})
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    addresses = ["--service-url", server.service_url, "--admin-url", server.http_url]
    lines = run(
        "-m", "magnetar", "pipeline", "run", str(file), "--once", "--master", url, "--json", *addresses, *options
    )
    assert sum(json.loads(line)["rows_in"] for line in lines.splitlines()) == ROWS

    auth = {
        "pulsar.client.authPluginClassName": "AuthenticationToken",
        "pulsar.client.authParams": f"token:{credential}",
    }
    reading = {"service.url": server.service_url, "topic": "flights"} | auth
    asked = {"master": url, "settings": settings, "options": reading}
    found: dict[str, Any] = json.loads(run("-c", READER, given=json.dumps(asked)).splitlines()[-1])
    expected = [
        {"carrier": f"C{rest}", "n": len(range(rest, ROWS, 5)), "total": sum(range(rest, ROWS, 5))} for rest in range(5)
    ]
    assert sorted(found["view"], key=lambda row: row["carrier"]) == expected
    assert sorted(found["topic"], key=lambda row: row["carrier"]) == expected
    latest = {
        each.partition_key(): json.loads(each.data()) for each in drain(client, "persistent://public/default/changes")
    }
    assert latest == {row["carrier"]: row for row in expected}

    assert "magnetar" in found["shown"][0]
    assert not [text[:200] for text in found["shown"] if hides_not(text, credential)]
    written = [path for place in (home, events, *logs) for path in place.rglob("*") if path.is_file()]
    written += [server.log_path, *tmp_path.glob("*.said")]
    names = [str(path) for path in written]
    assert any(name.startswith(str(events)) for name in names)
    assert not logs or any(name.endswith("/stderr") for name in names), "an executor's log is among them"
    assert not [str(path) for path in written if hides_not(path.read_bytes().decode(errors="replace"), credential)]


def runner(directory: Path, environment: dict[str, str]) -> Callable[..., str]:
    """`run(*arguments, given="")`: Python with these arguments; its stdout. What it says lies in the directory as `*.said`."""

    def run(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            input=given,
            capture_output=True,
            text=True,
            env=environment,
            timeout=RUN_TIMEOUT_S,
            cwd=directory,
        )
        (directory / f"{len(list(directory.glob('*.said')))}.said").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def hides_not(text: str, credential: str) -> bool:
    """Whether any part of a token that is a secret is in a text."""
    return any(part in text for part in credential.split(".")[1:])
