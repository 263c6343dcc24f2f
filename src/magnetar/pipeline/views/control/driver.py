"""The driver of a pipeline: it follows the ends of all sources, makes an epoch of what is new, and the manifest is the only truth.

Starting claims the pipeline, so that an older driver cannot commit any more (`DriverFencedError` there), and writes down where the sources
stand before anything is read. Everything that an epoch needs is in the manifest before it; a driver that dies leaves files that no manifest
names.

An epoch of few rows needs no planning, and is committed before the next one is looked for; its sinks are served while that one runs.
While a larger one runs, the next one is planned, as far as it does not depend on it.

Without low latency one streaming query of Spark's reads all sources, an epoch a batch: the engine is told that a batch is done when its
epoch begins, and a batch that the manifest has already is passed over. Its own log is of no account after a crash, as each driver
begins a new one where the manifest stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from magnetar.base.clock import Clock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state import gc
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState
from magnetar.pipeline.views.control.checkpoint import GENERATION, Checkpoint
from magnetar.pipeline.views.control.failures import is_slow_start, told
from magnetar.pipeline.views.epoch.backfill import backfill_batch, starts, to_backfill
from magnetar.pipeline.views.epoch.delivery import Delivery
from magnetar.pipeline.views.epoch.epoch import Batch, EpochRunner, Prepared
from magnetar.pipeline.views.epoch.kept_plans import SMALL_TRIGGER_S, EpochSize, KeptPlans, is_keepable
from magnetar.pipeline.views.epoch.progress import EpochReport
from magnetar.pipeline.views.epoch.stage_job import own_frame, pieces_frame
from magnetar.pipeline.views.lowering.program import BACKFILL, STARTS, Program
from magnetar.pipeline.views.sink.sinks import undelivered
from magnetar.pipeline.views.source.dead_letters import DeadLetters
from magnetar.pipeline.views.source.options import decode_policy, sends_dead_letters
from magnetar.pipeline.views.source.sources import SOURCE, Sources
from magnetar.pipeline.views.source.tail import Tail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER_S: Final = 0.5
"""Between the beginnings of two epochs at least; an epoch that takes longer is followed at once."""

POLL_S: Final = 1
"""How often a driver looks for requests while no batch comes."""

EPOCHS_PER_COLLECTION: Final = 10
"""Unneeded files are collected each so many epochs: up to twice as many manifests as are kept may be there."""

COLLECTION_S: Final = 5.0
"""The same with low latency, in time: reading the manifests that go takes longer than an epoch of few rows."""

QUERY_ATTEMPTS: Final = 6
"""Of starting the streaming query, when a process of it was not there in Spark's 10 s, for which there is no setting."""

OnEpoch = Callable[[EpochReport], None]


def claim(files: StateFiles, clock: Clock, units: int) -> Manifest:
    """Take the pipeline over: no earlier driver can commit from now on. `units`: of a pipeline that has never run."""
    first = Manifest(0, 0, 0, -1, VnodeMapping.even(units).to_json())
    return ManifestStore(files, clock).claim(first)


