"""The publishing side of one topic: registered producers, deduplication, what refuses new entries, counters."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable

from magnetar.base.clock import Clock
from magnetar.base.errors import BrokerError, MagnetarError
from magnetar.broker.errors import (
    ChecksumError,
    NotAllowedError,
    PersistenceRefusedError,
    ProducerBusyError,
    ServiceNotReadyError,
    TopicTerminatedError,
)
from magnetar.broker.replicators.names import sequence_name
from magnetar.broker.topics.access_modes import Admission, Producers
from magnetar.broker.topics.deduplication import SEQUENCE_ID_MAX, Deduplicator, DuplicateStatus
from magnetar.broker.topics.producer import AccessMode, Producer
from magnetar.broker.topics.publish import NO_ID, MarkerOp, PublishOp, PublishOwner
from magnetar.broker.topics.publish_gate import PublishGate
from magnetar.managed_ledger.errors import ManagedLedgerTerminatedError
from magnetar.managed_ledger.ports import RunDone
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.headers import parse_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

WRITE_LATENCY_BOUNDS_MS = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
"""Pulsar's buckets of `pulsar_storage_write_latency`; one more for what is slower."""

ENTRY_SIZE_BOUNDS_BYTES = (128, 512, 1024, 2048, 4096, 16384, 102400, 1048576)
"""Pulsar's buckets of `pulsar_entry_size`; one more for what is larger."""

DRAIN_TIMEOUT_S = 30.0
"""How long a producer that comes back waits for what its former connection left unanswered; then it is told to try again."""


QUIESCE_TIMEOUT_S = 1.0
"""How long a topic that moves waits for its last receipts; what has none by then the client sends again, elsewhere."""


class PublishCounters:
    """Plain ints, read at scrape time. Rates are computed from them by `stats`."""

    __slots__ = ("bytes_in", "entries_in", "entry_size_buckets", "latency_buckets", "latency_total_ms", "messages_in")

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self.latency_total_ms = 0.0
        self.latency_buckets = [0] * (len(WRITE_LATENCY_BOUNDS_MS) + 1)
        self.entry_size_buckets = [0] * (len(ENTRY_SIZE_BOUNDS_BYTES) + 1)

    def add(self, op: PublishOp, latency_ms: float) -> None:
        """Each entry of a run has the run's latency."""
        sizes = op.sizes
        count = len(sizes)
        self.messages_in += op.num_messages
        self.bytes_in += op.data_bytes
        self.entries_in += count
        self.latency_total_ms += latency_ms * count
        self.latency_buckets[bisect_left(WRITE_LATENCY_BOUNDS_MS, latency_ms)] += count
        smallest = bisect_left(ENTRY_SIZE_BOUNDS_BYTES, min(sizes))
        if count == 1 or smallest == bisect_left(ENTRY_SIZE_BOUNDS_BYTES, max(sizes)):
            self.entry_size_buckets[smallest] += count
            return
        for size in sizes:
            self.entry_size_buckets[bisect_left(ENTRY_SIZE_BOUNDS_BYTES, size)] += 1


