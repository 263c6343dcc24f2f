"""What a client follows at a broker: the layout of a topic, and the segments that a controller assigns to a consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from magnetar.base.backoff import Backoff
from magnetar.base.errors import ClientError, MagnetarError
from magnetar.client.connection import ClientConnection
from magnetar.client.errors import RequestRefusedError, UnreachableError
from magnetar.client.scalable.attachment import CLOSE_TIMEOUT_S, RETRY_FIRST_S, RETRY_LONGEST_S, is_final
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.layout import Layout
from magnetar.wire.pulsar import client_commands, commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ScalableConsumerAssignment

logger = logging.getLogger(__name__)

LAYOUT_TIMEOUT_S: Final = 30.0
"""Time-out of the first layout on one connection."""


class LayoutFollower:
    """Calls `on_layout` with the first layout and every later one, and `on_failed` once when there will be none any more."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        on_layout: Callable[[Layout], None],
        on_failed: Callable[[MagnetarError], None],
        *,
        create: bool = True,
    ) -> None:
        self.topic = topic
        self.layout: Layout | None = None
        self._context = context
        self._create = create
        self._on_layout = on_layout
        self._on_failed = on_failed
        self._session_id = context.new_id()
        self._connection: ClientConnection | None = None
        self._lost: asyncio.Future[MagnetarError] | None = None
        self._first: asyncio.Future[None] | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = context.spawn(self._run(), f"follow {topic}")

    async def opened(self) -> Layout:
        """The first layout. Raises ClientError when there is none."""
        await asyncio.shield(self._opened)
        assert self.layout is not None
        return self.layout

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        connection = self._connection
        if connection is not None and not connection.closed:
            connection.layouts.pop(self._session_id, None)
            connection.write(commands.frame(client_commands.scalable_close(self._session_id)))
        if not self._opened.done():
            self._opened.cancel()

    async def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, self._context.rng)
        while True:
            loop = asyncio.get_running_loop()
            self._lost, self._first = loop.create_future(), loop.create_future()
            try:
                connection = self._connection = await self._context.remote.broker_of(self.topic)
                connection.layouts[self._session_id] = self
                request = client_commands.scalable_lookup(self.topic, self._session_id, self._create)
                connection.write(commands.frame(request))
                async with asyncio.timeout(LAYOUT_TIMEOUT_S):
                    first: list[asyncio.Future[Any]] = [self._lost, self._first]
                    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if self._first.done():
                    backoff.reset()
                    if not self._opened.done():
                        self._opened.set_result(None)
                error: MagnetarError = await self._lost
            except TimeoutError:
                error = UnreachableError(f"no layout of {self.topic} came within {LAYOUT_TIMEOUT_S:.0f} s")
            except MagnetarError as refused:
                error = refused
            if self._connection is not None:
                self._connection.layouts.pop(self._session_id, None)
                self._connection = None
            if is_final(error):
                self._give_up(error)
                return
            logger.info("the layout of %s is not followed at this moment, trying again: %s", self.topic, error)
            await asyncio.sleep(backoff.next_s())

    def _give_up(self, error: MagnetarError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()
        self._on_failed(error)

    # ---- What the connection says

    def pushed(self, command: BaseCommand) -> None:
        update = command.scalableTopicUpdate
        if update.HasField("error"):
            self.end(RequestRefusedError(update.error, update.message))
            return
        self.layout = Layout.of(update)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        self._on_layout(self.layout)

    def end(self, error: MagnetarError) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)


@dataclass(frozen=True, slots=True)
class Membership:
    """A consumer as its controller knows it."""

    topic: str
    subscription: str
    consumer_name: str
    checkpoint: bool


class AssignmentFollower:
    """A consumer at the topic's controller: calls `on_assigned` with the ids of its segments, each time all of them.

    `controller_of`: the service URL of the topic's controller by the newest layout; empty while there is none, which any broker becomes.
    """

    def __init__(
        self,
        context: ClientContext,
        membership: Membership,
        consumer_id: int,
        controller_of: Callable[[], str],
        on_assigned: Callable[[ScalableConsumerAssignment], None],
        on_failed: Callable[[MagnetarError], None],
    ) -> None:
        self._context = context
        self._membership = membership
        self._consumer_id = consumer_id
        self._controller_of = controller_of
        self._on_assigned = on_assigned
        self._on_failed = on_failed
        self._connection: ClientConnection | None = None
        self._lost: asyncio.Future[MagnetarError] | None = None
        self._was_pushed = False
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = context.spawn(self._run(), f"assignments of {membership.consumer_name}")

    async def opened(self) -> None:
        """Raises ClientError when the first attempt is refused."""
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Leave: others get the segments at once."""
        self._task.cancel()
        await asyncio.wait([self._task])
        connection = self._connection
        if connection is not None and not connection.closed:
            connection.assignments.pop(self._consumer_id, None)
            request_id = connection.next_request_id()
            command = client_commands.scalable_unsubscribe(self._consumer_id, request_id)
            try:
                await connection.request(command, request_id, CLOSE_TIMEOUT_S)
            except ClientError as error:
                logger.debug("%s could not leave its controller: %s", self._membership.consumer_name, error)
        if not self._opened.done():
            self._opened.cancel()

    async def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, self._context.rng)
        while True:
            try:
                await self._join()
                backoff.reset()
                if not self._opened.done():
                    self._opened.set_result(None)
                assert self._lost is not None
                error = await self._lost
            except MagnetarError as refused:
                error = refused
            if self._connection is not None:
                self._connection.assignments.pop(self._consumer_id, None)
                self._connection = None
            if is_final(error) or (not self._opened.done() and isinstance(error, RequestRefusedError)):
                if not self._opened.done():
                    self._opened.set_exception(error)
                    self._opened.exception()
                self._on_failed(error)
                return
            logger.info("%s is not at its controller, trying again: %s", self._membership.consumer_name, error)
            await asyncio.sleep(backoff.next_s())

    async def _join(self) -> None:
        of, url, remote = self._membership, self._controller_of(), self._context.remote
        connection = await (remote.at(url) if url else remote.broker_of(of.topic))
        self._lost = asyncio.get_running_loop().create_future()
        self._was_pushed = False
        connection.assignments[self._consumer_id] = self
        self._connection = connection
        request_id = connection.next_request_id()
        command = client_commands.scalable_subscribe(
            of.topic, of.subscription, of.consumer_name, self._consumer_id, request_id, of.checkpoint
        )
        answer = (
            await connection.request(
                command, request_id, undo=lambda number: client_commands.scalable_unsubscribe(self._consumer_id, number)
            )
        ).scalableTopicSubscribeResponse
        if answer.HasField("error"):
            raise RequestRefusedError(answer.error, answer.message)
        if not self._was_pushed:  # else that is as new (5.0.0-M1 pushes before it answers) or newer
            self._on_assigned(answer.assignment)

    def pushed(self, command: BaseCommand) -> None:
        self._was_pushed = True
        self._on_assigned(command.scalableTopicAssignmentUpdate.assignment)

    def end(self, error: MagnetarError) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(error)