class Driver:
    """Runs one pipeline until it is stopped or fenced. `request_stop` and `rescale` may be called from any thread."""

    def __init__(
        self,
        spark: SparkSession,
        files: StateFiles,
        clock: Clock,
        program: Program,
        sources: Sources,
        *,
        name: str = "pipeline",
        on_epoch: OnEpoch | None = None,
        trigger_s: float | None = None,
        low_latency: bool = False,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`trigger_s`: the least time between the beginnings of two epochs, TRIGGER_S if it is None, and less for epochs of few rows with
        `low_latency`: follow the topics' ends without a streaming query (`_follow_tail`), and run epochs of few rows by kept plans.
        `on_ready` is called by `run` when new views have what was there before them."""
        self._spark = spark
        self._files = files
        self._clock = clock
        self._program = program
        self._sources = sources
        self._on_epoch = on_epoch
        self._on_ready = on_ready
        self._trigger_s = TRIGGER_S if trigger_s is None else trigger_s
        self._small_trigger_s = SMALL_TRIGGER_S if trigger_s is None else trigger_s
        self._store = ManifestStore(files, clock)
        self._kept = KeptPlans(files, program, sources) if low_latency and is_keepable(program) else None
        self._runner = EpochRunner(files, self._store, program, self._kept)
        self._low_latency = low_latency
        self._collector = OneAhead("collection") if low_latency else None
        self._collected_s = 0.0
        self._tail: Tail | None = None
        self._size = EpochSize()
        self._delivery = Delivery(name, files, program)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._units: int | None = None
        self._failure: BaseException | None = None
        self._ahead = OneAhead()
        self._behind = OneAhead("delivery")
        self._head: Head | None = None
        self._manifest: Manifest | None = None
        self._checkpoint: Checkpoint | None = None
        self.epoch_began_s: float | None = None
        """Of the epoch that is under way, monotonic; None between epochs."""

    @property
    def manifest(self) -> Manifest:
        """The last one that this driver committed."""
        assert self._manifest is not None, "the driver has not been started"
        return self._manifest

    @property
    def head(self) -> Head:
        """Where it stands when the epoch that runs is committed."""
        assert self._head is not None, "the driver has not been started"
        return self._head

    def start(self, claimed: Manifest, views: Mapping[str, Any] | None = None) -> Manifest:
        """Make a claimed pipeline run this driver's program. `views`: what the manifest is to say of the catalog.

        Nothing is read before the manifest says where sources and sinks begin.
        """
        generation = int(claimed.views.get(GENERATION, 0)) + 1
        positions = {
            name: self._sources.positions(source, claimed.sources.get(name))
            for name, source in self._program.sources.items()
        }
        document = {
            **(claimed.views if views is None else views),
            GENERATION: generation,
            STARTS: starts(claimed, positions),
            BACKFILL: to_backfill(self._program, claimed),
        }
        sinks = self._delivery.begin(claimed)
        known = self._program.tables
        self._manifest = self._store.commit(
            claimed.next(
                batch_id=-1,
                sources=positions,
                views=document,
                sinks=sinks,
                tables={number: claimed.tables.get(number, TableState(table)) for number, table in known.items()},
                changelogs=undelivered({**claimed.changelogs, **self._delivery.snapshots}, self._program.sinks, sinks),
                watermarks_us={n: at for n, at in claimed.watermarks_us.items() if n in self._program.watermarks},
            )
        )
        self._head = Head.of(self._manifest)
        self._delivery.deliver(self._manifest)
        self._acknowledge(self._manifest)
        self._checkpoint = Checkpoint(self._checkpoints(), generation, list(self._program.sources))
        self._checkpoint.create()
        return self._manifest

    def run(self, *, once: bool = False) -> None:
        """Until `request_stop`, or with `once` until everything is read that was there at the start. After `start`.

        Raises DriverFencedError when another driver has taken over, and what an epoch failed with.
        """
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")  # a task's index is its unit
        self._backfill()
        self._on_ready()
        self._tail = self._sources.tail(self._program.sources) if self._low_latency and self._program.sources else None
        for attempt in range(1, QUERY_ATTEMPTS + 1):
            try:
                if not self._program.sources:
                    self._follow_nothing(once)
                elif self._tail is not None:
                    self._follow_tail(self._tail, once)
                else:
                    self._follow(once)
                break
            except Exception as error:
                if (
                    self._tail is not None
                    or attempt == QUERY_ATTEMPTS
                    or self._failure is not None
                    or not is_slow_start(error)
                ):
                    raise self._failed(error) from error
        if self._failure is not None:
            raise self._failed(self._failure)
        with self._lock:
            if once and not self._stop.is_set():
                self._idle()
            if self._delivery.is_ahead(self.manifest):
                self._manifest = self._store.commit(
                    self.manifest.next(
                        sinks=self._delivery.positions,
                        changelogs=undelivered(self.manifest.changelogs, self._program.sinks, self._delivery.positions),
                    )
                )

    def request_stop(self) -> None:
        """After the epoch that is running, if any."""
        self._stop.set()
        self._wake()

    def rescale(self, units: int) -> None:
        """From the next epoch on; the last request counts."""
        self._units = units
        self._wake()

    def _wake(self) -> None:
        if self._tail is not None:
            self._tail.wake()

    def close(self) -> None:
        self._ahead.close()
        self._behind.close()
        if self._collector is not None:
            self._collector.close()
        if self._kept is not None:
            self._kept.close()
        if self._tail is not None:
            self._tail.close()
        self._delivery.close()
        self._sources.close()

    def _follow_tail(self, tail: Tail, once: bool) -> None:
        """Epochs of whatever the sources' topics have, until somebody asks to stop, or with `once` until the end that they have now."""
        if once:
            tail.stop_at_end()
        try:
            while not self._stop.is_set() and self._ahead.failure is None and self._behind.failure is None:
                began_s = self._clock.monotonic_s()
                ends = tail.ends(self.head.sources)
                if ends:
                    is_small = self.take(tail, ends)
                    least_s = self._small_trigger_s if is_small else self._trigger_s
                    if not once and (left_s := began_s + least_s - self._clock.monotonic_s()) > 0:
                        self._stop.wait(left_s)
                elif once and not tail.is_silent:
                    break
                else:
                    if self._ahead.is_idle:
                        self._idle()
                    tail.wait(self.head.sources, POLL_S)
        finally:
            for each in (self._ahead, self._behind):
                try:
                    each.settle()
                except BaseException as error:
                    self._failure = self._failure or error

    def _follow_nothing(self, once: bool) -> None:
        """Of a pipeline without sources only the number of units changes."""
        while not once and not self._stop.is_set():
            self._idle()
            self._stop.wait(POLL_S)

    def take(self, tail: Tail, ends: Mapping[str, Any]) -> bool:
        """One epoch from where the sources stand up to `ends`; whether it was one of few rows, which is committed on return. Another one is
        planned, and begun when the one before is committed."""
        parts = {name: tail.ranges(name, self.head.sources.get(name), end) for name, end in ends.items()}
        counted = [tail.entries(name, each) for name, each in parts.items()]
        known = [each for each in counted if each is not None]
        self._size.entries = sum(known) if len(known) == len(counted) else None
        batch = Batch(self.head.batch_id + 1, self._now_us(), offsets=ends)
        if self._kept is not None and self._size.is_small:
            dead = {name: self._dead_letters(name, lambda n=name: self._raw_range(tail, n, ends)) for name in ends}  # type: ignore[misc]
            sends = {name: send for name, send in dead.items() if send is not None}
            self._ahead.settle()
            if not self._stop.is_set():
                self._prepared(self._spark, replace(batch, ranges=parts, dead_letters=sends))()
            return True
        kept: list[DataFrame] = []
        try:
            mapping = self._mapping()
            own = self._program.read_by_units & ends.keys()
            tasks = self._spark.sparkContext.defaultParallelism
            native = self._runner.native_reads(self._sources, tail, self.head.sources, ends, tasks)
            raw = {
                name: self._raw_range(tail, name, ends, mapping if name in own else None)
                for name in ends
                if name not in native
            }
            kept += [frame.persist() for name, frame in raw.items() if self._program.source_readers.get(name, 0) > 1]
            decoding: dict[str, Observation] = {}

            def decoded(name: str) -> DataFrame:
                if self._is_lenient(name):
                    decoding[name] = Observation()
                frame = raw[name] if name in raw else self.frame_of(name, native[name].parts)
                return self._sources.decoded(frame, self._program.sources[name], decoding.get(name))

            frames = {name: decoded(name) for name in raw}
            dead = {name: self._dead_letters(name, lambda n=name: raw[n]) for name in raw}  # type: ignore[misc]
            sends = {name: send for name, send in dead.items() if send is not None}
            batch = replace(batch, frames=frames, decoding=decoding, dead_letters=sends, own=frozenset(own))
            epoch = self._prepared(
                self._spark,
                replace(batch, native=native, decoded=decoded),
                kept,
                mapping,
            )
            self._ahead.settle()
        except BaseException:
            _unpersist(kept)
            raise
        if self._stop.is_set():
            _unpersist(kept)
        else:
            self._ahead.begin(epoch)
        return False

    def frame_of(self, name: str, pieces: Sequence[Any]) -> DataFrame:
        """The connector's columns of pieces of a source."""
        return pieces_frame(self._spark, pieces, *self._sources.reading(self._program.sources[name]))

    def _dead_letters(self, name: str, raw: Callable[[], DataFrame]) -> DeadLetters | None:
        source = self._program.sources[name]
        if not sends_dead_letters(source) or name not in self._program.source_readers:
            return None
        return self._sources.dead_letters(raw(), source)

    def _raw_range(
        self, tail: Tail, name: str, ends: Mapping[str, Any], mapping: VnodeMapping | None = None
    ) -> DataFrame:
        """The connector's columns of a source from where it stands, in tasks of their own; with `mapping` in a task for each unit, which
        reads the messages of its vnodes."""
        if mapping is not None:
            parts = tail.ranges(name, self.head.sources.get(name), ends[name])
            return own_frame(self._spark, parts, mapping, *self._sources.reading(self._program.sources[name]))
        return self.frame_of(name, tail.pieces(name, self.head.sources.get(name), ends[name]))

    def _follow(self, once: bool) -> None:
        """The streaming query, until it ends or somebody asks to stop. What an epoch failed with is in `_failure`, too."""
        query = self._query(once)
        try:
            while not query.awaitTermination(POLL_S):
                if self._stop.is_set() or self._ahead.failure is not None:
                    break
                if self._lock.acquire(blocking=False):
                    try:
                        if self._ahead.is_idle:
                            self._idle()
                    finally:
                        self._lock.release()
        finally:
            with self._lock:  # no batch is half way
                query.stop()
                try:
                    self._ahead.settle()
                except BaseException as error:
                    self._failure = self._failure or error

    def _query(self, once: bool) -> StreamingQuery:
        assert self._checkpoint is not None
        frame = self._sources.stream(self._spark, self._program.sources, self.manifest.sources)
        writer = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(self._checkpoint.path))
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(self._trigger_s * 1000)} milliseconds").start()

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        """Called by the streaming engine, in a thread of its own."""
        with self._lock:
            if self._stop.is_set():
                return
            try:
                self.batch(frame, batch_id)
            except BaseException as error:
                self._failure = error
                raise

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """Begin one micro-batch as one epoch, when the one before is committed; unless there was one for it."""
        if self.head.batch_id >= batch_id:
            return
        assert self._checkpoint is not None
        offsets = self._checkpoint.offsets(batch_id)
        moved = [name for name, at in offsets.items() if at != self.head.sources.get(name)]
        if not moved:  # as the first batch of a query may be
            self._idle()
            return
        kept = frame.persist() if self._is_read_twice(moved) else None
        try:
            decoding = {name: Observation() for name in moved if self._is_lenient(name)}
            frames = {name: self._rows(frame, name, decoding.get(name)) for name in moved}
            dead = {name: self._dead_letters(name, lambda n=name: self._raw(frame, n)) for name in moved}  # type: ignore[misc]
            sends = {name: send for name, send in dead.items() if send is not None}
            batch = Batch(batch_id, self._now_us(), frames, offsets, decoding=decoding, dead_letters=sends)
            epoch = self._prepared(frame.sparkSession, batch, [kept] if kept is not None else [])
            self._ahead.settle()
        except BaseException:
            if kept is not None:
                kept.unpersist()
            raise
        if self._stop.is_set():
            if kept is not None:
                kept.unpersist()
            return
        self._ahead.begin(epoch)

    def _prepared(
        self, spark: SparkSession, batch: Batch, kept: Sequence[DataFrame] = (), mapping: VnodeMapping | None = None
    ) -> Callable[[], None]:
        """What runs the epoch. `kept`: rows that Spark holds for it. `mapping`: the one by which units read their rows, if they do."""
        began = self._clock.monotonic_s()
        mapping = self._mapping() if mapping is None else mapping
        planned_s = self._clock.monotonic_s() - began
        prepared = self._runner.prepare(spark, batch, mapping)
        self._head = self.head.after(batch, mapping)

        def epoch() -> None:
            try:
                self._epoch(spark, prepared, planned_s)
            finally:
                self.epoch_began_s = None
                _unpersist(kept)

        return epoch

    def _epoch(self, spark: SparkSession, prepared: Prepared, planned_s: float) -> None:
        self.epoch_began_s = self._clock.monotonic_s()
        prepared = replace(prepared, batch=replace(prepared.batch, sinks=self._delivery.positions))
        self._manifest, report = self._runner.run(spark, self.manifest, prepared)
        self._size.learn(report.rows_in)
        if report.vnodes_moved:
            # Where there are rows as well the epoch would have been there without the change.
            alone_s = 0.0 if report.rows_in else report.duration_s.get("total", 0.0)
            report = replace(report, pause_s=planned_s + alone_s)
        self._units = None if self._units == len(prepared.mapping.units) else self._units
        manifest = self.manifest
        self._behind.settle()
        if prepared.batch.ranges is None or report.vnodes_moved:
            self._follow_up(manifest, report)
        else:
            self._behind.begin(lambda: self._follow_up(manifest, report))
        self.epoch_began_s = None

    def _follow_up(self, manifest: Manifest, report: EpochReport) -> None:
        """What is to be done once an epoch is committed."""
        self._delivery.deliver(manifest)
        self._acknowledge(manifest)
        self._collect()
        if self._on_epoch is not None:
            self._on_epoch(report)

    def _collect(self) -> None:
        """Files that are not needed any more: now and then; where epochs follow each other closely in a thread beside them."""
        if self._collector is None:
            if self.manifest.epoch % EPOCHS_PER_COLLECTION == 0:
                gc.collect(self._files, self._clock)
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._collected_s >= COLLECTION_S and self._collector.is_idle:
            self._collected_s = now_s
            self._collector.begin(lambda: gc.collect(self._files, self._clock))
        elif self._collector.failure is not None:
            self._collector.settle()

    def _acknowledge(self, manifest: Manifest) -> None:
        for name, source in self._program.sources.items():
            self._sources.acknowledge(source, manifest.sources[name])

    def _backfill(self) -> None:
        """New views over what was there before them."""
        batch = backfill_batch(self._spark, self._files, self._program, self._sources, self.manifest, self._now_us())
        if batch is not None:
            try:
                with self._lock:
                    self._prepared(self._spark, batch)()
            except Exception as error:
                raise self._failed(error) from error

    def _idle(self) -> None:
        """What is to be done without rows: close windows whose time has come, change the number of units."""
        self._ahead.settle()
        mapping = self._mapping()
        if self._runner.is_settled(self.manifest) and mapping.to_json() == self.manifest.mapping:
            return
        self._prepared(self._spark, Batch(self.manifest.batch_id, self._now_us()))()

    def _mapping(self) -> VnodeMapping:
        mapping = self.head.mapping
        if self._units is None or self._units == len(mapping.units):
            return mapping
        return mapping.rescale(self._units)

    def _is_lenient(self, name: str) -> bool:
        """Whether messages of a source may be undecodable."""
        return name in self._program.source_readers and decode_policy(self._program.sources[name]) != "strict"

    def _raw(self, frame: DataFrame, name: str) -> DataFrame:
        """A source's part of a batch."""
        return frame.filter(F.col(SOURCE) == name).drop(SOURCE) if len(self._program.sources) > 1 else frame

    def _rows(self, frame: DataFrame, name: str, counted: Observation | None) -> DataFrame:
        return self._sources.decoded(self._raw(frame, name), self._program.sources[name], counted)

    def _is_read_twice(self, moved: list[str]) -> bool:
        return len(self._program.sources) > 1 or any(self._program.source_readers.get(name, 0) > 1 for name in moved)

    def _now_us(self) -> int:
        """Never before the last epoch's, whatever the clock does."""
        return max(self._clock.now_ms() * 1000, self.head.time_us)

    def _checkpoints(self) -> Path:
        if self._files.local:
            return Path(self._files.path("checkpoint"))
        return Path(mkdtemp(prefix="magnetar-checkpoint-"))

    def _failed(self, error: BaseException) -> BaseException:
        """The error of the epoch rather than what the streaming engine made of it."""
        return told(self._failure if self._failure is not None else error)


