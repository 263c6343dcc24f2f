"""TLS by START_TLS, and authentication, between channel and server, and on the wire."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from magnetar.bookkeeper.bookie.server.connection import FrameConnection
from magnetar.bookkeeper.codes import BOOKIE_UNAVAILABLE, ReturnCode
from magnetar.bookkeeper.errors import LedgerUnauthorizedError
from magnetar.bookkeeper.shared_secret import BookieSecret, ClientSecret
from magnetar.wire.bookkeeper import BookkeeperProtocol_pb2 as pb
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.frames import encode_frame
from tests.integration.bookkeeper.remote import Wire, answer, peer, served_bookie
from tests.support.certificates import Authority
from tests.unit.bookkeeper.bookie_helpers import KEY, entry


class Secret:
    """Both sides of a conversation in two rounds: a name, a challenge, the secret with the challenge."""

    plugin_name = "test.secret"

    def __init__(self, secret: bytes = b"swordfish") -> None:
        self.secret = secret

    def new_session(self, connection: FrameConnection | None = None) -> _SecretSession:
        return _SecretSession(self.secret)


class _SecretSession:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.passed = False

    # the bookie's side, and (from the second message on) the client's
    def start(self) -> bytes:
        return b"hello"

    def process(self, payload: bytes) -> bytes | None:
        if payload == b"hello":
            return b"challenge"
        if payload == b"challenge":
            return b"challenge" + self._secret
        if payload == b"welcome":
            return None
        if payload != b"challenge" + self._secret:
            raise LedgerUnauthorizedError("wrong secret")
        self.passed = True
        return b"welcome"


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(the bookie's, the client's)."""
    authority = Authority(tmp_path / "ca")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.sign("bookie"))
    return server, ssl.create_default_context(cafile=str(authority.file))


