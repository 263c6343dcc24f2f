"""However the network cuts what a client sends into reads, the same is stored, refused and answered as frame by frame."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.naming import TopicName
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.support.direct import DirectConnection, DirectServer, wait
from tests.support.raw import headers_and_payload, send_command

_numbers = itertools.count()


@pytest.fixture(scope="module", params=["plain", "deduplicated", "small-ledgers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectServer]:
    options: dict[str, Any] = {
        "plain": {},
        "deduplicated": {"broker_deduplication_enabled": True},
        "small-ledgers": {"managed_ledger_max_entries_per_ledger": 7, "managed_ledger_min_rollover_minutes": 0},
    }[request.param]
    with DirectServer(tmp_path_factory.mktemp("runs") / "data", **options) as made:
        yield made


Step = tuple[str, int, int, int]
"""Kind, producer id, sequence id, payload size."""

KINDS = (
    *["plain"] * 12,
    "batch",
    "chunk",
    "damaged",
    "headless",
    "marker",
    "foreign",
    "transaction",
    "unusual",
    "ping",
)
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(1, 2), st.integers(0, 30), st.sampled_from([0, 5, 300, 70_000])),
    min_size=1,
    max_size=120,
)


def frame_of(number: int, step: Step) -> bytes:
    kind, producer_id, sequence_id, size = step
    if kind == "plain":
        sequence_id = number  # most of the time they follow each other
    command = send_command(sequence_id, producer_id)
    metadata: dict[str, Any] = {"producer_name": f"p{producer_id}", "sequence_id": sequence_id}
    payload = b"%d:" % number + b"x" * size
    if kind == "ping":
        return encode_frame(BaseCommand(type=BaseCommand.PING, ping={}).SerializeToString())
    if kind == "batch":
        metadata |= {"num_messages_in_batch": 2, "highest_sequence_id": sequence_id + 1}
        command.send.highest_sequence_id = sequence_id + 1
    elif kind == "chunk":
        metadata |= {
            "num_chunks_from_msg": 2,
            "chunk_id": number % 2,
            "total_chunk_msg_size": 2 * len(payload),
            "uuid": "u",
        }
        command.send.is_chunk = True
    elif kind == "marker":
        metadata["marker_type"] = 13  # of replicated subscriptions
    elif kind == "foreign":
        metadata["producer_name"] = "somebody"
    elif kind == "transaction":
        command.send.txnid_least_bits, command.send.txnid_most_bits = 7, 1
    rest = headers_and_payload(payload, **metadata)
    if kind == "damaged":
        rest = rest[:-1] + bytes([rest[-1] ^ 1])
    elif kind == "headless":
        rest = b""
    data = command.SerializeToString()
    if kind == "unusual":  # another order of fields, which protobuf allows
        data = data[2:] + data[:2]
    return encode_frame(data, rest)


class Outcome:
    """What came of it: by producer the answers in their order, apart from those that wait for nobody; what is stored; PONGs."""

    def __init__(self, received: list[BaseCommand], entries: list[bytes]) -> None:
        self.answers: dict[int, list[tuple[Any, ...]]] = {1: [], 2: []}
        self.damaged: list[tuple[int, int, str]] = []
        self.entries = entries
        self.pongs = 0
        for command in received:
            if command.type == BaseCommand.SEND_RECEIPT:
                receipt = command.send_receipt
                stored = receipt.message_id.ledgerId != 2**64 - 1
                place = receipt.message_id.entryId if stored else None
                self.answers[receipt.producer_id].append((receipt.sequence_id, receipt.highest_sequence_id, place))
            elif command.type == BaseCommand.SEND_ERROR:
                error = command.send_error
                if error.error == ServerError.ChecksumError and "sequence id" not in error.message:
                    self.damaged.append((error.producer_id, error.sequence_id, error.message))
                else:
                    self.answers[error.producer_id].append((error.sequence_id, error.error))
            elif command.type == BaseCommand.PONG:
                self.pongs += 1


async def outcome_of(server: DirectServer, reads: list[bytes], frames: int) -> Outcome:
    topic = f"persistent://public/default/runs-{next(_numbers)}"
    connection = await DirectConnection(server).open()
    await connection.subscribe(topic, "keeps-everything")
    for producer_id in (1, 2):
        await connection.producer(topic, producer_id, producer_name=f"p{producer_id}")
    connection.received.clear()
    for data in reads:
        await connection.feed(data)
        if len(data) % 3 == 0:
            await asyncio.sleep(0)
    kinds = (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR, BaseCommand.PONG)
    await wait(lambda: len(connection.commands(*kinds)) >= frames)
    assert len(connection.received) == frames, "one answer to each"
    assert connection.session.pending_publishes == connection.session.pending_publish_bytes == 0
    assert server.standalone.broker.context.budget.pending_bytes == 0
    loaded = server.standalone.broker.topics.get_loaded(TopicName.parse(topic))
    assert isinstance(loaded, PersistentTopic)
    entries = await stored(loaded.ledger)
    found = Outcome(connection.commands(*kinds), entries)
    await connection.leave()
    return found


async def stored(ledger: ManagedLedger) -> list[bytes]:
    position, end, entries = ledger.first_position, ledger.last_confirmed, []
    while position <= end and position.entry_id >= 0:
        entries.append((await ledger.read_entry(position)).data)
        position = ledger.next_position(position)
    return entries


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, cuts=st.lists(st.floats(0, 1), max_size=12))
def test_any_cut_stores_and_answers_the_same(server: DirectServer, steps: list[Step], cuts: list[float]) -> None:
    frames = [frame_of(number, step) for number, step in enumerate(steps)]
    stream = b"".join(frames)
    edges = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    cut = server.run(outcome_of(server, pieces, len(frames)))
    single = server.run(outcome_of(server, frames, len(frames)))
    assert cut.entries == single.entries
    assert cut.answers == single.answers
    assert cut.damaged == single.damaged
    assert cut.pongs == single.pongs


# ---- Acknowledgements

ACK_ENTRIES = 60
ACKS = st.lists(
    st.tuples(
        st.sampled_from([*["plain"] * 8, "several", "cumulative", "batch", "receipt", "unusual", "gone"]),
        st.integers(1, 2),
        st.integers(0, ACK_ENTRIES + 3),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=100,
)
"""Kind, consumer id, entry id, entries."""


def ack_frame(kind: str, consumer_id: int, ledger_id: int, entry_id: int, count: int) -> bytes:
    command = BaseCommand(type=BaseCommand.ACK)
    ack = command.ack
    ack.consumer_id, ack.ack_type = consumer_id, 1 if kind == "cumulative" else 0
    for offset in range(count if kind == "several" else 1):
        named = ack.message_id.add()
        named.ledgerId, named.entryId = ledger_id + (kind == "gone"), entry_id + offset
        if kind == "batch":
            named.ack_set.append(1)
            named.batch_size = 2
    if kind == "receipt":
        ack.request_id = 1 + entry_id
    data = command.SerializeToString()
    return encode_frame(data[2:] + data[:2] if kind == "unusual" else data)


def flow_frame(consumer_id: int, permits: int) -> bytes:
    command = BaseCommand(type=BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
    return encode_frame(command.SerializeToString())


async def acknowledged(
    server: DirectServer, kind_number: int, acks: list[tuple[str, int, int, int]], cuts: list[float] | None
) -> Any:
    """What a subscription's state is after these; `cuts` None: frame by frame."""
    topic = f"persistent://public/default/acks-{next(_numbers)}"
    connection = await DirectConnection(server).open()
    await connection.producer(topic, producer_name="raw")
    for consumer_id in (1, 2) if kind_number else (1,):
        await connection.subscribe(topic, "sub", consumer_id, subType=kind_number)
    frames = [
        encode_frame(send_command(n).SerializeToString(), headers_and_payload(b"x", n)) for n in range(ACK_ENTRIES)
    ]
    for data in frames:
        await connection.feed(data)
    await wait(lambda: len(connection.commands(BaseCommand.SEND_RECEIPT)) == ACK_ENTRIES)
    ledger_id = connection.commands(BaseCommand.SEND_RECEIPT)[0].send_receipt.message_id.ledgerId
    for consumer_id in (1, 2) if kind_number else (1,):
        await connection.feed(flow_frame(consumer_id, 20))
        await wait(lambda wanted=20 * consumer_id: len(connection.commands(BaseCommand.MESSAGE)) == wanted)
    frames = [ack_frame(kind, consumer_id, ledger_id, entry_id, count) for kind, consumer_id, entry_id, count in acks]
    stream = b"".join(frames)
    if cuts is not None:
        edges = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
        frames = [stream[start:end] for start, end in pairwise(edges)]
    for data in frames:
        await connection.feed(data)
        await asyncio.sleep(0)
    loaded = server.standalone.broker.topics.get_loaded(TopicName.parse(topic))
    assert isinstance(loaded, PersistentTopic)
    subscription = loaded.subscriptions.get("sub")
    receipts = sum(kind == "receipt" and (kind_number > 0 or consumer_id == 1) for kind, consumer_id, _, _ in acks)
    await wait(lambda: len(connection.commands(BaseCommand.ACK_RESPONSE)) == receipts)
    cursor = subscription.cursor
    mark = cursor.acks.mark_delete
    state = (
        mark.entry_id if mark.ledger_id == ledger_id else None,
        [(low.entry_id, high.entry_id) for low, high in cursor.individual_ranges()],
        [cursor.acks.remaining_of_batch(ledger_id, entry_id) for entry_id in range(ACK_ENTRIES)],
        [(consumer.unacked_messages, consumer.messages_acked, consumer.permits) for consumer in subscription.consumers],
    )
    await connection.leave()
    return state


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shared=st.booleans(), acks=ACKS, cuts=st.lists(st.floats(0, 1), max_size=8))
def test_any_cut_acknowledges_the_same(
    server: DirectServer, shared: bool, acks: list[tuple[str, int, int, int]], cuts: list[float]
) -> None:
    kind_number = 1 if shared else 0
    assert server.run(acknowledged(server, kind_number, acks, cuts)) == server.run(
        acknowledged(server, kind_number, acks, None)
    )
