"""The console's pages of pipelines and regions, as a browser without scripts sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.console.pages.pipelines import graph_of, state_of
from magnetar.admin.console.pictures import graph, lanes
from magnetar.base.clock import SystemClock
from magnetar.base.ports import free_ports
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.views.control.listing import overview
from magnetar.pipeline.views.control.why import report_of_overview
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.integration.admin.test_console import HOSTILE, Elements, Pages
from tests.support.messages import send_all
from tests.support.stored_pipelines import MINUTE_US, StoredPipeline
from tests.support.waiting import wait_until


@pytest.fixture
def pages(server: ServerProcess) -> Iterator[Pages]:
    found = Pages(server)
    yield found
    found.session.close()


@pytest.fixture
def reported(server: ServerProcess, tmp_path: Path) -> Iterator[AdminClient]:
    stored = StoredPipeline(tmp_path, "flights")
    stored.commit({"a": 24 * MINUTE_US, "b": 9 * MINUTE_US})
    stages = {"sums/1-aggregate": {"rows": 40, "last": 4, "rows_per_s": 12.0}}
    with AdminClient(server.http_url) as admin, stored.driven(lags={"a": 3, "b": 0}, lag_messages=3, stages=stages):
        admin.pipelines.report("flights", report_of_overview(overview(str(stored.directory), SystemClock())))
        yield admin
        admin.pipelines.forget("flights")


def test_pipelines_with_their_stages_and_units(pages: Pages, reported: AdminClient) -> None:
    listed = pages.text("/console/pipelines")
    assert "flights" in listed
    assert "running" in listed
    page = pages.get("/console/pipelines/flights").text
    text = Elements(page).text
    assert "The driver is running" in text
    assert "3 behind" in text
    assert "12 rows/s" in text
    assert "unit 0: 128" in text
    assert "RecomputeGroups" in text
    assert 'href="/console/explain/view?pipeline=flights&amp;view=w"' in page
    assert page.count('class="edge"') == 5, "two sources into three feeds, two stages into their views"
    answer = pages.text("/console/explain/view?pipeline=flights&view=w")
    assert "close when the watermark of b reaches their end" in answer
    assert "whatIf.vnodesMoved" in pages.text("/console/explain/view?pipeline=flights&view=sums&ifUnits=3")
    pages.get("/console/pipelines/other", 404)
    pages.get("/console/explain/view?pipeline=flights&view=other", 404)


def test_live_parts_come_again(pages: Pages, reported: AdminClient) -> None:
    for path in (
        "/console/pipelines",
        "/console/pipelines/flights",
        "/console/topics/persistent/public/default/x/regions",
    ):
        pages.get("/console/")  # the module's server has the namespace
        if "topics" not in path:
            parts = pages.first_events(path)
            assert set(parts) == pages.parts(path)


def test_a_rescale_as_it_happens(pages: Pages, reported: AdminClient) -> None:
    """While the page is followed, vnodes that move are shown above where they are now."""
    import requests

    headers = {"Accept": "text/event-stream"}
    url = f"{pages.base}/console/pipelines/flights"
    with requests.get(url, headers=headers, stream=True, timeout=60) as response:
        lines = response.iter_lines(decode_unicode=True)
        assert any(line == "event: units" for line in lines)
        report = reported.pipelines.get("flights")
        report.mapping = VnodeMapping.from_json(report.mapping).rescale(3).to_json()
        reported.pipelines.report("flights", report)
        assert any("85 vnodes have moved since this page was opened" in line for line in lines)


def test_what_a_driver_sends_stays_text(pages: Pages, reported: AdminClient) -> None:
    report = reported.pipelines.get("flights")
    report.error = report.host = HOSTILE
    report.views[HOSTILE] = report.views["sums"]
    report.views["sums"].stages[0].operator = HOSTILE
    reported.pipelines.report("flights", report)
    for tag, attributes in Elements(pages.get("/console/pipelines/flights").text).found:
        assert tag != "img" or attributes.get("src") == "/console/static/icon.svg"
        assert not [name for name in attributes if name.startswith("on")]
        assert "style" not in attributes


def test_stages_of_views_of_views_stand_behind_what_they_read() -> None:
    def stage(name: str, *origins: str, topic: bool = False) -> dict[str, object]:
        feeds = [{"origin": origin, "ofTopic": topic} for origin in origins]
        return {"stage": name, "operator": "X", "feeds": feeds, "rowsPerS": 0.0}

    views = {
        "v": {"stages": [stage("v/1", "s", topic=True), stage("v/2", "v/1")], "storedRows": 1},
        "w": {"stages": [stage("w/1", "v")], "storedRows": 0},
    }
    found = graph_of({"sources": {"s": {"lag": None}}, "views": views})
    order = ["source s", "v/1", "v/2", "view v", "w/1", "view w"]
    assert [found["columns"][node] for node in order] == [0, 1, 2, 3, 4, 5]
    assert graph(found["nodes"], found["columns"], found["edges"]).count("<rect") == 6


def test_a_driver_that_fell_silent() -> None:
    assert state_of({"state": "running", "updatedMs": 0}, 100_000) == ("bad", "silent")
    assert state_of({"state": "stopped", "updatedMs": 0}, 100_000) == ("warn", "stopped")


def test_regions(pages: Pages, api: Api, client: pulsar.Client) -> None:
    (port,) = free_ports(1)
    address = {"serviceUrl": f"http://127.0.0.1:{port}", "brokerServiceUrl": f"pulsar://127.0.0.1:{port}"}
    api.put("clusters/east", address)
    api.put("tenants/regions", {"allowedClusters": ["standalone", "east"]})
    api.put("namespaces/regions/ns", {"replication_clusters": ["standalone", "east"]})
    topic = "persistent://regions/ns/t"
    client.subscribe(topic, "sub", replicate_subscription_state_enabled=True).close()
    send_all(client.create_producer(topic, batching_enabled=False), [b"x"] * 3)
    assert "east" in pages.text("/console/regions")
    path = "/console/topics/persistent/regions/ns/t/regions"
    wait_until(lambda: "waits for east" in pages.text(path), 60)
    page = pages.get(path).text
    assert "not connected" in Elements(page).text
    assert 'href="/console/explain/cursor?topic=' in page
    assert len(re.findall('class="acked"', page)) == 2, "a lane for each region"
    assert set(pages.first_events(path)) == {"replicators", "lanes"}
    api.put("persistent/public/default/alone")
    assert "in this cluster only" in pages.text("/console/topics/persistent/public/default/alone/regions")


def test_lanes_stand_where_the_subscription_is() -> None:
    ledgers = [{"ledgerId": 1, "entries": 10, "size": 1}, {"ledgerId": 4, "entries": 10, "size": 1}]
    subscription = {"markDeletePosition": "4:9", "toldPosition": "1:4", "nextSnapshotPosition": "4:2"}
    others = [{"cluster": "east", "connected": True}, {"cluster": "west", "connected": False}]
    drawn = lanes("here", others, subscription, ledgers, "4:9", "4:2")
    places = [float(x) for x in re.findall(r'circle class="mark" cx="([\d.]+)"', drawn)]
    assert places[0] > places[1] == places[2]
    assert drawn.count('class="tick"') == 2
    assert 'class="away"' in drawn
    without = lanes("here", others, {**subscription, "toldPosition": None}, [], "", None)
    assert [float(x) for x in re.findall(r'circle class="mark" cx="([\d.]+)"', without)] == [880, 170, 170]
