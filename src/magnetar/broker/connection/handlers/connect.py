"""CONNECT, PING, PONG."""

from __future__ import annotations

from magnetar import __version__
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

PROTOCOL_VERSION = 21
"""The newest version whose semantics are served (v21: GET_TOPICS with patterns, ack receipts, watchers gated by a flag)."""


def connect(session: Session, command: BaseCommand, rest: bytes) -> None:
    """A type that this version of the protocol does not know parses as the first one, which is CONNECT: the message tells."""
    if not command.HasField("connect"):
        raise NotAllowedError("not a command that this server knows")
    if session.connected:
        raise NotAllowedError("a second CONNECT on one connection")
    request = command.connect
    version = min(request.protocol_version, PROTOCOL_VERSION)
    session.handshake_done(request.client_version, version)
    answer = BaseCommand(type=BaseCommand.CONNECTED)
    answer.connected.server_version = f"magnetar {__version__}"
    answer.connected.protocol_version = version
    answer.connected.max_message_size = session.context.config.max_message_size_bytes
    answer.connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    session.write(commands.frame(answer))


def ping(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.write(commands.pong())


def pong(session: Session, command: BaseCommand, rest: bytes) -> None:
    """Any byte counts as a sign of life; nothing else to do."""
