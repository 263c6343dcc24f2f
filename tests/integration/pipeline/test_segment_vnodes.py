"""Views with `vnode.hash = 'segment'`: each unit reads the segments in which its vnodes lie, and nothing is shuffled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from magnetar.admin.client import AdminClient
from magnetar.cli.pipeline.rescale import rescale_command
from magnetar.client.scalable import Client
from magnetar.client.scalable.layout import hash_of
from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.vnode import segment_vnode
from magnetar.pipeline.errors import PlanRefusedError
from magnetar.pipeline.views.control.why import explain_view
from magnetar.pipeline.views.epoch import kept_plans
from magnetar.pipeline.views.epoch.epoch import SHUFFLED
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import grouped, latest, numbered, view_rows
from tests.support.scalable import active, send_rows
from tests.support.spark_stages import shuffle_bytes, stages_so_far

KEYS = 60
WAIT_S = 120
VIEWS = """
CREATE MATERIALIZED VIEW v WITH (vnode.hash = 'segment') AS SELECT k, count(*) AS c, sum(n) AS s FROM src GROUP BY k;
CREATE MATERIALIZED VIEW w WITH (vnode.hash = 'segment') AS SELECT count(DISTINCT n) * 2 AS twice, k FROM src WHERE n % 2 = 0 GROUP BY k;
"""


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[AdminClient]:
    with AdminClient(server.http_url) as client:
        yield client


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No epoch is one of few rows, which one task does."""
    monkeypatch.setattr(kept_plans, "SMALL_ENTRIES", -1)


def source(url: str, topic: str) -> str:
    given = f"connector = 'pulsar', service.url = '{url}', topic = '{topic}', startingOffsets = 'earliest'"
    return f"CREATE SOURCE src (n BIGINT) INCLUDE KEY AS k WITH ({given}) FORMAT PLAIN ENCODE JSON;"


