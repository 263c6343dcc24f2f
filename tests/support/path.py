"""Entries on their way through a server in this process, without sockets: what is counted between two points of the path."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from magnetar.base import limits
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.direct import DirectConnection, DirectServer, wait
from tests.support.raw import send_frame

ENTRIES = 1024


async def publish(server: DirectServer, length: int, counting: AbstractContextManager[Any]) -> None:
    """From the read of the socket to the receipt, in runs of `length`, on a topic without subscriptions."""
    connection = await DirectConnection(server).open()
    await connection.producer(f"persistent://public/default/produce-{length}", producer_name="raw")
    frames = [send_frame(b"x" * 1024, number) for number in range(2 * ENTRIES)]
    runs = [b"".join(frames[at : at + length]) for at in range(0, len(frames), length)]

    async def send(some: list[bytes]) -> None:
        for run in some:
            connection.received.clear()
            await connection.feed(run)
            await wait(lambda: len(connection.received) == length)

    await send(runs[: len(runs) // 2])
    with counting:
        await send(runs[len(runs) // 2 :])
    await connection.leave()


async def consume(
    server: DirectServer,
    length: int,
    delivering: AbstractContextManager[Any],
    acknowledging: AbstractContextManager[Any],
) -> None:
    """From the permit to the end of the acknowledgement, each of one message; an exclusive consumer of a stored topic."""
    topic = f"persistent://public/default/consume-{length}"
    connection = await DirectConnection(server).open()
    await connection.producer(topic, producer_name="raw")
    await connection.feed(b"".join(send_frame(b"x" * 1024, number) for number in range(ENTRIES)))
    await wait(lambda: len(connection.commands(BaseCommand.SEND_RECEIPT)) == ENTRIES)
    await connection.subscribe(topic, "sub")
    connection.received.clear()
    flow = BaseCommand(type=BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, ENTRIES
    with delivering:
        await connection.feed(encode_frame(flow.SerializeToString()))
        await wait(lambda: len(connection.received) == ENTRIES)
    frames = [ack_frame(command) for command, _ in connection.received]
    runs = [b"".join(frames[at : at + length]) for at in range(0, ENTRIES, length)]
    with acknowledging:
        for run in runs:
            await connection.feed(run)
            await asyncio.sleep(0)
    await connection.leave()


async def share(
    server: DirectServer,
    length: int,
    sub_type: int,
    delivering: AbstractContextManager[Any],
    acknowledging: AbstractContextManager[Any],
    consumers: int = 16,
) -> None:
    """As `consume`, for consumers of one connection that share a subscription (`sub_type`: 1 Shared, 3 Key_Shared).

    Each acknowledges what it got in runs of `length`. The entries have 1,000 keys; all of them fit the output of a connection."""
    topic = f"persistent://public/default/share-{sub_type}-{length}"
    connection = await DirectConnection(server).open()
    await connection.producer(topic, producer_name="raw")
    sends = [send_frame(b"x" * 256, number, partition_key=f"key-{number % 1000}") for number in range(ENTRIES)]
    await connection.feed(b"".join(sends))
    await wait(lambda: len(connection.commands(BaseCommand.SEND_RECEIPT)) == ENTRIES)
    for consumer_id in range(1, consumers + 1):
        await connection.subscribe(topic, "sub", consumer_id, subType=sub_type, consumer_name=f"c{consumer_id}")
    connection.received.clear()
    flows = []
    for consumer_id in range(1, consumers + 1):
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = consumer_id, ENTRIES
        flows.append(encode_frame(flow.SerializeToString()))
    with (
        delivering,
        patch.object(limits, "FRAMES_TURN_S", 60.0),
    ):  # all permits are there before the first read, on any machine
        await connection.feed(b"".join(flows))
        await wait(lambda: len(connection.received) == ENTRIES)
    by_consumer: dict[int, list[bytes]] = {}
    for command, _ in connection.received:
        by_consumer.setdefault(command.message.consumer_id, []).append(ack_frame(command))
    runs = [b"".join(each[at : at + length]) for each in by_consumer.values() for at in range(0, len(each), length)]
    with acknowledging:
        for run in runs:
            await connection.feed(run)
            await asyncio.sleep(0)
    await connection.leave()


def ack_frame(message: BaseCommand) -> bytes:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = message.message.consumer_id, 0
    named = command.ack.message_id.add()
    named.ledgerId, named.entryId = message.message.message_id.ledgerId, message.message.message_id.entryId
    return encode_frame(command.SerializeToString())
