"""Entries on their way through a server in this process, without sockets: what is counted between two points of the path."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any

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


def ack_frame(message: BaseCommand) -> bytes:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, 0
    named = command.ack.message_id.add()
    named.ledgerId, named.entryId = message.message.message_id.ledgerId, message.message.message_id.entryId
    return encode_frame(command.SerializeToString())
