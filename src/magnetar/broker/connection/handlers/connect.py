"""CONNECT, AUTH_RESPONSE, PING, PONG.

A credential that does not hold: the protocol answers CONNECT with ERROR and closes, and every client but one ends its call on that.
The C++ client (and the Python client around it) connects again and again instead until its operation times out. It is
let in as nobody: each of its requests is refused with AuthenticationError, which ends the call at once, and the connection keeps
the small frames of a stranger and ends with a stranger's deadline.
"""

from __future__ import annotations

import asyncio
import logging

from magnetar import __version__
from magnetar.base.errors import MagnetarError
from magnetar.broker.auth.authenticate import TLS, Authentication, Credentials
from magnetar.broker.auth.principal import Principal
from magnetar.broker.auth.refresh import CredentialWatch
from magnetar.broker.auth.tls import peer_certificate
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import AuthenticationError, NotAllowedError
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandConnect

logger = logging.getLogger(__name__)

SERVER_VERSION = f"magnetar {__version__}"

NEEDS_LATE_REFUSAL = "Pulsar-CPP"
"""Version prefix of the client that retries a refused CONNECT for ever."""

PROTOCOL_VERSION = 21
"""The newest version whose semantics are served (v21: GET_TOPICS with patterns, ack receipts, watchers gated by a flag)."""


def connect(session: Session, command: BaseCommand, rest: bytes) -> None:
    """A type that this version of the protocol does not know parses as the first one, which is CONNECT: the message tells."""
    if not command.HasField("connect"):
        raise NotAllowedError("not a command that this server knows")
    if session.greeted:
        raise NotAllowedError("a second CONNECT on one connection")
    authentication = session.context.security.authentication
    if authentication is None:
        _greet(session, command.connect, known=True)
        return
    session.in_handshake(True)
    session.spawn(_prove(session, authentication, command.connect), "CONNECT")


async def _prove(session: Session, authentication: Authentication, request: CommandConnect) -> None:
    """A request like others: to verify a credential costs more than to show one, so it waits for its address's turn."""
    try:
        if not session.closed:
            _greet(session, request, known=_authenticated(session, authentication, request))
    except MagnetarError as error:
        session.fail(error)
    finally:
        session.in_handshake(False)


def _greet(session: Session, request: CommandConnect, *, known: bool) -> None:
    version = min(request.protocol_version, PROTOCOL_VERSION)
    session.handshake_done(request.client_version, version, known=known)
    session.replication_by_place = request.feature_flags.supports_repl_dedup_by_lid_and_eid
    answer = BaseCommand(type=BaseCommand.CONNECTED)
    answer.connected.server_version = SERVER_VERSION
    answer.connected.protocol_version = version
    answer.connected.max_message_size = session.context.config.settings.max_message_size
    answer.connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation = True
    answer.connected.feature_flags.supports_repl_dedup_by_lid_and_eid = True
    answer.connected.feature_flags.supports_scalable_topics = session.context.config.settings.scalable_topics_enabled
    answer.connected.feature_flags.supports_tc_metadata_discovery = session.context.transactions.enabled
    session.write(commands.frame(answer))


def _authenticated(session: Session, authentication: Authentication, request: CommandConnect) -> bool:
    """False for a client that must be told later. Raises AuthenticationError for the others."""
    shown = Credentials(
        request.auth_method_name, request.auth_data, peer_certificate(session.ssl_object), request.original_principal
    )
    try:
        principal = authentication.authenticate(shown)
    except AuthenticationError as error:
        if not request.client_version.startswith(NEEDS_LATE_REFUSAL):
            raise
        logger.info("authentication failed address=%s error=%s", session.address, error)
        return False
    session.principal = principal
    session.requests.belong_to(f"role {principal.role}")
    _watch(session, principal, request.feature_flags.supports_auth_refresh and principal.method != TLS)
    logger.info("client authenticated address=%s role=%r method=%s", session.address, principal.role, principal.method)
    return True


def greet_inside(session: Session, principal: Principal | None, version: str) -> None:
    """As after CONNECT, for a session whose other end is in this process. It ends with the credential that was shown there."""
    session.handshake_done(version, PROTOCOL_VERSION)
    if principal is not None:
        session.principal = principal
        session.requests.belong_to(f"role {principal.role}")
        _watch(session, principal, False)


def _watch(session: Session, principal: Principal, can_refresh: bool) -> None:
    session.credential_watch = CredentialWatch(
        session.context.clock.now_ms,
        asyncio.get_running_loop().call_later,
        (lambda: session.write(commands.auth_challenge(principal.method, SERVER_VERSION))) if can_refresh else None,
        lambda: session.fail(AuthenticationError("the credential of this connection has expired")),
    )
    session.credential_watch.begin(principal.expires_ms)


def auth_response(session: Session, command: BaseCommand, rest: bytes) -> None:
    """Accepts a new credential for the same role; anything else ends the connection."""
    authentication, watch, before = session.context.security.authentication, session.credential_watch, session.principal
    if authentication is None or watch is None or before is None or not watch.asked:
        raise NotAllowedError("AUTH_RESPONSE without an AUTH_CHALLENGE")
    response = command.authResponse.response
    method = response.auth_method_name or before.method
    shown = Credentials(method, response.auth_data, original=before.role if before.proxy else "")
    after = authentication.authenticate(shown)
    if (after.roles, after.method) != (before.roles, before.method):
        raise AuthenticationError("a connection cannot change its role")
    session.principal = after
    watch.begin(after.expires_ms)


def ping(session: Session, command: BaseCommand, rest: bytes) -> None:
    session.write(commands.pong())


def pong(session: Session, command: BaseCommand, rest: bytes) -> None:
    """Any byte counts as a sign of life; nothing else to do."""