class Publishers:
    """Implements `PublishTarget`. `append` stores entries and answers through their callback, in append order."""

    def __init__(
        self, *, topic_name: str, append: Callable[[list[bytes], RunDone], None], clock: Clock, topic_epoch: int = 0
    ) -> None:
        self._topic_name = topic_name
        self._append = append
        self._clock = clock
        self._monotonic_s = clock.monotonic_s
        self.producers = Producers()
        self.counters = PublishCounters()
        self.topic_epoch = topic_epoch
        self.store_epoch: Callable[[int], Awaitable[None]] = _forget_epoch
        self.append_failed: Callable[[], None] = _nothing_to_do
        self._failure_announced = False
        self.dedup: Deduplicator | None = None
        self.dedup_producers = True
        """False: only what other clusters send is deduplicated."""
        self.deduplicates = False
        """Both of that, for SEND."""
        self.dedup_advanced: Callable[[PublishOp], None] = lambda op: None
        self.marker_stored: Callable[[bytes, Position], None] = _nobody_told
        """Called with each marker that a replicator brought, once it is in the topic."""
        self.refusal: BrokerError | None = None
        self.review: Callable[[], Awaitable[None]] = _nothing_to_review
        """Called before a producer registers: sets `refusal` to what holds now."""
        self.gate: PublishGate | None = None
        self.closed = False
        """The topic is leaving memory: who asked for it before and registers now has to ask again."""
        self._draining: dict[str, Producer] = {}
        self._drained: asyncio.Event | None = None
        """While somebody waits, or has waited."""

    # ---- The message path

    def publish(self, op: PublishOp, run: list[bytes], is_chunk: bool) -> None:
        gate = self.gate
        if gate is not None and not gate.admit(op, run[0], is_chunk):
            return
        dedup = self.dedup
        if (
            dedup is not None
            and (self.dedup_producers or op.positioned)
            and not self._admit(dedup, op, run[0], is_chunk)
        ):
            return
        op.started_s = self._monotonic_s()
        self._append(run, op.done)

    def publish_marker(self, op: MarkerOp, data: bytes) -> None:
        """Neither rates nor deduplication concern it."""

        def done(error: MagnetarError | None, ledger_id: int, entry_id: int, count: int) -> None:
            if error is None:
                self.marker_stored(data, Position(ledger_id, entry_id))
            op.done(error, ledger_id, entry_id, count)

        op.started_s = self._monotonic_s()
        self._append([data], done)

    def _admit(self, dedup: Deduplicator, op: PublishOp, data: bytes, is_chunk: bool) -> bool:
        """False when the entry is not to be stored; its answer then waits for its turn in the producer's queue."""
        name = op.sequence_name
        if not op.positioned:
            metadata = parse_metadata(data)
            if is_chunk:
                op.advances = metadata.chunk_id == metadata.num_chunks_from_msg - 1
            problem = _false_sequence(op, metadata)
            if problem:
                op.refuse(ChecksumError(problem))
                return False
        elif not dedup.is_plausible(name, op.last_sequence_id):
            op.refuse(NotAllowedError("the place in the other cluster's log is too far ahead of the last one"))
            return False
        if dedup.check(name, op.last_sequence_id) is DuplicateStatus.NEW:
            if op.advances:
                dedup.push(name, op.last_sequence_id)
            return True
        op.deduplicated = True
        op.done(None, NO_ID, NO_ID, op.entries)
        return False

    def published(self, op: PublishOp) -> None:
        dedup = self.dedup
        if dedup is not None and not op.marker:
            self._watermark(dedup, op)
        if op.error is None:
            if not op.deduplicated and not op.marker:
                self.counters.add(op, (self._monotonic_s() - op.started_s) * 1000)
        elif isinstance(op.error, ManagedLedgerTerminatedError):
            op.error = TopicTerminatedError(f"topic {self._topic_name} is terminated")
            # First the notice, then the error: the Go client forgets the producer at the error, and would not look at the notice.
            self.disconnect_all()
        elif not isinstance(op.error, BrokerError):
            op.error = PersistenceRefusedError(str(op.error))
            self._announce_failure()
        if self._draining and not op.producer.has_pending:
            self._forget_drained(op.producer)

    def _watermark(self, dedup: Deduplicator, op: PublishOp) -> None:
        name = op.sequence_name
        if not (self.dedup_producers or op.positioned):
            if op.error is None:
                self.dedup_advanced(op)  # what was stored needs no replay
        elif op.deduplicated:
            if op.error is None and not dedup.is_persisted(name, op.last_sequence_id):
                op.error = PersistenceRefusedError("the entry that this one repeats was not stored; send it again")
        elif op.error is not None:
            dedup.failed(name)
        elif op.advances:
            dedup.persist(name, op.last_sequence_id)
            self.dedup_advanced(op)

    def _announce_failure(self) -> None:
        """Called once for a burst of failures, after all of them have been answered."""
        if not self._failure_announced:
            self._failure_announced = True
            asyncio.get_running_loop().call_soon(self._failed)

    def _failed(self) -> None:
        self._failure_announced = False
        self.append_failed()

    def last_sequence_id(self, producer_name: str) -> int:
        """-1 where producers are not deduplicated."""
        dedup = self.dedup
        return dedup.last_sequence_id(producer_name) if dedup is not None and self.dedup_producers else -1

    def place_of(self, source: str) -> tuple[int, int] | None:
        """The last place of another cluster's log that is stored here; None if nothing is. `source`: see `names.source_name`."""
        return self.dedup.place_of(sequence_name(source)) if self.dedup is not None else None

    # ---- Producers come and go

    async def register(self, producer: Producer) -> bool:
        """Add a producer; False when it has to wait for exclusive access (then `wait_for_promotion`).

        Raises ProducerBusyError, ProducerFencedError, ServiceNotReadyError once the topic is closed, or what `refusal` holds at the moment.
        """
        await self.review()
        self._check_open()
        if self.refusal is not None:
            raise self.refusal
        await self._settle_name_clash(producer)
        await self._wait_drained(producer.name)
        self._check_open()
        epoch = self.topic_epoch
        admission = self.producers.add(producer, epoch)
        self._apply(admission)
        if self.topic_epoch != epoch:
            await self.store_epoch(
                self.topic_epoch
            )  # before the client learns of it: a restart must not hand it out again
        return producer in admission.ready

    def _check_open(self) -> None:
        if self.closed:
            raise ServiceNotReadyError(f"{self._topic_name} was closed meanwhile: look it up again")

    async def _settle_name_clash(self, producer: Producer) -> None:
        """The same client coming back replaces itself; a stranger with a live namesake is refused."""
        former = self.producers.namesake(producer)
        if former is None:
            return
        if not producer.replaces(former) and await former.channel.probe():
            raise ProducerBusyError(f"Producer with name '{former.name}' is already connected to topic")
        if self.producers.namesake(producer) is former:
            former.closed = True
            self.remove(former)

    async def _wait_drained(self, name: str) -> None:
        """Entries of the former connection must be answered by the storage first, or a resend could overtake them."""
        if name not in self._draining:
            return
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while name in self._draining:
                    await self._next_drained()
        except TimeoutError:
            raise ProducerBusyError(f"entries of the former producer '{name}' still wait for the storage") from None

    def remove(self, producer: Producer) -> None:
        """A producer left: what it has under way is finished by the storage all the same."""
        if producer.pending:
            self._draining[producer.name] = producer
        self._apply(self.producers.remove(producer))
        producer.settle_access()

    async def wait_for_promotion(self, producer: Producer) -> bool:
        """Wait for exclusive access: True once the producer has it, False when it was removed or fenced meanwhile."""
        await producer.access_settled()
        return self.producers.namesake(producer) is producer

    async def quiesce(self) -> None:
        """Take nothing more and wait for the receipts of what is under way: a client that moves then has nothing to send twice."""
        leaving = list(self.producers.all)
        for producer in leaving:
            producer.channel.ignore_producer(producer.producer_id)
            if producer.pending:
                self._draining[producer.name] = producer
        try:
            async with asyncio.timeout(QUIESCE_TIMEOUT_S):
                while any(producer.pending for producer in leaving):
                    await self._next_drained()
        except TimeoutError:
            return

    def disconnect_all(self) -> None:
        """Close every producer from the server's side; the clients register anew."""
        for producer in [*self.producers.all, *self.producers.waiting, *self.producers.remote]:
            self.disconnect(producer)

    def disconnect_unencrypted(self) -> None:
        """Encryption is required from now on: those that do not encrypt are refused when they come back."""
        for producer in [*self.producers.all, *self.producers.waiting]:
            if not producer.encrypted:
                self.disconnect(producer)

    def disconnect(self, producer: Producer) -> None:
        """Close it from the server's side: the client registers anew, and sends again what has no receipt."""
        producer.disconnect()
        self.remove(producer)

    def forget_owner(self) -> None:
        """The topic is closed and has nobody connected: what is done for it here concerns it no more, and no circle is left."""
        self.store_epoch, self.append_failed = _forget_epoch, _nothing_to_do
        self.review, self.marker_stored = _nothing_to_review, _nobody_told

    def _apply(self, admission: Admission) -> None:
        for fenced in admission.fenced:
            fenced.disconnect()
            if fenced.pending:
                self._draining[fenced.name] = fenced
            fenced.settle_access()
        for producer in admission.ready:
            if producer.access_mode is not AccessMode.SHARED:
                if producer.topic_epoch is None:
                    self.topic_epoch += 1
                producer.topic_epoch = self.topic_epoch
            producer.settle_access()

    def _forget_drained(self, producer: PublishOwner) -> None:
        if self._draining.get(producer.name) is producer:
            del self._draining[producer.name]
            if self._drained is not None:
                self._drained.set()

    async def _next_drained(self) -> None:
        """Wait until the entries of one more producer that left are answered."""
        self._drained = self._drained or asyncio.Event()
        self._drained.clear()
        await self._drained.wait()


async def _nothing_to_review() -> None:
    pass


def _nothing_to_do() -> None:
    pass


def _nobody_told(data: bytes, position: Position) -> None:
    pass


async def _forget_epoch(epoch: int) -> None:
    """Non-persistent topics have nowhere to keep it."""


def _false_sequence(op: PublishOp, metadata: MessageMetadata) -> str:
    """Why an entry would be replayed after a restart as somebody else's or as a later one; empty when it would not.

    Watermarks come from the command while the topic is loaded, and from the metadata of stored entries when it is loaded again.
    """
    last = op.last_sequence_id
    if last > SEQUENCE_ID_MAX:
        return f"a sequence id is at most {SEQUENCE_ID_MAX}"
    if op.replicated:
        return ""
    if metadata.sequence_id > last or metadata.highest_sequence_id > last:
        return "the message has a higher sequence id than its frame says"
    return ""