def _unpersist(kept: Sequence[DataFrame]) -> None:
    for frame in kept:
        frame.unpersist()


@dataclass(frozen=True)
class Head:
    """Where a pipeline stands once the last epoch that was begun is committed. `time_us`: when it began, by the wall clock."""

    batch_id: int
    sources: Mapping[str, Any]
    mapping: VnodeMapping
    time_us: int

    @staticmethod
    def of(manifest: Manifest) -> Head:
        mapping = VnodeMapping.from_json(manifest.mapping)
        return Head(manifest.batch_id, manifest.sources, mapping, manifest.created_ms * 1000)

    def after(self, batch: Batch, mapping: VnodeMapping) -> Head:
        """With one more epoch."""
        return Head(batch.batch_id, {**self.sources, **batch.offsets}, mapping, batch.time_us)


class OneAhead:
    """At most one epoch runs. All methods but `failure` are for one thread at a time."""

    def __init__(self, name: str = "epoch") -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._running: Future[object] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether none runs; one that failed counts as running until somebody has settled it."""
        return self._running is None or (self._running.done() and self._running.exception() is None)

    @property
    def failure(self) -> BaseException | None:
        """What the last epoch failed with, if it has."""
        running = self._running
        return running.exception() if running is not None and running.done() else None

    def settle(self) -> None:
        """Wait for the epoch that runs. Raises what it failed with."""
        if self._running is not None:
            self._running.result()

    def begin(self, epoch: Callable[[], object]) -> None:
        """In the other thread. After `settle`."""
        assert self.is_idle, "one epoch at a time"
        self._running = self._thread.submit(epoch)

    def close(self) -> None:
        """Waits for the epoch that runs."""
        self._thread.shutdown()
