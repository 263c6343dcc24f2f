"""Topics through views: a real server, a real SparkSession, rows read back from the state tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import AvroSchema, Integer, Long, Record, String

from magnetar.base.clock import SystemClock
from magnetar.pipeline.connect.errors import TopicReplacedError
from magnetar.pipeline.errors import DriverFencedError, StateLossError, UndecodableMessageError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.pipeline.views.control.driver import claim
from magnetar.pipeline.views.epoch import epoch
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.epoch.stage_job import plan_stage
from magnetar.pipeline.views.lowering.stages import Stage
from magnetar.pipeline.views.pipeline import Pipeline
from magnetar.testing.server import ServerProcess
from tests.support.pipelines import (
    GROUPS,
    OVER_GROUPS,
    grouped,
    latest,
    numbered,
    over_grouped,
    send,
    source,
    view_rows,
)
from tests.support.topics import produce


class Event(Record):  # type: ignore[misc]
    k = Integer()
    v = Long()


class EventWithMore(Record):  # type: ignore[misc]
    k = Integer()
    v = Long()
    more = String(default=None, required_default=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "p"


@pytest.fixture
def run(spark: Any, directory: Path) -> Callable[..., list[EpochReport]]:
    """`run(text)`: everything that is there through the pipeline of these statements; its epochs."""

    def once(text: str, units: int | None = None, *, low_latency: bool = True) -> list[EpochReport]:
        pipeline = Pipeline("p", str(directory), spark, units)
        pipeline.prepare(low_latency=low_latency)
        pipeline.sql(text)
        reports: list[EpochReport] = []
        pipeline.run(once=True, on_epoch=reports.append)
        return reports

    return once


def test_views_over_a_topic_and_over_each_other(
    run: Callable[..., list[EpochReport]], server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    text = source(server.service_url, topic) + GROUPS + OVER_GROUPS
    rows = numbered(0, 100)
    send(client, topic, rows)
    (report,) = run(text)
    assert (report.epoch, report.rows_in, report.rows_changed) == (1, 100, {"v": 7, "w": 2})
    assert view_rows(directory) == grouped(rows)
    assert view_rows(directory, "w") == over_grouped(rows)

    more = numbered(100, 130)
    send(client, topic, more)
    (report,) = run(text)
    assert (report.epoch, report.rows_in) == (2, 30)
    assert view_rows(directory) == grouped(rows + more)
    assert view_rows(directory, "w") == over_grouped(rows + more)
    assert run(text) == []
    left = {path.name for path in (directory / "changelogs").glob("*")}
    assert left == set(), "changes that nobody reads any more are gone"


def test_partial_results_are_made_where_groups_have_several_rows(
    run: Callable[..., list[EpochReport]],
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_spark: list[bool] = []

    def watched(stage: Stage, *others: Any) -> Any:
        by_spark.append(stage.preaggregate is not None)
        return plan_stage(stage, *others)

    monkeypatch.setattr(epoch, "plan_stage", watched)
    rows = numbered(0, 60, keys=60) + numbered(60, 120, keys=3)
    send(client, topic, rows)
    text = source(server.service_url, topic, maxMessagesPerTrigger=20) + GROUPS
    reports = run(text, low_latency=False)  # one task takes epochs of few rows otherwise, which has no partial results
    assert [report.rows_in for report in reports] == [20] * 6
    assert by_spark[0] is by_spark[5] is True, "an epoch before that has ended by the time of planning decides"
    assert by_spark[2] is by_spark[3] is False
    assert view_rows(directory) == grouped(rows)


def test_views_that_come_later_have_all_rows(
    run: Callable[..., list[EpochReport]], server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    text = source(server.service_url, topic) + GROUPS
    rows = numbered(0, 60)
    send(client, topic, rows)
    run(text)
    send(client, topic, numbered(60, 80))
    other = GROUPS.replace(" v ", " other ")
    reports = run(text + OVER_GROUPS + other)
    assert [report.rows_in for report in reports] == [60, 20]
    assert view_rows(directory) == view_rows(directory, "other") == grouped(numbered(0, 80))
    assert view_rows(directory, "w") == over_grouped(numbered(0, 80))


def test_sources_come_and_go(
    run: Callable[..., list[EpochReport]], server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    text = source(server.service_url, topic) + GROUPS
    send(client, topic, numbered(0, 10))
    run(text)
    second = f"{topic}-second"
    send(client, second, numbered(0, 30, keys=3))
    send(client, topic, numbered(10, 20))
    text += source(server.service_url, second, "src2") + GROUPS.replace(" v ", " v2 ").replace("FROM src", "FROM src2")
    run(text)
    assert view_rows(directory) == grouped(numbered(0, 20))
    assert view_rows(directory, "v2") == grouped(numbered(0, 30, keys=3))
    send(client, second, numbered(30, 33, keys=3))
    send(client, topic, numbered(20, 25))
    run(text + "DROP MATERIALIZED VIEW v2; DROP SOURCE src2;")
    assert view_rows(directory) == grouped(numbered(0, 25))
    assert set(latest(directory).sources) == {"src"}
    assert set(latest(directory).views["tables"]) == {"v"}


def test_a_source_without_columns_has_those_of_the_registered_schema(
    run: Callable[..., list[EpochReport]], server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Event))
    for number in range(20):
        producer.send(Event(k=number % 3, v=number))
    where = (
        f"connector = 'pulsar', topic = '{topic}', service.url = '{server.service_url}', startingOffsets = 'earliest'"
    )
    text = f"CREATE SOURCE src WITH ({where}) FORMAT PLAIN ENCODE AVRO;"
    text += "CREATE MATERIALIZED VIEW v AS SELECT k, sum(v) AS total FROM src GROUP BY k;"
    run(text)
    client.create_producer(topic, schema=AvroSchema(EventWithMore)).send(EventWithMore(k=0, v=100, more="x"))
    run(text)
    assert view_rows(directory) == {(0, 163), (1, 70), (2, 57)}


def test_an_error_is_told_by_its_cause(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    """Of decoding, and of a function of Spark's own: without what Spark puts around them."""

    def failed(view: str, error: type[Exception]) -> tuple[str, str | None]:
        pipeline = Pipeline("p", str(directory / view[25]), spark)
        pipeline.sql(source(server.service_url, topic, on_decode_error="strict") + view)
        with pytest.raises(error) as raised:
            pipeline.run(once=True)
        return str(raised.value), pipeline.status.error

    produce(client, topic, [b'{"k":"a","n":2}'])
    _, told = failed(
        "CREATE MATERIALIZED VIEW x AS SELECT n, max(to_binary(k || 'z', 'hex')) AS s FROM src GROUP BY n;", Exception
    )
    assert told is not None
    assert told.startswith("The value 'az'")
    assert "SQLSTATE" not in told
    produce(client, topic, [b'{"k":\n"b","n":"x"}'])
    text, told = failed(GROUPS, UndecodableMessageError)
    assert text.startswith(f"source src: the message {topic} ")
    assert '{"k":\n"b","n":"x"}; send' in text
    assert "write ALTER SOURCE src SET (on.decode.error = 'null'), 'skip' or 'dead_letter' into the file" in text
    assert told == " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({"on.decode.error": "skip"}, {("a", 2, 5)}),
        ({}, {("a", 2, 5), ("1.5", 1, None), (None, 1, None)}),
    ],
)
def test_messages_that_cannot_be_decoded_are_counted_in_epoch_and_status(
    options: dict[str, str],
    groups: set[Any],
    spark: Any,
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    directory: Path,
) -> None:
    produce(client, topic, [b'{"k":"a","n":2}', b"{", b'{"k":"a","n":3}', b'{"k":1.5,"n":"x"}'])
    text = source(server.service_url, topic, **options) + GROUPS
    pipeline = Pipeline("p", str(directory), spark)
    pipeline.sql(text)
    reports: list[EpochReport] = []
    pipeline.run(once=True, on_epoch=reports.append)
    assert [report.counters for report in reports] == [{"undecodable": 2}]
    assert pipeline.status.counters == {"undecodable": 2}
    assert view_rows(directory) == groups


