"""What a client says to a bookie before its first request: START_TLS (always in version 3's form), then AUTH, if either is wanted."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.client.channel.connection import BookieConnection
from magnetar.bookkeeper.client.channel.options import ChannelOptions, ClientAuth
from magnetar.bookkeeper.errors import BookieUnavailableError, LedgerUnauthorizedError
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.BookkeeperProtocol_pb2 import (
    AUTH,
    EOK,
    START_TLS,
    VERSION_THREE,
    AuthMessage,
    BKPacketHeader,
    Request,
    Response,
    StartTLSRequest,
)
from magnetar.wire.bookkeeper.frames import encode_frame

_Exchange = Callable[[AuthMessage], Awaitable[AuthMessage]]

_DISABLED_PLUGIN = "AuthDisabledPlugin"
_ROUNDS_MAX = 100
"""Messages of one authentication: a bookie that wants more is not asked again."""


async def handshake_v2(connection: BookieConnection, host: str, options: ChannelOptions) -> None:
    """Before requests of version 2. Raises BookieUnavailableError, LedgerUnauthorizedError, OSError."""
    await _upgrade(connection, host, options.tls)

    async def exchange(message: AuthMessage) -> AuthMessage:
        header = v2.request_header(v2.AUTH, 0)
        answer = await connection.ask(v2.encode_auth(header, message.SerializeToString()))
        if len(answer) < 4 or v2.operation_of(v2.decode_header(answer)) != v2.AUTH:
            raise LedgerUnauthorizedError("the bookie refused the authentication")
        return _parse_auth(v2.auth_message(answer))

    if options.auth is not None:
        await _authenticate(options.auth, exchange)


async def handshake_v3(connection: BookieConnection, host: str, options: ChannelOptions) -> None:
    """Before requests of version 3. Raises as `handshake_v2`."""
    await _upgrade(connection, host, options.tls)

    async def exchange(message: AuthMessage) -> AuthMessage:
        header = BKPacketHeader(version=VERSION_THREE, operation=AUTH, txnId=0)
        answer = await _ask_v3(connection, Request(header=header, authRequest=message))
        if answer.status != EOK:
            raise LedgerUnauthorizedError(f"the bookie refused the authentication: status {answer.status}")
        return answer.authResponse

    if options.auth is not None:
        await _authenticate(options.auth, exchange)


async def _upgrade(connection: BookieConnection, host: str, context: ssl.SSLContext | None) -> None:
    if context is None:
        return
    header = BKPacketHeader(version=VERSION_THREE, operation=START_TLS, txnId=0)
    answer = await _ask_v3(connection, Request(header=header, startTLSRequest=StartTLSRequest()))
    if answer.status != EOK:
        raise BookieUnavailableError("the bookie does not offer TLS; give it a certificate or turn TLS off for bookies")
    await connection.start_tls(context, host)


async def _ask_v3(connection: BookieConnection, request: Request) -> Response:
    frame = await connection.ask(encode_frame(request.SerializeToString()))
    try:
        response = Response.FromString(frame)
    except DecodeError:
        raise BookieUnavailableError("the peer does not answer as a bookie") from None
    if not response.IsInitialized():  # parsing alone does not look for required fields, and a missing status is EOK
        raise BookieUnavailableError("the peer does not answer as a bookie")
    return response


def _parse_auth(data: bytes) -> AuthMessage:
    try:
        message = AuthMessage.FromString(data)
    except DecodeError:
        raise BookieUnavailableError("the peer does not answer as a bookie") from None
    if not message.IsInitialized():
        raise BookieUnavailableError("the peer does not answer as a bookie")
    return message


async def _authenticate(auth: ClientAuth, exchange: _Exchange) -> None:
    session = auth.new_session()
    payload: bytes | None = session.start()
    for _ in range(_ROUNDS_MAX):
        if payload is None:
            return
        try:
            answer = await exchange(AuthMessage(authPluginName=auth.plugin_name, payload=payload))
        except BookieUnavailableError as error:
            raise LedgerUnauthorizedError(f"no answer to the authentication by {auth.plugin_name}: {error}") from None
        if answer.authPluginName == _DISABLED_PLUGIN:
            return
        payload = session.process(answer.payload)
    raise LedgerUnauthorizedError(f"no end of the authentication after {_ROUNDS_MAX} messages")