async def test_everything_over_tls(tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = contexts
    async with served_bookie(tmp_path / "b", start_tls=server) as served:
        channel = served.channel(tls=client)
        payload = b"x" * 200_000
        for entry_id in range(20):
            assert await answer(channel.add_entry, 7, entry_id, entry(7, entry_id, payload), KEY, 0) == ReturnCode.OK
        assert await answer(channel.read_entry, 7, 3, 0, b"") == (ReturnCode.OK, entry(7, 3, payload))
        assert await answer(channel.last_confirmed, 7) == (ReturnCode.OK, 18)
        clear = served.channel()
        assert await answer(clear.add_entry, 8, 0, entry(8, 0), KEY, 0) == ReturnCode.OK, "it is offered, not forced"


async def test_tls_that_cannot_be(tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = contexts
    async with served_bookie(tmp_path / "without") as served:
        assert await answer(served.channel(tls=client).force_ledger, 7) == BOOKIE_UNAVAILABLE
    async with served_bookie(tmp_path / "stranger", start_tls=server) as served:
        trusting_nobody = ssl.create_default_context()
        channel = served.channel(tls=trusting_nobody)
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_UNAVAILABLE


@pytest.mark.parametrize("plan", ["tls", "auth"])
async def test_an_answer_without_a_status_is_no_consent(plan: str) -> None:
    """A missing required field reads as its default, and the default of a status is success."""

    async def talk(wire: Wire) -> None:
        asked = await wire.frame()
        empty = pb.Response(header=pb.Request.FromString(asked).header) if plan == "tls" else pb.Response()
        wire.send_body(empty.SerializePartialToString())

    options = {"tls": ssl.create_default_context()} if plan == "tls" else {"auth": Secret()}
    async with peer(talk, **options) as channel:
        assert await answer(channel.force_ledger, 7) == BOOKIE_UNAVAILABLE


async def test_nothing_in_the_clear_counts_after_start_tls(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """A request injected behind START_TLS must not be taken for one that came through TLS."""
    async with served_bookie(tmp_path / "b", start_tls=contexts[0]) as served:
        wire = await served.wire()
        header = pb.BKPacketHeader(version=3, operation=pb.START_TLS, txnId=1)
        request = pb.Request(header=header, startTLSRequest=pb.StartTLSRequest())
        packed = entry(7, 0)
        wire.send(encode_frame(request.SerializeToString()), v2.encode_add_head(0, KEY, len(packed)), packed)
        assert await wire.ended()
        assert served.bookie.ledger_ids() == []


async def test_the_known_are_served_and_strangers_are_not(tmp_path: Path) -> None:
    async with served_bookie(tmp_path, auth=Secret()) as served:
        channel = served.channel(auth=Secret())
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        assert await answer(channel.force_ledger, 7) == ReturnCode.OK
        stranger = served.channel()
        assert await answer(stranger.add_entry, 7, 1, entry(7, 1), KEY, 0) == ReturnCode.UNAUTHORIZED
        assert await answer(stranger.read_entry, 7, 0, 0, b"") == (ReturnCode.UNAUTHORIZED, None)
        assert await answer(stranger.read_batch, 7, 0, 1, 100) == (ReturnCode.UNAUTHORIZED, [])
        assert await answer(stranger.read_lac, 7) == (ReturnCode.UNAUTHORIZED, None, None)
        assert await answer(stranger.list_entries, 7) == (ReturnCode.UNAUTHORIZED, None)
        liar = served.channel(auth=Secret(b"guess"))
        assert await answer(liar.add_entry, 7, 1, entry(7, 1), KEY, 0) == BOOKIE_UNAVAILABLE
        assert await answer(liar.force_ledger, 7) == BOOKIE_UNAVAILABLE


async def test_a_client_that_offers_authentication_nobody_wants_is_served(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel(auth=Secret())
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        assert await answer(channel.force_ledger, 7) == ReturnCode.OK


async def test_authentication_by_another_plugin_ends_the_connection(tmp_path: Path) -> None:
    async with served_bookie(tmp_path, auth=Secret()) as served:
        wire = await served.wire()
        message = pb.AuthMessage(authPluginName="other", payload=b"hello").SerializeToString()
        wire.send(v2.encode_auth(v2.request_header(v2.AUTH, 0), message))
        assert await wire.ended()


async def test_authentication_through_tls(tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server, client = contexts
    async with served_bookie(tmp_path / "b", start_tls=server, auth=Secret()) as served:
        channel = served.channel(tls=client, auth=Secret())
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        assert await answer(channel.force_ledger, 7) == ReturnCode.OK


async def test_nothing_is_served_in_the_clear_where_tls_is_required(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, client = contexts
    async with served_bookie(tmp_path / "b", start_tls=server, tls_required=True) as served:
        plain = served.channel()
        assert await answer(plain.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.UNAUTHORIZED
        assert await answer(plain.read_lac, 7) == (ReturnCode.UNAUTHORIZED, None, None)
        channel = served.channel(tls=client)
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        assert await answer(channel.force_ledger, 7) == ReturnCode.OK


async def test_the_shared_secret_is_asked_for_inside_tls_only(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, client = contexts
    secret = b"correct horse battery staple"
    more = {"start_tls": server, "tls_required": True, "auth": BookieSecret(secret)}
    async with served_bookie(tmp_path / "b", **more) as served:
        channel = served.channel(tls=client, auth=ClientSecret(secret))
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        assert await answer(channel.force_ledger, 7) == ReturnCode.OK
        refused = {
            "in the clear": ({"auth": ClientSecret(secret)}, BOOKIE_UNAVAILABLE),
            "another secret": ({"tls": client, "auth": ClientSecret(secret[::-1])}, BOOKIE_UNAVAILABLE),
            "no secret": ({"tls": client}, ReturnCode.UNAUTHORIZED),
        }
        for case, (options, code) in refused.items():
            assert await answer(served.channel(**options).force_ledger, 7) == code, case
            assert await answer(served.channel(**options).read_entry, 7, 0, 0, b"") == (code, None), case


async def test_a_refused_certificate_is_not_shown_again_at_once(
    tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """TLS 1.3 tells the client after its handshake; pauses between attempts grow all the same."""
    server, client = contexts
    server.load_verify_locations(str(Authority(tmp_path / "other").file))
    server.verify_mode = ssl.CERT_REQUIRED
    async with served_bookie(tmp_path / "b", start_tls=server) as served:
        channel = served.channel(tls=client, retry_min_s=0.01, retry_max_s=3600.0)
        refused_at_once = 0
        async with asyncio.timeout(60):
            while refused_at_once < 3 or channel.connections_total < 3:
                before = channel.refused_total
                assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_UNAVAILABLE
                refused_at_once += channel.refused_total - before
                await asyncio.sleep(0.005)
        assert channel._v2.lane._failures >= 3