def test_an_edited_file_keeps_what_it_can_and_asks_for_the_rest(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    """A poison message stops a strict source; the file edited as the error says goes on behind what was read."""
    strict = source(server.service_url, topic, on_decode_error="strict")

    def run(text: str, rebuild: bool = False) -> dict[str, int]:
        pipeline = Pipeline("p", str(directory), spark)
        pipeline.sql(text)
        pipeline.prepare(rebuild=rebuild)
        pipeline.run(once=True)
        return dict(pipeline.status.counters)

    produce(client, topic, [b'{"k":"a","n":2,"m":7}'])
    run(strict + GROUPS)
    produce(client, topic, [b'{"k":"a","n":"x"}', b'{"k":"b","n":3,"m":1}'])
    with pytest.raises(UndecodableMessageError):
        run(strict + GROUPS)
    before = latest(directory)
    assert run(strict + GROUPS + "ALTER SOURCE src SET (on.decode.error = 'skip');") == {"undecodable": 1}
    assert view_rows(directory) == {("a", 1, 2), ("b", 1, 3)}
    assert latest(directory).views["tables"] == before.views["tables"]

    more = source(server.service_url, topic, on_decode_error="skip").replace("n BIGINT", "n BIGINT, m INT")
    wide = "CREATE MATERIALIZED VIEW wide AS SELECT k, sum(m) AS sm FROM src GROUP BY k;"
    assert run(more + GROUPS + wide) == {}
    assert view_rows(directory, "wide") == {("a", 7), ("b", 1)}
    assert latest(directory).views["tables"]["v"] == before.views["tables"]["v"]

    edited = GROUPS.replace("sum(n)", "max(n)")
    epoch = latest(directory).epoch
    with pytest.raises(StateLossError, match=r"v \(its query is another one\).*--yes"):
        run(more + edited + wide)
    assert latest(directory).epoch == epoch
    run(more + edited + wide, rebuild=True)
    produce(client, topic, [b'{"k":"a","n":9,"m":1}'])
    run(more + edited + wide)
    assert view_rows(directory) == {("a", 2, 9), ("b", 1, 3)}
    assert view_rows(directory, "wide") == {("a", 8), ("b", 1)}
    assert latest(directory).views["tables"]["v"] != before.views["tables"]["v"]


def test_rows_that_lie_in_other_columns_are_built_again_only_when_asked(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    """As when an older version gave a column another type."""
    rows = numbered(0, 20)
    send(client, topic, rows)

    def run(rebuild: bool = False) -> None:
        pipeline = Pipeline("p", str(directory), spark)
        pipeline.sql(source(server.service_url, topic) + GROUPS + OVER_GROUPS)
        pipeline.prepare(rebuild=rebuild)
        pipeline.run(once=True)

    run()
    before = latest(directory)
    number = before.views["tables"]["v"]
    state = before.tables[number]
    narrow = pa.schema([pa.field(f.name, pa.int32() if f.name == "s" else f.type) for f in state.table.schema])
    older = replace(state, table=replace(state.table, schema=narrow))
    ManifestStore(StateFiles(str(directory)), SystemClock()).commit(
        before.next(tables={**before.tables, number: older})
    )
    with pytest.raises(
        StateLossError, match=r"v \(another version.*: s was int32, and is int64 now\); w \(v, which.*--yes"
    ):
        run()
    assert latest(directory).number == before.number + 1, "the manifest is as it was"
    run(rebuild=True)
    assert view_rows(directory) == grouped(rows)
    assert view_rows(directory, "w") == over_grouped(rows)
    run()


def test_a_topic_that_is_another_one_is_noticed_and_read_from_its_start_when_asked(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    """As after a server whose directory was lost: the ids of ledgers begin anew."""
    text = source(server.service_url, topic) + GROUPS
    pipeline = Pipeline("p", str(directory), spark)
    pipeline.sql(text)
    send(client, topic, numbered(0, 5))
    pipeline.run(once=True)
    before = latest(directory)
    ahead = {"src": {topic: {"ledger": 2**40, "entry": 7, "batch": 0}}}
    ManifestStore(StateFiles(str(directory)), SystemClock()).commit(before.next(sources=ahead))
    with pytest.raises(TopicReplacedError, match=r"deleted and made again.*failOnDataLoss=false"):
        pipeline.run(once=True)
    again = Pipeline("p", str(directory), spark)
    again.sql(text + "ALTER SOURCE src SET (failOnDataLoss = 'false');")
    again.run(once=True)
    assert view_rows(directory) == grouped(numbered(0, 5) * 2), "what the views hold stays"


@pytest.mark.parametrize("named", [True, False])
def test_dead_letters_have_reason_position_key_and_the_bytes_themselves(
    named: bool, spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    producer = client.create_producer(topic)
    ids = [
        producer.send(value, partition_key=f"k{number}")
        for number, value in enumerate([b'{"k":"a","n":2}', b"\xff{", b'{"k":"b","n":"x"}'])
    ]
    options = {"on.decode.error": "dead_letter"} | ({"dead.letter.topic": f"{topic}-bad"} if named else {})
    pipeline = Pipeline("p", str(directory), spark)
    pipeline.sql(source(server.service_url, topic, **options) + GROUPS)
    pipeline.run(once=True)
    assert pipeline.status.counters == {"undecodable": 2, "dead_letters": 2}
    assert view_rows(directory) == {("a", 1, 2)}
    letters = client.create_reader(
        f"{topic}-bad" if named else f"{topic}-magnetar-p-src-DLQ", pulsar.MessageId.earliest
    )
    for number, value in ((1, b"\xff{"), (2, b'{"k":"b","n":"x"}')):
        letter = letters.read_next(30_000)
        assert (letter.data(), letter.partition_key()) == (value, f"k{number}")
        said = letter.properties()
        at = f"{ids[number].ledger_id()}:{ids[number].entry_id()}:0"
        assert said.pop("reason").startswith("cannot be read as PLAIN JSON: ")
        assert said == {"pipeline": "p", "source": "src", "topic": topic, "position": at}
    assert not letters.has_message_available()


def test_rescaling_moves_vnodes_and_no_bytes(
    spark: Any, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    pipeline = Pipeline("p", str(directory), spark, units=2, trigger_s=0.05)
    pipeline.sql(source(server.service_url, topic) + GROUPS + OVER_GROUPS)
    steps = iter([3, 5, 2])
    reports: list[EpochReport] = []
    sent: list[dict[str, Any]] = []

    def more() -> None:
        rows = numbered(len(sent), len(sent) + 50, keys=40)
        sent.extend(rows)
        send(client, topic, rows)

    def on_epoch(report: EpochReport) -> None:
        reports.append(report)
        units = next(steps, None)
        if units is not None:
            pipeline.rescale(units)
            more()
        elif len(reports) > 6:
            pipeline.request_stop()
        else:
            more()

    more()
    pipeline.run(on_epoch=on_epoch)
    moved = {report.units: report.vnodes_moved for report in reports if report.vnodes_moved}
    assert moved == {3: 85, 5: 102, 2: 153}, "the least possible"
    assert reports[-1].units == 2
    pipeline.run(once=True)
    assert view_rows(directory) == grouped(sent)
    assert view_rows(directory, "w") == over_grouped(sent)


def test_rescaling_alone_writes_no_state(
    spark: Any,
    run: Callable[..., list[EpochReport]],
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    directory: Path,
) -> None:
    text = source(server.service_url, topic) + GROUPS
    send(client, topic, numbered(0, 50))
    run(text, 2)
    before = latest(directory)
    (report,) = run(text, 3)
    assert (report.rows_in, report.units, report.vnodes_moved) == (0, 3, 85)
    assert latest(directory).run_paths() == before.run_paths()
    assert view_rows(directory) == grouped(numbered(0, 50))


def test_the_older_of_two_drivers_stops(
    spark: Any,
    run: Callable[..., list[EpochReport]],
    server: ServerProcess,
    client: pulsar.Client,
    topic: str,
    directory: Path,
) -> None:
    text = source(server.service_url, topic) + GROUPS
    pipeline = Pipeline("p", str(directory), spark, trigger_s=0.05)
    pipeline.sql(text)
    started, failed = threading.Event(), []

    def older() -> None:
        try:
            pipeline.run(on_start=lambda _: started.set())
        except DriverFencedError as error:
            failed.append(error)

    thread = threading.Thread(target=older)
    thread.start()
    assert started.wait(60)
    send(client, topic, numbered(0, 20))
    while latest(directory).epoch == 0:
        assert thread.is_alive()
    term = latest(directory).term
    claim(StateFiles(str(directory)), SystemClock(), 2)
    send(client, topic, numbered(20, 40))
    thread.join(60)
    assert failed
    assert f"term {term}" in str(failed[0])
    assert "this one stops" in str(failed[0])
    assert latest(directory).epoch == 1
    run(text)
    assert view_rows(directory) == grouped(numbered(0, 40))


def test_a_repeated_batch_and_a_lost_log(
    run: Callable[..., list[EpochReport]], server: ServerProcess, client: pulsar.Client, topic: str, directory: Path
) -> None:
    import shutil

    text = source(server.service_url, topic) + GROUPS
    send(client, topic, numbered(0, 20))
    run(text, low_latency=False)
    (log,) = (directory / "checkpoint").iterdir()
    for name in ("0", ".0.crc"):
        (log / "commits" / name).unlink(missing_ok=True)
    send(client, topic, numbered(20, 30))
    run(text, low_latency=False)
    shutil.rmtree(directory / "checkpoint")
    send(client, topic, numbered(30, 40))
    run(text, low_latency=False)
    assert view_rows(directory) == grouped(numbered(0, 40))
    numbers = ManifestStore(StateFiles(str(directory)), SystemClock()).numbers()
    assert numbers == sorted(set(numbers))
