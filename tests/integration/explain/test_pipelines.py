"""Pipelines that report to a broker: what it then answers, the same as the directory, without rows; to whom; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pulsar
import pytest
import requests
from click.testing import CliRunner

from magnetar.admin.client import AdminClient
from magnetar.base.clock import SystemClock
from magnetar.broker.pipelines.report import PipelineReport
from magnetar.cli.main import cli
from magnetar.pipeline import explain_view
from magnetar.pipeline.connect.admin_rest import AdminRest
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.pipeline.views.control.listing import overview
from magnetar.pipeline.views.control.reporter import Reporter
from magnetar.pipeline.views.control.why import report_of_overview
from magnetar.testing.server import ServerProcess
from tests.integration.explain.conftest import Explainer
from tests.support.messages import send_all
from tests.support.stored_pipelines import COLUMNS, MINUTE_US, StoredPipeline
from tests.support.waiting import wait_until

BEHIND = {"a": 24 * MINUTE_US, "b": 9 * MINUTE_US}


@pytest.fixture
def stored(tmp_path: Path, topic: str) -> StoredPipeline:
    """Named after the test's topic: the server is the module's."""
    stored = StoredPipeline(tmp_path, topic.rpartition("/")[2], topics=(full(topic), full(f"{topic}-b")))
    stored.commit(BEHIND)
    return stored


def full(topic: str) -> str:
    return topic if "://" in topic else f"persistent://public/default/{topic}"


def report_of(stored: StoredPipeline) -> PipelineReport:
    return report_of_overview(overview(str(stored.directory), SystemClock()))


def test_the_broker_answers_as_the_directory_does_but_without_rows(
    explain: Explainer, server: ServerProcess, stored: StoredPipeline
) -> None:
    with AdminClient(server.http_url) as admin, stored.driven(lags={"a": 0, "b": 0}):
        assert admin.pipelines.report(stored.name, report_of(stored)).followed is False
        found = explain.ask("view", pipeline=stored.name, view="w")
        own = explain_view(str(stored.directory), "w").document()
        assert found["reasons"] == own["reasons"]
        assert found["reasons"][0]["code"] == "view-waits-for-watermark"
        assert found["verdict"] == own["verdict"]
        command = explain.command("view", "w", "--pipeline", stored.name, "--reported", as_json=True)
        assert json.loads(command)["reasons"] == own["reasons"]

        key = explain.ask("view", pipeline=stored.name, view="sums", key="k1", ifUnits=3)["details"]
        local = explain_view(str(stored.directory), "sums", ["k1"], 3).document()["details"]
        assert key["key"] == {"vnode": local["key"]["vnode"], "unit": local["key"]["unit"]}
        assert key["whatIf"] == local["whatIf"]
        assert admin.explain.view(stored.name, "sums", ["k=k1"]).details["key"] == key["key"]

        assert stored.name in [each.name for each in admin.pipelines.list()]
        assert admin.pipelines.get(stored.name).views["sums"].stages[0].keeps == "input rows"
        assert admin.pipelines.report(stored.name, report_of(stored)).followed is True, "somebody looked"
        admin.pipelines.forget(stored.name)
        assert stored.name not in [each.name for each in admin.pipelines.list()]


def test_a_key_of_a_topic_is_found_in_the_pipelines_that_read_it(
    explain: Explainer, server: ServerProcess, client: pulsar.Client, topic: str, stored: StoredPipeline
) -> None:
    send_all(client.create_producer(topic), [b"x"])
    place = explain_view(str(stored.directory), "sums", ["k1"]).document()["details"]["key"]
    asked = ["key", "k1", "--topic", topic]
    assert json.loads(explain.command(*asked, as_json=True))["details"]["pipelines"] == []
    local = json.loads(explain.command(*asked, "--pipeline", str(stored.directory), as_json=True))
    with AdminClient(server.http_url) as admin:
        admin.pipelines.report(stored.name, report_of(stored))
        rows = explain.ask("key", topic=topic, key="k1")["details"]["pipelines"]
        assert rows == local["details"]["pipelines"]
        assert (rows[0]["pipeline"], rows[0]["stage"]) == (stored.name, "sums/1-aggregate")
        assert (rows[0]["vnode"], rows[0]["unit"]) == (place["vnode"], place["unit"])
        both = json.loads(explain.command(*asked, "--pipeline", str(stored.directory), as_json=True))
        assert both["details"]["pipelines"] == rows, "each stage once"
        admin.pipelines.forget(stored.name)


def test_a_driver_reports_by_itself_and_says_last_how_it_ended(server: ServerProcess, stored: StoredPipeline) -> None:
    options = f"connector = 'pulsar', service.url = '{server.service_url}', admin.url = '{server.http_url}', topic = '{stored.topics[0]}'"
    source = parse_one(f"CREATE SOURCE a {COLUMNS} WITH ({options}) FORMAT PLAIN ENCODE JSON")
    assert isinstance(source, CreateSource)
    manifest = ManifestStore(StateFiles(str(stored.directory)), SystemClock()).latest()
    assert manifest is not None
    with AdminClient(server.http_url) as admin:

        def state() -> str:
            return next((each.state for each in admin.pipelines.list() if each.name == stored.name), "")

        with Reporter(stored.name, SystemClock(), lambda: stored.status) as reporter:
            reporter.attach({"a": source}, lambda: manifest)
            wait_until(lambda: state() == "running")
            stored.status.state = "stopped"
        assert state() == "stopped"
        admin.pipelines.forget(stored.name)


def test_what_a_broker_refuses(server: ServerProcess, stored: StoredPipeline) -> None:
    base = f"{server.http_url}/admin/v2"
    document = json.loads(json.dumps({"name": stored.name, "state": "running", "mapping": report_of(stored).mapping}))
    for name, change, status in (
        ("other", {}, 400),
        (stored.name, {"mapping": "{}"}, 400),
        (stored.name, {"views": 3}, 400),
        (stored.name, {"sources": {"a": {"positions": {"persistent://x": "1:1"}}}}, 412),
        (stored.name, {"error": "x" * 300_000}, 405),
    ):
        answer = requests.put(f"{base}/pipelines/{name}", json=document | change, timeout=60)
        assert answer.status_code == status, answer.text
    assert requests.get(f"{base}/pipelines/{stored.name}", timeout=60).status_code == 404
    assert requests.delete(f"{base}/pipelines/{stored.name}", timeout=60).status_code == 404
    assert AdminRest(Connection("", server.http_url)).report(stored.name, json.dumps(document).encode()) is False
    for query, status in (
        (f"pipeline={stored.name}", 400),
        ("pipeline=other&view=w", 404),
        (f"pipeline={stored.name}&view=w", 404),
        (f"pipeline={stored.name}&view=w&ifUnits=x", 400),
    ):
        assert requests.get(f"{base}/explain/view?{query}", timeout=60).status_code == status, query
    assert requests.delete(f"{base}/pipelines/{stored.name}", timeout=60).status_code == 204


def test_reported_needs_a_name() -> None:
    result = CliRunner().invoke(cli, ["explain", "view", "w", "--reported"])
    assert result.exit_code == 2
