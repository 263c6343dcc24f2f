"""The layout of a scalable topic, followed over a connection that stays: brokers push it whenever it changes."""

from __future__ import annotations

import socket
from typing import Final

from magnetar.client.scalable.layout import Layout
from magnetar.pipeline.connect.errors import TopicMissingError
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.raw.connection import RawConnection, RawConnectionError, connect_to
from magnetar.wire.pulsar.client_commands import scalable_lookup
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError

_SESSION: Final = 1


class LayoutWatch:
    """One topic's. Opens its connection when it is first needed and again after it broke. For one thread.

    Like a `TopicEnd` it has a socket that becomes readable when there is something new.
    """

    def __init__(self, connection: Connection, topic: str, *, create: bool) -> None:
        """`create`: a topic that is not there is made, where its namespace allows that."""
        self._connection = connection
        self._topic = topic
        self._create = create
        self._held: RawConnection | None = None
        self._layout: Layout | None = None

    def layout(self) -> Layout:
        """As the broker told it last. Raises RawConnectionError, TopicMissingError."""
        if self._held is not None and self._layout is not None:
            try:
                self.receive()
                return self._layout
            except RawConnectionError:
                self.close()
        return self._open()

    def arm(self) -> None:
        """The socket becomes readable from now on. Raises RawConnectionError, TopicMissingError."""
        self.layout()

    @property
    def waits_in_memory(self) -> bool:
        return self._held is not None and self._held.has_pending

    def socket(self) -> socket.socket | None:
        return None if self._held is None else self._held.socket

    def receive(self) -> bool:
        """Take what the broker has pushed; whether there was anything. Raises RawConnectionError, TopicMissingError."""
        assert self._held is not None
        commands = self._held.commands(0.001)
        for command in commands:
            if command.type == BaseCommand.SCALABLE_TOPIC_UPDATE:
                self._take(command)
        return bool(commands)

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
        self._held = None

    def _open(self) -> Layout:
        try:
            held = connect_to(self._connection, self._topic)
            try:
                held.send(scalable_lookup(self._topic, _SESSION, self._create))
                self._take(held.answer(BaseCommand.SCALABLE_TOPIC_UPDATE))
            except BaseException:
                held.close()
                raise
        except RawConnectionError as error:
            if error.code == ServerError.TopicNotFound:
                raise self._missing() from error
            raise
        self._held = held
        assert self._layout is not None
        return self._layout

    def _take(self, command: BaseCommand) -> None:
        update = command.scalableTopicUpdate
        if not update.HasField("error"):
            self._layout = Layout.of(update)
            return
        self.close()
        if update.error == ServerError.TopicNotFound:
            raise self._missing()
        raise RawConnectionError(f"{self._topic}: the broker tells no layout: {update.message}", update.error)

    def _missing(self) -> TopicMissingError:
        return TopicMissingError(
            f"topic does not exist: {self._topic}; correct the name, or create it first (magnetar topics scalable create)"
        )
