"""One blocking connection to a broker with raw frames: for readers that want whole entries, which the official client does not hand out.

Knows tokens and TLS; who needs another way to authenticate reads through the official client. No threads: keep-alive is answered
whenever something is received.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections import deque
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.base.errors import MagnetarError
from magnetar.pipeline.connect.admin_rest import token_of
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.connect.raw.frame_buffer import FrameBuffer
from magnetar.wire.pulsar.commands import frame, pong
from magnetar.wire.pulsar.frames import Frame, FrameError
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)

FRAME_BYTES_MAX: Final = 64 << 20
"""A larger frame ends the connection; brokers allow messages of 5 MiB unless told otherwise."""
COMMAND_BYTES_MAX: Final = 1 << 20
REDIRECTS_MAX: Final = 20
"""Of one lookup; above it the cluster is not settled and the connection fails."""
RECONNECT_WAIT_S: Final = 0.2
"""Between two attempts to reach a broker."""
PROTOCOL_VERSION: Final = 20
CLIENT_VERSION: Final = "magnetar-spark"
_NOTICES: Final = (BaseCommand.REACHED_END_OF_TOPIC, BaseCommand.ACTIVE_CONSUMER_CHANGE)
"""What brokers say between answers and nobody waits for."""


class RawConnectionError(MagnetarError):
    """The connection broke or the broker refused; reading goes on over a new one."""

    slug = "raw-connection"
    retriable = True

    def __init__(self, message: str, code: int | None = None) -> None:
        """`code`: a ServerError, where a broker refused."""
        super().__init__(message)
        self.code = code


def is_supported(connection: Connection) -> bool:
    """Whether these credentials can be sent here."""
    plugin = (connection.auth_plugin or "").rpartition(".")[2].lower()
    return not plugin or "token" in plugin or plugin == "authenticationtls"


class RawConnection:
    """Connected and authenticated. `close` it; not to be shared between threads."""

    def __init__(self, connection: Connection, url: str, through_proxy_to: str | None = None) -> None:
        self._connection = connection
        self.timeout_s = connection.operation_timeout_ms / 1000
        method, data = _credentials(connection)
        self._socket = _open_socket(connection, url, self.timeout_s)
        self._buffer = FrameBuffer(FRAME_BYTES_MAX, COMMAND_BYTES_MAX)
        self._waiting: deque[Frame] = deque()
        self._request_id = 0
        connect = BaseCommand(type=BaseCommand.CONNECT)
        connect.connect.client_version = CLIENT_VERSION
        connect.connect.protocol_version = PROTOCOL_VERSION
        connect.connect.feature_flags.supports_auth_refresh = True
        if method is not None:
            connect.connect.auth_method_name = method
            connect.connect.auth_data = data
        if through_proxy_to is not None:
            connect.connect.proxy_to_broker_url = through_proxy_to.partition("://")[2]
        self.message_bytes_max = 0
        """What the broker takes as one entry; 0 where it does not say."""
        try:
            self.send(connect)
            self.message_bytes_max = self.answer(BaseCommand.CONNECTED).connected.max_message_size
        except BaseException:
            self.close()
            raise

    def request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def send(self, command: BaseCommand) -> None:
        """Raises RawConnectionError."""
        self.send_bytes(frame(command))

    def send_bytes(self, data: bytes) -> None:
        """The only place that writes to the socket: whatever breaks there is a RawConnectionError."""
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise RawConnectionError(f"the connection broke: {error}") from error

    def answer(self, kind: int) -> BaseCommand:
        """The next command of a kind; frames of messages around it stay for `receive`. Raises RawConnectionError."""
        found: BaseCommand | None = None
        while found is None:
            for received in self._fill(self.timeout_s):
                command = None if self._is_kept(received) else self._command(received)
                if command is None or command.type in _NOTICES:
                    continue
                if command.type != kind:
                    raise RawConnectionError(f"the broker answers with {_refusal(command)}", _code(command))
                found = command
        return found

    def commands(self, timeout_s: float) -> list[BaseCommand]:
        """What comes that is not a message; [] when nothing came in time. Raises RawConnectionError."""
        found = (None if self._is_kept(each) else self._command(each) for each in self._fill(timeout_s))
        return [each for each in found if each is not None]

    def _is_kept(self, received: Frame) -> bool:
        """Whether it is a message, which then waits for `receive`."""
        if _is_message(received):
            self._waiting.append(received)
            return True
        return False

    def receive(self, timeout_s: float) -> list[Frame]:
        """MESSAGE frames in order; [] when none came in time. Raises RawConnectionError, also when the broker ends the consumer."""
        if self._waiting:
            found = list(self._waiting)
            self._waiting.clear()
            return found
        messages = []
        for received in self._fill(timeout_s):
            if _is_message(received):
                messages.append(received)
                continue
            command = self._command(received)
            if command is not None and command.type in (BaseCommand.CLOSE_CONSUMER, BaseCommand.ERROR):
                raise RawConnectionError(f"the broker says {_refusal(command)}", _code(command))
        return messages

    def lookup(self, topic: str) -> tuple[str, bool]:
        """(service URL of the broker that has the topic, whether it is reached through this connection's proxy)."""
        authoritative = False
        here: RawConnection = self
        try:
            for _ in range(REDIRECTS_MAX):
                ask = BaseCommand(type=BaseCommand.LOOKUP)
                ask.lookupTopic.topic = topic
                ask.lookupTopic.request_id = here.request_id()
                ask.lookupTopic.authoritative = authoritative
                here.send(ask)
                found = here.answer(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
                if found.response == CommandLookupTopicResponse.Failed:
                    raise RawConnectionError(f"{topic} cannot be looked up: {found.message}", found.error)
                secure = self._connection.service_url.startswith("pulsar+ssl://")
                url = found.brokerServiceUrlTls if secure else found.brokerServiceUrl
                if found.response == CommandLookupTopicResponse.Connect:
                    return url, found.proxy_through_service_url
                authoritative = found.authoritative
                proxied = url if found.proxy_through_service_url else None
                redirected = RawConnection(self._connection, self._connection.service_url if proxied else url, proxied)
                if here is not self:
                    here.close()
                here = redirected
        finally:
            if here is not self:
                here.close()
        raise RawConnectionError(f"{topic}: more than {REDIRECTS_MAX} redirects")

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic, with partitions or without; nothing is created. Raises RawConnectionError."""
        ask = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        ask.partitionMetadata.topic = topic
        ask.partitionMetadata.request_id = self.request_id()
        ask.partitionMetadata.metadata_auto_creation_enabled = False
        self.send(ask)
        found = self.answer(BaseCommand.PARTITIONED_METADATA_RESPONSE).partitionMetadataResponse
        if found.response != CommandPartitionedTopicMetadataResponse.Failed:
            return True
        if found.error == ServerError.TopicNotFound:
            return False
        raise RawConnectionError(f"{topic}: the broker answers with {found.message}")

    @property
    def socket(self) -> socket.socket:
        """To wait for: it is readable when `receive` would return at once, unless `has_pending` says so."""
        return self._socket

    @property
    def has_pending(self) -> bool:
        """Whether there is something to receive that the socket does not show."""
        return bool(self._waiting) or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0)

    def drop_messages(self) -> bool:
        """Forget the messages that came around answers; whether there were any."""
        found = bool(self._waiting)
        self._waiting.clear()
        return found

    def close(self) -> None:
        self._socket.close()

    def _fill(self, timeout_s: float) -> list[Frame]:
        """Frames that one read completes; [] when nothing comes in time."""
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            frames = self._buffer.receive(self._socket)
        except TimeoutError:
            if timeout_s >= self.timeout_s:
                raise RawConnectionError(f"the broker did not answer within {timeout_s:g} s") from None
            return []
        except OSError as error:
            raise RawConnectionError(f"the connection broke: {error}") from error
        except FrameError as error:
            raise RawConnectionError(str(error)) from error
        if frames is None:
            raise RawConnectionError("the broker closed the connection")
        return frames

    def _command(self, received: Frame) -> BaseCommand | None:
        """What is not for the connection itself."""
        try:
            command = BaseCommand.FromString(received[0])
        except DecodeError as error:
            raise RawConnectionError("the broker sent what is not a command") from error
        if command.type == BaseCommand.PING:
            self.send_bytes(pong())
            return None
        if command.type == BaseCommand.AUTH_CHALLENGE:
            answer = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
            method, data = _credentials(self._connection)
            answer.authResponse.response.auth_method_name = method or ""
            answer.authResponse.response.auth_data = data
            self.send(answer)
            return None
        if command.type in (BaseCommand.PONG, BaseCommand.ACTIVE_CONSUMER_CHANGE, BaseCommand.REACHED_END_OF_TOPIC):
            return None
        return command


def connect(connection: Connection) -> tuple[RawConnection, str]:
    """To the first broker of the service URL that answers, and its address. Raises RawConnectionError."""
    problem: RawConnectionError | None = None
    for url in _urls(connection.service_url):
        try:
            return RawConnection(connection, url), url
        except RawConnectionError as error:
            problem = error
    raise problem or RawConnectionError("service.url names no broker")


def connect_to(connection: Connection, topic: str) -> RawConnection:
    """To the broker that serves a topic. Raises RawConnectionError."""
    found, url = connect(connection)
    try:
        target, through_proxy = found.lookup(topic)
    except BaseException:
        found.close()
        raise
    if target in ("", url):
        return found
    found.close()
    return RawConnection(connection, url if through_proxy else target, target if through_proxy else None)


def _is_message(received: Frame) -> bool:
    """`type: MESSAGE` is how such a command begins: field 1, number 9."""
    return received[0][:2] == b"\x08\x09"


def _refusal(command: BaseCommand) -> str:
    if command.type == BaseCommand.ERROR:
        return command.error.message
    return BaseCommand.Type.Name(command.type)


def _code(command: BaseCommand) -> int | None:
    return command.error.error if command.type == BaseCommand.ERROR else None


def _urls(service_url: str) -> list[str]:
    scheme, _, hosts = service_url.partition("://")
    return [f"{scheme}://{host}" for host in hosts.rstrip("/").split(",") if host]


def _open_socket(connection: Connection, url: str, timeout_s: float) -> socket.socket:
    scheme, _, address = url.partition("://")
    host, _, port = address.rstrip("/").rpartition(":")
    secure = scheme == "pulsar+ssl"
    if not host or not port.isdigit():
        host, port = address, "6651" if secure else "6650"
    host = host.strip("[]")
    try:
        plain = socket.create_connection((host, int(port)), timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _tls(connection).wrap_socket(plain, server_hostname=host) if secure else plain
        except BaseException:
            plain.close()
            raise
    except (OSError, ValueError, KeyError) as error:
        raise RawConnectionError(f"{url} cannot be reached: {error}") from error


def _tls(connection: Connection) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=connection.tls_trust_certs)
    context.check_hostname = connection.tls_validate_hostname and not connection.tls_allow_insecure
    if connection.tls_allow_insecure:
        context.verify_mode = ssl.CERT_NONE
    plugin = (connection.auth_plugin or "").rpartition(".")[2].lower()
    if plugin == "authenticationtls":
        params = connection.auth_params or ""
        pairs = json.loads(params) if params.startswith("{") else dict(p.split(":", 1) for p in params.split(","))
        context.load_cert_chain(pairs["tlsCertFile"], pairs["tlsKeyFile"])
    return context


def _credentials(connection: Connection) -> tuple[str | None, bytes]:
    """Pulsar's name of the method, and what it sends. Raises RawConnectionError: a token's file may be there again in a moment."""
    try:
        token = token_of(connection)
    except (OSError, ValueError) as error:
        raise RawConnectionError(f"the credentials cannot be read: {error}") from error
    if token:
        return "token", token.encode()
    return ("tls", b"") if connection.auth_plugin else (None, b"")
