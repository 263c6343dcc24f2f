"""The path of a message cannot grow unseen: calls of magnetar's functions on the event loop for each entry, by the length of its run.

Calls are counted and not time, so other work on the machine changes nothing. A run is what one read of the socket brought.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.kernel import kernel
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.calls import Calls
from tests.support.direct import DirectConnection, DirectServer, wait
from tests.support.raw import send_frame

ENTRIES = 1024
MARGIN = 1.1
"""Timers of the server may fall into what is counted."""

PRODUCE = {1: 64.3, 8: 8.0, 64: 1.01} if kernel else {1: 69.8, 8: 12.2, 64: 4.2}
CONSUME = {1: 26.2, 8: 6.7, 64: 4.3} if kernel else {1: 32.2, 8: 12.1, 64: 9.5}
"""Calls an entry by length of its run, when this was last changed: with the compiled functions and without them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectServer]:
    with DirectServer(tmp_path_factory.mktemp("calls") / "data") as made:
        yield made


def check(what: str, calls: Calls, bounds: dict[int, float], length: int) -> None:
    found = calls.total / ENTRIES
    print(f"{what} in runs of {length}: {found:.2f} calls an entry")
    assert found <= bounds[length] * MARGIN, (
        f"{what} in runs of {length} makes {found:.2f} calls an entry, {bounds[length]} before. Let a run make the call once instead of "
        f"each of its entries, or do what it does in the loop itself. If it has to be, say so in the commit and raise the number in "
        f"{Path(__file__).name} and in bench/README.md. Calls an entry:\n{calls.table(ENTRIES)}"
    )
    assert found >= bounds[length] / MARGIN, (
        f"{what} in runs of {length} makes {found:.2f} calls an entry, {bounds[length]} before: keep the gain by lowering the number"
    )


@pytest.mark.parametrize("length", [1, 8, 64])
def test_calls_to_publish_an_entry(server: DirectServer, length: int) -> None:
    """From the read of the socket to the receipt, on a topic without subscriptions."""

    async def publish() -> Calls:
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
        with Calls() as calls:
            await send(runs[len(runs) // 2 :])
        await connection.leave()
        return calls

    check("publishing", server.run(publish()), PRODUCE, length)


@pytest.mark.parametrize("length", [1, 8, 64])
def test_calls_to_consume_an_entry(server: DirectServer, length: int) -> None:
    """From the permit to the end of the acknowledgement, each of one message; an exclusive consumer of a stored topic."""

    async def consume() -> Calls:
        topic = f"persistent://public/default/consume-{length}"
        connection = await DirectConnection(server).open()
        await connection.producer(topic, producer_name="raw")
        await connection.feed(b"".join(send_frame(b"x" * 1024, number) for number in range(ENTRIES)))
        await wait(lambda: len(connection.commands(BaseCommand.SEND_RECEIPT)) == ENTRIES)
        await connection.subscribe(topic, "sub")
        connection.received.clear()
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, ENTRIES
        with Calls() as delivering:
            await connection.feed(encode_frame(flow.SerializeToString()))
            await wait(lambda: len(connection.received) == ENTRIES)
        frames = [ack_frame(command) for command, _ in connection.received]
        runs = [b"".join(frames[at : at + length]) for at in range(0, ENTRIES, length)]
        with Calls() as acknowledging:
            for run in runs:
                await connection.feed(run)
                await asyncio.sleep(0)
        await connection.leave()
        return delivering + acknowledging

    check("consuming", server.run(consume()), CONSUME, length)


def ack_frame(message: BaseCommand) -> bytes:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, 0
    named = command.ack.message_id.add()
    named.ledgerId, named.entryId = message.message.message_id.ledgerId, message.message.message_id.entryId
    return encode_frame(command.SerializeToString())