def twice(rows: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """What `w` has to give."""
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["n"] % 2 == 0:
            found[row["k"]] += 2
    return {(count, key) for key, count in found.items()}


class Running:
    """A pipeline in a thread, and what its epochs reported."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._failures = pipeline, list[BaseException]()
        self._more = threading.Condition()
        self.reports: list[EpochReport] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._pipeline.run(on_epoch=self._told)
        except BaseException as error:
            self._failures.append(error)
        with self._more:
            self._more.notify_all()

    def _told(self, report: EpochReport) -> None:
        with self._more:
            self.reports.append(report)
            self._more.notify_all()

    def wait(self, rows: int, units: int | None = None) -> None:
        """Until so many rows are in its epochs and, if said, the last one had so many units."""

        def there() -> bool:
            read = sum(each.rows_in for each in self.reports)
            return bool(self._failures) or (read >= rows and units in (None, self.reports[-1].units))

        with self._more:
            assert self._more.wait_for(there, WAIT_S)
        assert self._failures == []

    def stop(self) -> None:
        self._pipeline.request_stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        assert self._failures == []


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("large")
def test_a_topic_that_splits_from_two_to_eight_under_a_view_that_shuffles_nothing(
    spark: Any, server: ServerProcess, admin: AdminClient, tmp_path: Path
) -> None:
    topic, directory, sent = "topic://public/default/segment-vnodes", tmp_path / "p", list[dict[str, Any]]()
    admin.scalable_topics.create(topic, 2)

    def send(count: int) -> None:
        rows = numbered(len(sent), len(sent) + count, KEYS)
        send_rows(server.service_url, topic, rows)
        sent.extend(rows)

    send(120)
    pipeline = Pipeline("p", str(directory), spark, units=2)
    pipeline.sql(source(server.service_url, topic) + VIEWS)
    assert any("without a shuffle" in line for line in pipeline.explain().splitlines())
    before = stages_so_far(spark)
    running = Running(pipeline)
    try:
        running.wait(120)
        files = {run.path for state in latest(directory).tables.values() for run in state.runs}
        pipeline.rescale(3)
        running.wait(120, units=3)
        moved = [report for report in running.reports if report.vnodes_moved]
        assert [report.units for report in moved] == [3]
        assert {run.path for state in latest(directory).tables.values() for run in state.runs} == files
        for count in range(3, 9):
            admin.scalable_topics.split(topic, active(admin, topic)[-1 if count % 2 else 0])
            assert len(active(admin, topic)) == count
            send(60)
        running.wait(len(sent))
    finally:
        running.stop()

    assert view_rows(directory) == grouped(sent)
    assert view_rows(directory, "w") == twice(sent)
    assert shuffle_bytes(spark, before) == 0
    assert splits_with_units(server, admin, topic, directory) == 12
    merges_with_units(server, admin, topic, directory)
    send(60)
    pipeline = Pipeline("p", str(directory), spark, units=3)
    pipeline.sql(source(server.service_url, topic) + VIEWS)
    pipeline.run(once=True)
    assert view_rows(directory) == grouped(sent)
    assert view_rows(directory, "w") == twice(sent)
    assert sum(report.counters.get(SHUFFLED, 0) for report in running.reports) == 0
    check_place(directory)

    # The measure would show a shuffle: the same view by RisingWave's hash.
    before = stages_so_far(spark)
    other = Pipeline("other", str(tmp_path / "other"), spark, units=2)
    other.sql(
        source(server.service_url, topic) + VIEWS.partition("\n\n")[0].replace(" WITH (vnode.hash = 'segment')", "")
    )
    other.run(once=True)
    assert view_rows(tmp_path / "other") == grouped(sent)
    assert shuffle_bytes(spark, before) > 0


def splits_with_units(server: ServerProcess, admin: AdminClient, topic: str, directory: Path) -> int:
    """Segments of the topic after `rescale --split` to twelve units, of eight."""
    options = ["--units", "12", "--split", "--json", "--admin-url", server.http_url]
    dry = CliRunner().invoke(rescale_command, [str(directory), *options, "--dry-run"], catch_exceptions=False)
    assert len(active(admin, topic)) == 8
    done = CliRunner().invoke(rescale_command, [str(directory), *options], catch_exceptions=False)
    assert json.loads(dry.stdout)["split"] == json.loads(done.stdout)["split"]
    assert len(VnodeMapping.from_json(latest(directory).mapping).units) == 12
    return len(active(admin, topic))


def merges_with_units(server: ServerProcess, admin: AdminClient, topic: str, directory: Path) -> None:
    """Twelve segments become three with `rescale --merge`, some of them before it is interrupted and the rest when it is given again."""
    options = [str(directory), "--units", "3", "--merge", "--json", "--admin-url", server.http_url]
    dry = json.loads(CliRunner().invoke(rescale_command, [*options, "--dry-run"], catch_exceptions=False).stdout)
    assert len(dry["merged"]) == 9
    assert len(active(admin, topic)) == 12
    segments = admin.scalable_topics.metadata(topic).segments.values()
    ids = {
        f"{each.hash_range.start:04x}-{each.hash_range.end:04x}": each.segment_id
        for each in segments
        if each.state == "ACTIVE"
    }
    for pair in dry["merged"][:2]:
        low, high = (ids[each] for each in pair.split()[1:])
        admin.scalable_topics.merge(topic, low, high)
    done = CliRunner().invoke(rescale_command, options, catch_exceptions=False)
    assert json.loads(done.stdout)["merged"] == dry["merged"][2:]
    assert len(active(admin, topic)) == 3
    assert "split" not in json.loads(done.stdout)
    assert len(VnodeMapping.from_json(latest(directory).mapping).units) == 3


def check_place(directory: Path) -> None:
    """Look-ups of a key and `explain` use the function by which rows are placed."""
    key = "key-7"
    expected = segment_vnode(key)
    assert expected == hash_of(key) >> 24
    told = explain_view(str(directory), "v", [f"k={key}"])
    assert told.details["key"]["vnode"] == expected
    assert told.details["key"]["rows"]
    state = latest(directory).tables
    assert {table.table.vnode_hash for table in state.values()} == {"segment"}
    table = next(each for each in state.values() if each.table.name == "v")
    assert table.table.vnodes_of(pa.table({"k": [key, None]})).tolist() == [expected, 0]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("large")
def test_rows_outside_of_their_segment_are_counted_once_all_the_same(
    spark: Any, server: ServerProcess, admin: AdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "topic://public/default/low-bits"
    admin.scalable_topics.create(topic, 4)
    sent = numbered(0, 200, KEYS) + [{"k": None, "n": n} for n in range(10)]

    async def publish() -> None:
        """As clients of 5.0.0-M1 do, which take the low bits of the hash; and some messages have no key."""
        async with Client(server.service_url) as client:
            producer = await client.producer(topic, low_bits=True)
            await asyncio.gather(*(producer.send(json.dumps(row).encode(), key=row["k"]) for row in sent))
            await producer.close()

    asyncio.run(publish())
    text = source(server.service_url, topic)

    def check(name: str, statements: str = VIEWS, *, low_latency: bool = True) -> int:
        """How many rows were outside of their segment in one run, after which the views are as they have to be."""
        directory, reports = tmp_path / name, list[EpochReport]()
        pipeline = Pipeline("p", str(directory), spark, units=3)
        pipeline.prepare(low_latency=low_latency)
        pipeline.sql(text + statements)
        pipeline.run(once=True, on_epoch=reports.append)
        assert view_rows(directory) == grouped(sent)
        if statements == VIEWS:
            assert view_rows(directory, "w") == twice(sent)
        return sum(report.counters.get(SHUFFLED, 0) for report in reports)

    assert check("own") > 0
    first = VIEWS.split(";")[0] + ";"
    assert check("streamed", first, low_latency=False) == 0  # all are shuffled
    assert check("streamed", low_latency=False) == 0  # and so are those that a new view reads of the past
    monkeypatch.setattr(kept_plans, "SMALL_ENTRIES", 1_000)
    monkeypatch.setattr(kept_plans, "FEW_ENTRIES", 1_000)
    assert check("small") == 0  # one task has all vnodes


REFUSED = [
    ("SELECT n, count(*) AS c FROM src GROUP BY n", "GROUP BY k"),
    ("SELECT k, n, count(*) AS c FROM src GROUP BY k, n", "the message key alone"),
    ("SELECT upper(k) AS u, count(*) AS c FROM src GROUP BY upper(k)", "GROUP BY k"),
    ("SELECT count(*) AS c FROM src", "leave vnode.hash out"),
    ("SELECT a.k, b.c FROM src a JOIN counts b ON a.k = b.k", "a view of its own"),
    ("SELECT k, sum(c) AS c FROM counts GROUP BY k", "read a SOURCE"),
    ("SELECT k, array_agg(n ORDER BY n) AS a FROM src GROUP BY k", "a view of its own"),
]


def test_a_view_for_which_it_cannot_hold_is_refused_with_what_to_write(
    spark: Any, server: ServerProcess, tmp_path: Path
) -> None:
    text = source(server.service_url, "topic://public/default/refused")
    text += "CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS c FROM src GROUP BY k;"
    for number, (query, fix) in enumerate(REFUSED):
        pipeline = Pipeline("p", str(tmp_path / str(number)), spark, units=2)
        pipeline.sql(f"{text} CREATE MATERIALIZED VIEW x WITH (vnode.hash = 'segment') AS {query};")
        with pytest.raises(PlanRefusedError, match=fix):
            pipeline.explain()
