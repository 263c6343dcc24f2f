"""One client connection: bytes to frames, frames to handlers, answers to bytes, and back-pressure in both directions.

Input: reading pauses while too many published entries wait for the disk, while frames are left over from a burst, or while too
many control requests wait or are under way. Output: while the connection's unsent bytes are above the high mark a consumer is not
sent more, and control requests wait; a client that never reads is cut off at the hard limit. Output alone never pauses reading: a
client may be blocked writing its acknowledgements, and would never get to read. One that has so many control requests
without having read the answers to earlier ones is not read until it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from magnetar.base import limits
from magnetar.base.errors import MagnetarError
from magnetar.base.network import AdmittedProtocol
from magnetar.base.tasks import REPORTED, in_turns
from magnetar.broker.auth.principal import Principal
from magnetar.broker.auth.refresh import CredentialWatch
from magnetar.broker.connection.context import BrokerContext
from magnetar.broker.connection.error_codes import answer_code_of, answer_text_of, code_of, send_code_of, text_of
from magnetar.broker.connection.publishing import Publisher
from magnetar.broker.connection.requests import ControlRequests
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.registry import AnyTopic
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.frames import Frame, FrameDecoder, FrameError
from magnetar.wire.pulsar.frequent import MessageHeads, StoredEntry, send_receipts
from magnetar.wire.pulsar.parsers import FREQUENT_COMMANDS, parse_command, parse_frequent_command
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand


class Watch(Protocol):
    """Something that a client follows until it, or its connection, ends."""

    def end(self) -> None:
        """Called once, when the connection is gone."""
        ...


class Probes:
    """Those that wait to learn if a client is alive: any byte from it answers all of them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[bool]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def settle(self, alive: bool) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(alive)
        self._waiting.clear()

    async def sign_of_life(self) -> bool:
        """False when none came within PROBE_TIMEOUT_S."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(limits.PROBE_TIMEOUT_S):
                return await waiter
        except TimeoutError:
            return False


logger = logging.getLogger(__name__)

Handler = Callable[["Session", BaseCommand, bytes], None]

RunHandler = Callable[["Session", deque[Frame], int], int]
"""`handler(session, frames, entries_max)` takes up to so many frames off the beginning and answers how many: 0 leaves the first one to its
`Handler`. Found by the first two bytes of the first command: the tag of its type, and its type."""

_PAUSED_BY_PUBLISHES = 1
_PAUSED_BY_FRAMES = 2
_PAUSED_BY_REQUESTS = 4
_PAUSED_BY_BUDGET = 8
_PAUSED_BY_RATE = 16
_PAUSED_BY_HANDSHAKE = 32
_PAUSED_BY_OTHERS = 64
_NO_POSITION = -1


class Session(AdmittedProtocol):
    """Implements `ProducerChannel` for its producers."""

    def __init__(
        self,
        context: BrokerContext,
        before_connect: dict[int, Handler],
        routes: dict[int, Handler],
        runs: dict[bytes, RunHandler],
        on_change: Callable[[Session, bool], object] = lambda session, is_open: None,
    ) -> None:
        self.context = context
        self._on_change = on_change
        self._routes = before_connect
        self._routes_connected = routes
        self._runs: dict[bytes, RunHandler] = {}
        self._runs_connected = runs
        # A stranger's frame has no payload: its total is bounded like its command, so nobody parks megabytes here unasked.
        self._decoder = FrameDecoder(limits.COMMAND_BYTES_BEFORE_AUTH_MAX + 4, limits.COMMAND_BYTES_BEFORE_AUTH_MAX)
        self._budget = context.budget
        self._publisher: Publisher | None = None
        self._publishes_max = context.config.settings.max_pending_publish_requests_per_connection
        self._frames: deque[Frame] = deque()
        self._process_scheduled = False
        self._now_s = context.clock.monotonic_s
        self._paused_by = 0
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._answer_bytes = 0
        self._flushed_bytes = 0
        self._flush_scheduled = False
        self._write_paused = False
        self._output_refused = False
        self._heard = True
        self._ping_sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._probes = Probes()
        self._rate_pauses = 0
        self.pending_publishes = 0
        self.pending_publish_bytes = 0
        self.connected = self.greeted = False
        self.closed = False
        self.principal: Principal | None = None
        self.credential_watch: CredentialWatch | None = None
        self.address = ""
        self.client_version = ""
        self.protocol_version = 0
        self.replication_by_place = False  # a replicator may expect places in its receipts
        self.producers: dict[int, Producer] = {}
        self.producer_topics: dict[int, AnyTopic] = {}
        self.closed_producers: OrderedDict[int, None] = OrderedDict()
        self.consumers: dict[int, Consumer] = {}
        self.unsubscribing: set[int] = set()
        """Consumers that are answered SUCCESS when they are gone, and need not be told besides that they were closed."""
        self.consumer_topics: dict[int, AnyTopic] = {}
        self.opening: set[tuple[str, int]] = set()
        self.watches: dict[tuple[str, int], Watch] = {}
        """What is pushed to this client besides messages, by kind and the client's number for it."""

    # ---- Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(limits.CONNECTION_OUTPUT_HIGH_BYTES, limits.CONNECTION_OUTPUT_LOW_BYTES)
        self.ssl_object: Any = transport.get_extra_info("ssl_object")
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self.address = f"/{peer[0]}:{peer[1]}"
        self.requests = ControlRequests(
            self.context.turns,
            self.address,
            self._unread_answers,
            lambda: self._pause(_PAUSED_BY_REQUESTS),
            lambda: self._resume(_PAUSED_BY_REQUESTS),
        )
        self.context.counters.opened += 1
        self.context.counters.active += 1
        self._on_change(self, True)
        self._timer = self._loop.call_later(limits.HANDSHAKE_TIMEOUT_S, self._handshake_timed_out)

    def handshake_done(self, client_version: str, protocol_version: int, *, known: bool = True) -> None:
        """CONNECT was answered. Commands are looked at; unless the client is `known` each is refused and strangers' limits stay."""
        self.greeted, self.connected = True, known
        self._routes, self._runs = self._routes_connected, self._runs_connected
        self.client_version = client_version
        self.protocol_version = protocol_version
        if not known:
            return
        self._decoder.frame_bytes_max = self.context.config.settings.max_message_size + limits.FRAME_PADDING_BYTES
        self._decoder.command_bytes_max = limits.COMMAND_BYTES_MAX
        if self.ticket is not None:
            self.ticket.settle()
        self._restart_timer()
        logger.info("client connected address=%s version=%s", self.address, client_version)

    def in_handshake(self, begins: bool) -> None:
        """While a credential waits to be looked at, nothing behind CONNECT is."""
        (self._pause if begins else self._resume)(_PAUSED_BY_HANDSHAKE)

    def _handshake_timed_out(self) -> None:
        if not self.connected:
            self.close(f"no accepted CONNECT within {limits.HANDSHAKE_TIMEOUT_S:.0f} s")

    def _restart_timer(self, part: float = 1.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self.context.config.settings.keep_alive_interval_s * part, self._keep_alive)

    def _keep_alive(self) -> None:
        held = bool(self._paused_by & _PAUSED_BY_RATE)  # then nothing is read: its silence means nothing, ours would
        if not self._heard and self._ping_sent and not held:
            self.close(f"silent for {2 * self.context.config.settings.keep_alive_interval_s:.0f} s")
            return
        self._ping_sent = not self._heard
        if self._ping_sent or held:
            self.write(commands.ping())
        self._heard = held
        self._restart_timer(0.5 if held else 1.0)

    async def probe(self) -> bool:
        """True if the client answers: PING it and wait briefly for any byte."""
        if self.closed or self._paused_by & _PAUSED_BY_RATE:
            return not self.closed
        self.write(commands.ping())
        alive = await self._probes.sign_of_life()
        if not alive:
            self.close("did not answer a PING while a client with the same producer name wants in")
        return alive

    def close(self, reason: str = "") -> None:
        """Send what is buffered, then close. `reason` is logged once."""
        if self.closed:
            return
        if reason:
            logger.info("connection closed address=%s reason=%s", self.address, reason)
        self._flush()
        self._transport.close()
        self._forget_everything()
        # A peer that never reads would keep its unsent output, and the descriptor, for ever.
        self._timer = self._loop.call_later(limits.CLOSE_TIMEOUT_S, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()

    def evict(self) -> None:
        """A stranger's: somebody new needs the place."""
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget_everything()
        self.requests.forget()
        if self._timer is not None:
            self._timer.cancel()
        self.context.counters.active -= 1
        self._on_change(self, False)

    def _forget_everything(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.credential_watch is not None:
            self.credential_watch.cancel()
        self._probes.settle(False)
        for watch in list(self.watches.values()):
            watch.end()
        self.watches.clear()
        self._frames.clear()
        self.requests.close()
        producers = [(self.producer_topics[each], producer) for each, producer in self.producers.items()]
        for _, producer in producers:
            producer.closed = True
        for topic, producer in producers[: limits.PRODUCERS_REMOVED_PER_TURN]:
            topic.publishers.remove(producer)
        if left := producers[limits.PRODUCERS_REMOVED_PER_TURN :]:
            self.context.scope.spawn(_remove_in_turns(left), "producers left", REPORTED)
        self.producers.clear()
        if self._publisher is not None:
            self._budget.leave(self._publisher)
        for consumer_id, consumer in list(self.consumers.items()):
            self.context.scope.spawn(
                self._leave(self.consumer_topics[consumer_id], consumer), "consumer left", REPORTED
            )
        self.consumers.clear()

    async def _leave(self, topic: AnyTopic, consumer: Consumer) -> None:
        """Removes a consumer without waiting for a turn, so that others get its place at once."""
        try:
            await topic.consumer_left(consumer)
        except MagnetarError as error:
            logger.warning("consumer not removed address=%s error=%s", self.address, error)
        except Exception:
            logger.exception("consumer not removed address=%s", self.address)

    # ---- Input

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._probes:
            self._probes.settle(True)
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self.context.counters.refused_frames += 1
            self.fail(error)
            return
        self._frames.extend(frames)
        if not self._process_scheduled:
            self._process()

    def _process(self) -> None:
        """One turn: it ends with the frames, with the turn's time, or with a reason not to go on."""
        self._process_scheduled = False
        frames = self._frames
        busy = self.requests.share.busy
        end_s = self._now_s() + (limits.FRAMES_TURN_S / busy if busy > 1 else limits.FRAMES_TURN_S)
        left, until_look = limits.FRAMES_PER_CALLBACK_MAX, limits.FRAMES_PER_LOOK_AT_CLOCK
        run_max = limits.RUN_ENTRIES_MAX if busy <= 1 else max(limits.RUN_ENTRIES_MAX // busy, until_look)
        try:
            while frames and self._paused_by & ~_PAUSED_BY_FRAMES == 0:
                if until_look <= 0:
                    if left <= 0 or self._now_s() >= end_s:
                        self._process_scheduled = True
                        self._pause(_PAUSED_BY_FRAMES)
                        self.requests.set_busy(True)
                        self._loop.call_soon(self._process)
                        return
                    until_look = limits.FRAMES_PER_LOOK_AT_CLOCK
                kind = frames[0][0][:2]
                run = self._runs.get(kind)
                taken = 0 if run is None else run(self, frames, run_max)
                if not taken:
                    command_bytes, rest = frames.popleft()
                    command = (parse_frequent_command if kind in FREQUENT_COMMANDS else parse_command)(command_bytes)
                    self._routes[command.type](self, command, rest)
                    taken = 1
                until_look -= taken
                left -= taken
        except (DecodeError, KeyError) as error:
            self.context.counters.refused_frames += 1
            self.fail(
                FrameError(f"not a command that a client may send, or text that is not UTF-8 ({type(error).__name__})")
            )
            return
        except MagnetarError as error:
            self.fail(error)
            return
        except Exception as error:
            logger.exception("a handler failed address=%s", self.address)
            self.fail(error)
            return
        self.requests.set_busy(False)
        # With frames left over no more are read, however often what stopped them comes and goes.
        (self._pause if frames else self._resume)(_PAUSED_BY_FRAMES)

    def fail(self, error: BaseException) -> None:
        """A connection-level error: told with the request id of nobody, then the connection ends."""
        if not self.closed:
            self.write(commands.error(commands.NO_REQUEST_ID, code_of(error), text_of(error)))
            self.close(text_of(error))

    def _pause(self, reason: int) -> None:
        if not self._paused_by and not self.closed:
            self._transport.pause_reading()
        self._paused_by |= reason

    def _resume(self, reason: int) -> None:
        if not self._paused_by & reason:
            return
        self._paused_by &= ~reason
        if self.closed:
            return
        if not self._paused_by:
            self._transport.resume_reading()
        # Frames left over are handled although they are themselves a reason not to read more: only their end clears it.
        if self._frames and not self._process_scheduled and self._paused_by & ~_PAUSED_BY_FRAMES == 0:
            self._process_scheduled = True
            self._loop.call_soon(self._process)

    # ---- Control requests

    def spawn(self, work: Coroutine[Any, Any, None], name: str, answer_bytes: int = limits.SMALL_ANSWER_BYTES) -> None:
        """Run a control request when its turn comes. Its errors are answered by itself or logged."""
        self.requests.spawn(work, name, answer_bytes)

    def request(self, work: Coroutine[Any, Any, None], request_id: int, name: str) -> None:
        """Like `spawn`, for requests whose failure is answered with ERROR."""
        self.requests.spawn(self._answered(work, request_id), name, limits.SMALL_ANSWER_BYTES, work)

    async def _answered(self, work: Coroutine[Any, Any, None], request_id: int) -> None:
        try:
            await work
        except Exception as error:
            if not isinstance(error, MagnetarError):
                logger.exception("request failed address=%s", self.address)
            self.write(
                commands.error(
                    request_id, answer_code_of(error, self.client_version), answer_text_of(error, self.client_version)
                )
            )

    # ---- Output

    @property
    def output_open(self) -> bool:
        """True if consumers may be sent more."""
        if self._write_paused or self._output_bytes >= limits.CONNECTION_OUTPUT_HIGH_BYTES or self.closed:
            self._output_refused = True
            return False
        return True

    def write(self, data: bytes) -> None:
        """Append to the output; one socket write per loop tick. Nothing is kept for a client that is gone."""
        if self.closed:
            return
        self._output.append(data)
        size_bytes = len(data)
        self._output_bytes += size_bytes
        self._answer_bytes += size_bytes
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_message(self, header: bytes, data: bytes) -> None:
        """A MESSAGE frame in two pieces."""
        output = self._output
        output.append(header)
        output.append(data)
        self._output_bytes += len(header) + len(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_messages(self, heads: MessageHeads, entries: Sequence[StoredEntry]) -> None:
        """MESSAGE frames of entries that go out whole and for the first time."""
        self._output_bytes += heads.append_frames(entries, self._output)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.closed or not self._output:
            return
        data = b"".join(self._output)
        self._output.clear()
        self._flushed_bytes += self._output_bytes
        self._output_bytes = 0
        self._transport.write(data)
        if self._flushed_bytes >= limits.UNREAD_ANSWERS_COUNTED_BYTES_MIN and not self._is_read():
            logger.warning("client does not read its answers, connection aborted address=%s", self.address)
            self._transport.abort()
            return
        if self._output_refused and not self._write_paused:
            self._announce_room()

    def _is_read(self) -> bool:
        """False for a client that leaves too much unread. Asked once for so many bytes of output."""
        self._flushed_bytes = 0
        if self._write_paused and self._transport.get_write_buffer_size() > limits.CONNECTION_OUTPUT_BYTES_MAX:
            return False
        unread_bytes = self._unread_answers()
        if unread_bytes < limits.UNREAD_ANSWERS_COUNTED_BYTES_MIN:
            return True
        return self.requests.answers_wait(unread_bytes)

    def _unread_answers(self) -> int:
        """Bytes of answers and receipts that wait here; messages do not count, dispatch stops for them."""
        unsent_bytes = self._transport.get_write_buffer_size() + self._output_bytes
        if not unsent_bytes:
            self._answer_bytes = 0
        return min(self._answer_bytes, unsent_bytes)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.requests.answers_were_read()
        self._announce_room()

    def _announce_room(self) -> None:
        self._output_refused = False
        for consumer in list(self.consumers.values()):
            if consumer.subscription is not None:
                consumer.subscription.channel_writable(consumer)

    # ---- ProducerChannel

    def publish_room(self, entries_max: int) -> tuple[int, int]:
        """Entries and bytes that the next run may have: until it reaches one of them, which its last entry does."""
        budget, publisher = self._budget, self._publisher
        entries = min(entries_max, self._publishes_max - self.pending_publishes)
        own_bytes = limits.CONNECTION_PENDING_PUBLISH_BYTES_MAX - self.pending_publish_bytes
        room_bytes = min(limits.RUN_BYTES_MAX, own_bytes, budget.limit_bytes - budget.pending_bytes)
        if budget.shared and publisher is not None:
            entries = min(entries, publisher.pending_max - publisher.pending)
            room_bytes = min(room_bytes, limits.PUBLISH_BYTES_BESIDE_OTHERS_MAX - publisher.pending_bytes)
        return entries, room_bytes

    def publish_started(self, count: int, size_bytes: int) -> None:
        """So many entries of so many bytes together are on their way to the disk."""
        self.pending_publishes += count
        self.pending_publish_bytes += size_bytes
        if (
            self.pending_publishes >= self._publishes_max
            or self.pending_publish_bytes >= limits.CONNECTION_PENDING_PUBLISH_BYTES_MAX
        ):
            self._pause(_PAUSED_BY_PUBLISHES)
        budget = self._budget
        publisher = self._publisher
        if publisher is None:
            publisher = self._publisher = budget.enter(self.requests.share.key)
        if budget.started(publisher, count, size_bytes) and not self._paused_by & _PAUSED_BY_OTHERS:
            self._pause(_PAUSED_BY_OTHERS)
            publisher.waiting.append(lambda: self._resume(_PAUSED_BY_OTHERS))
        budget.pending_bytes += size_bytes
        if budget.pending_bytes >= budget.limit_bytes and not self._paused_by & _PAUSED_BY_BUDGET:
            self._pause(_PAUSED_BY_BUDGET)
            budget.pause(lambda: self._resume(_PAUSED_BY_BUDGET))

    def _publish_ended(self, op: PublishOp) -> None:
        count, size_bytes = op.entries, op.data_bytes
        self._budget.release(size_bytes)
        assert self._publisher is not None, "what has not started does not end"
        self._budget.ended(self._publisher, count, size_bytes)
        self.pending_publishes -= count
        self.pending_publish_bytes -= size_bytes
        if (
            self._paused_by & _PAUSED_BY_PUBLISHES
            and self.pending_publishes <= self._publishes_max // 2
            and self.pending_publish_bytes <= limits.CONNECTION_PENDING_PUBLISH_BYTES_MAX // 2
        ):
            self._resume(_PAUSED_BY_PUBLISHES)

    def receipt(self, producer_id: int, op: PublishOp) -> None:
        self._publish_ended(op)
        if self.closed:
            return
        if op.ledger_id == _NO_POSITION:
            ledger_id = entry_id = commands.NO_POSITION
        else:
            ledger_id, entry_id = op.ledger_id, op.entry_id
        self.write(send_receipts(producer_id, op.sequence_ids, op.highest_sequence_ids, ledger_id, entry_id))

    def refuse(self, producer_id: int, op: PublishOp, error: MagnetarError) -> None:
        self._publish_ended(op)
        if self.closed:
            return
        code, text = send_code_of(error, self.client_version), text_of(error)
        for sequence_id in op.sequence_ids:
            self.write(commands.send_error(producer_id, sequence_id, code, text))

    def hold_publishing(self, change: int) -> None:
        self._rate_pauses += change
        (self._pause if self._rate_pauses else self._resume)(_PAUSED_BY_RATE)

    def ignore_producer(self, producer_id: int) -> None:
        self.producers.pop(producer_id, None)
        self.remember_closed(producer_id)

    def remember_closed(self, producer_id: int) -> None:
        """Frames of it may still be on their way. Of a client that opens and closes producers for ever only the last ones are known."""
        self.closed_producers[producer_id] = None
        if len(self.closed_producers) > limits.PRODUCERS_PER_CONNECTION_MAX:
            self.closed_producers.popitem(last=False)

    def close_producer(self, producer_id: int) -> None:
        self.ignore_producer(producer_id)
        topic = self.producer_topics.pop(producer_id, None)
        if not self.closed:
            self.write(commands.close_producer(producer_id, self.context.destinations.of(topic)))


async def _remove_in_turns(producers: list[tuple[AnyTopic, Producer]]) -> None:
    """A client that is back with a producer of the same name replaces it; removing it twice has no effect."""
    async for topic, producer in in_turns(producers):
        topic.publishers.remove(producer)
