"""The demo's second half: the flights' topic becomes two views on Spark, rescaled half way, and compared with pandas over the file."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.cli.demo.screen import Screen
from magnetar.cli.demo.server import Server
from magnetar.cli.demo.source import Flights, airports
from magnetar.cli.demo.views_verdict import Comparison, compare
from magnetar.cli.errors import CommandError
from magnetar.cli.messages.pulsar_client import connected
from magnetar.hashing.mapping import VnodeMapping

if TYPE_CHECKING:
    import pandas as pd

    from magnetar.pipeline.views.epoch.progress import EpochReport
    from magnetar.pipeline.views.pipeline import Pipeline

AIRPORTS_TOPIC: Final = "persistent://public/default/airports"
NAME: Final = "flights"
UNITS_BEFORE: Final = 2
UNITS_AFTER: Final = 3
EPOCHS: Final = 8
"""About so many micro-batches the flights are read in."""

KEYS: Final = {"delays": ["carrier", "window_start"], "routes": ["origin", "dest"]}
"""The views that are compared, and what makes a row of them unique."""


@dataclass(slots=True)
class ViewsOutcome:
    """What happened, for the table and for --json."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    before: VnodeMapping | None = None
    after: VnodeMapping | None = None
    moved: int = 0
    pause_s: float = 0.0
    rows: int = 0
    start_s: float = 0.0
    run_s: float = 0.0
    read_s: float = 0.0
    picture: Path | None = None

    @property
    def problems(self) -> list[str]:
        found = [f"view {each.view}: {each.problem}" for each in self.comparisons if each.problem]
        if self.after is None or len(self.after.units) != UNITS_AFTER:
            found.append(f"the pipeline was not rescaled to {UNITS_AFTER} units")
        return found


def run(
    flights: Flights, serving: Server, topic: str, folder: Path, picture: Path | None, screen: Screen
) -> ViewsOutcome:
    """Feed the airports, run the pipeline to the end of the topics, compare. Raises what the pipeline fails with."""
    outcome = ViewsOutcome()
    send_airports(serving.url)
    started = time.monotonic()
    pipeline = build(serving, topic, len(flights), folder)
    spark = pipeline.spark
    outcome.start_s = time.monotonic() - started
    screen.say(f"Spark {spark.version} ready after {outcome.start_s:.1f} s, {UNITS_BEFORE} parallel units")
    try:
        follow(pipeline, len(flights), outcome, screen)
        started = time.monotonic()
        found = {view: read(spark, pipeline, view) for view in KEYS}
        outcome.read_s = time.monotonic() - started
        screen.say(f"views read back in {outcome.read_s:.1f} s, a task for each group of vnodes")
    except BaseException:
        with suppress(Exception):  # the same signal may have ended the JVM
            spark.stop()
        raise
    spark.stop()
    outcome.comparisons = compare(found, KEYS, len(flights))
    if picture is not None and outcome.before is not None and outcome.after is not None:
        draw(picture, outcome.before, outcome.after)
        outcome.picture = picture
    return outcome


def build(serving: Server, topic: str, flights: int, folder: Path) -> Pipeline:
    """The pipeline of flights.sql, with a Spark session of its own; what Spark says goes to spark.log in `folder`."""
    from magnetar.pipeline.session import build_session
    from magnetar.pipeline.views.pipeline import Pipeline

    text = (resources("magnetar.cli.demo") / "flights.sql").read_text(encoding="utf-8")
    sql = text.format(
        service_url=serving.url, flights=topic, airports=AIRPORTS_TOPIC, batch=max(1, -(-flights // EPOCHS))
    )
    spark = build_session(app_name="magnetar-demo", log_path=folder / "spark.log")
    pipeline = Pipeline(NAME, directory=str(folder / "pipeline"), spark=spark, units=UNITS_BEFORE)
    pipeline.sql(sql)
    return pipeline


def follow(pipeline: Pipeline, flights: int, outcome: ViewsOutcome, screen: Screen) -> None:
    """Run until everything is read; half way, ask for more units."""

    def on_start(mapping: VnodeMapping) -> None:
        outcome.before = mapping

    def on_epoch(report: EpochReport) -> None:
        outcome.rows += report.rows_in
        outcome.moved += report.vnodes_moved
        outcome.pause_s = max(outcome.pause_s, report.pause_s)
        seconds = report.duration_s["total"]
        outcome.epochs.append(
            {
                "epoch": report.epoch,
                "units": report.units,
                "rows": report.rows_in,
                "rows_per_s": round(report.rows_in / seconds) if seconds else 0,
                "seconds": round(seconds, 2),
                "state_bytes": report.state_bytes,
            }
        )
        moved = f", {report.vnodes_moved} vnodes moved" if report.vnodes_moved else ""
        screen.say(f"epoch {report.epoch}: {report.rows_in:,} rows in {seconds:.2f} s on {report.units} units{moved}")
        screen.update({"in views": min(outcome.rows, flights)})
        if report.units == UNITS_BEFORE and outcome.rows >= flights / 2:
            screen.say(f"rescaling from {UNITS_BEFORE} to {UNITS_AFTER} units")
            pipeline.rescale(UNITS_AFTER)

    started = time.monotonic()
    pipeline.run(once=True, on_epoch=on_epoch, on_start=on_start)
    outcome.run_s = time.monotonic() - started
    outcome.after = mapping_of(pipeline)


def mapping_of(pipeline: Pipeline) -> VnodeMapping:
    """As the last manifest has it."""
    from magnetar.base.clock import SystemClock
    from magnetar.pipeline.state.manifest import ManifestStore

    manifest = ManifestStore(pipeline.files, SystemClock()).latest()
    assert manifest is not None, "the pipeline has run"
    return VnodeMapping.from_json(manifest.mapping)


def read(spark: Any, pipeline: Pipeline, view: str) -> pd.DataFrame:
    """A view as a batch of Spark, at its last epoch."""
    scan = spark.read.format("magnetar.view").option("pipeline", pipeline.files.root_url).option("view", view)
    rows: pd.DataFrame = scan.load().toPandas()
    return rows


def send_airports(url: str) -> None:
    """Each airport under its code."""
    with connected(url) as client:
        producer = client.create_producer(AIRPORTS_TOPIC, batching_enabled=True, block_if_queue_full=True)
        for code, payload in airports():
            producer.send_async(payload, None, partition_key=code)
        producer.flush()
        producer.close()


def draw(path: Path, before: VnodeMapping, after: VnodeMapping) -> None:
    """The maps of vnodes before and after."""
    from magnetar.cli.hashing.plots import plot_mappings

    try:
        plot_mappings(path, before, after)
    except OSError as error:
        raise CommandError(f"cannot write the picture: {error}") from error
