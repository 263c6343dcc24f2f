"""Producers that nobody waits for any more do not stay open on the other side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from magnetar.base import limits
from magnetar.client.connection import ClientConnection
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError


class FakeTransport:
    """Keeps the commands that were written."""

    def __init__(self) -> None:
        self.written: list[BaseCommand] = []
        self.aborted = False
        self._decoder = FrameDecoder(limits.COMMAND_BYTES_MAX + 4, limits.COMMAND_BYTES_MAX)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += [BaseCommand.FromString(frame) for frame, _ in self._decoder.feed(data)]

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
async def opened() -> tuple[ClientConnection, FakeTransport]:
    connection, transport = ClientConnection("there"), FakeTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def opening(connection: ClientConnection) -> Coroutine[Any, Any, BaseCommand]:
    command = client_commands.producer("persistent://public/default/t", 7, 1, "name", {})
    return connection.request(command, 1, undo=partial(client_commands.close_producer, 7))


def success() -> bytes:
    answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    answer.producer_success.request_id = 1
    answer.producer_success.producer_name = "name"
    return commands.frame(answer)


def refusal() -> bytes:
    answer = BaseCommand(type=BaseCommand.ERROR)
    answer.error.request_id = 1
    answer.error.error = ServerError.ProducerBusy
    answer.error.message = "is already connected"
    return commands.frame(answer)


async def cancelled(task: asyncio.Task[BaseCommand]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)


@pytest.mark.parametrize("answered", ["before", "after"])
async def test_a_producer_whose_opening_was_cancelled_is_closed(
    opened: tuple[ClientConnection, FakeTransport], answered: str
) -> None:
    connection, transport = opened
    task = asyncio.create_task(opening(connection))
    await asyncio.sleep(0)
    if answered == "before":
        connection.data_received(success())
    await cancelled(task)
    if answered == "after":
        assert [each.type for each in transport.written] == [BaseCommand.PRODUCER]
        connection.data_received(success())
        await asyncio.sleep(0)
    assert [each.type for each in transport.written] == [BaseCommand.PRODUCER, BaseCommand.CLOSE_PRODUCER]
    assert transport.written[1].close_producer.producer_id == 7


async def test_a_refusal_that_nobody_waits_for_costs_nothing(opened: tuple[ClientConnection, FakeTransport]) -> None:
    connection, transport = opened
    task = asyncio.create_task(opening(connection))
    await asyncio.sleep(0)
    await cancelled(task)
    connection.data_received(refusal())
    await asyncio.sleep(0)
    assert [each.type for each in transport.written] == [BaseCommand.PRODUCER]
    assert not connection.closed
    assert not transport.aborted
