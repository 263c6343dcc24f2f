"""A cluster whose bookies speak TLS only, ask for certificates and for the shared secret: real processes, the official client."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, redirect_stdout
from io import StringIO
from pathlib import Path

import pulsar
import pytest

from magnetar.base.clock import SystemClock
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.wire_settings import BookieRequestSettings, BookieTlsSettings
from magnetar.cli.main import run
from magnetar.processes.bookie_wire import command_options
from magnetar.processes.cluster.growth import Wish
from magnetar.processes.configurations import BookieProcessConfig
from magnetar.processes.ledger_client import open_ledger_client
from magnetar.processes.metadata_access import open_metadata
from magnetar.testing.cluster import ClusterProcesses
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

SECRET = "correct horse battery staple"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    (authority.directory / "secret").write_text(SECRET)
    return authority


@pytest.fixture(scope="module")
def cluster(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    bookie, bookie_key = authority.sign("bookie")
    broker, broker_key = authority.sign("broker")
    settings = [
        f"bookieSharedSecret={authority.directory / 'secret'}",
        f"tlsCertificatePath={bookie}",
        f"tlsKeyStore={bookie_key}",
        f"tlsTrustStore={authority.file}",
        "bookie.tlsClientAuthentication=true",
        "broker.bookkeeperTLSClientAuthentication=true",
        f"broker.bookkeeperTLSTrustCertsFilePath={authority.file}",
        f"broker.bookkeeperTLSCertificateFilePath={broker}",
        f"broker.bookkeeperTLSKeyFilePath={broker_key}",
    ]
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with ClusterProcesses(directory, bookies=2, ensemble=(2, 2, 2), settings=settings) as processes:
        yield processes


def access(
    authority: Authority, *, certificate: tuple[str, str] | None, trust: str = "", secret: str = ""
) -> ChannelOptions:
    """What a client of the bookies is told; all of it right unless said otherwise."""
    (authority.directory / "told").write_text(secret or SECRET)
    path, key = certificate or ("", "")
    tls = BookieTlsSettings(tls_certificate_path=path, tls_key_store=key, tls_trust_store=trust or str(authority.file))
    told = str(authority.directory / "told")
    return command_options(BookieRequestSettings(bookie_shared_secret=told, read_entry_timeout_s=2.0), tls)


async def write_one(cluster: ClusterProcesses, options: ChannelOptions) -> int:
    """The id of a new ledger with one entry. Raises LedgerError."""
    async with AsyncExitStack() as stack:
        clock = SystemClock()
        store = await open_metadata(cluster.metadata_url, 10, clock, stack, cluster.metadata_credentials)
        client, _ = await open_ledger_client(store, clock, random.Random(7), stack, options=options)
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        stored: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        writer.append(b"one", stored.set_result)
        error = await asyncio.wait_for(stored, 40)
        if error is not None:
            raise error
        await writer.close()
        return writer.ledger_id


def test_the_official_client_does_not_notice(cluster: ClusterProcesses, connect: Connect) -> None:
    client = connect(cluster.service_url)
    consumer = client.subscribe("topic", "subscription")
    producer = client.create_producer("topic")
    for number in range(50):
        producer.send(b"%d" % number)
    assert [consumer.receive(30_000).data() for _ in range(50)] == [b"%d" % number for number in range(50)]
    for name in ("bookie1", "broker1"):
        assert SECRET not in cluster.log(name)


def test_commands_find_in_the_clusters_directory_how_to_ask_its_bookies(
    cluster: ClusterProcesses, authority: Authority
) -> None:
    ledger_id = asyncio.run(write_one(cluster, access(authority, certificate=authority.sign("tool"))))
    with redirect_stdout(StringIO()) as out:
        assert run(["ledger", "read", str(ledger_id), "--json", "--dir", str(cluster.directory)]) == 0
    assert json.loads(out.getvalue())["payload"] == base64.b64encode(b"one").decode()
    with redirect_stdout(StringIO()) as out:
        assert run(["bookies", "list", "--json", "--dir", str(cluster.directory)]) == 0
    assert [each["freeBytes"] is None for each in json.loads(out.getvalue())] == [False, False]


@pytest.mark.parametrize("case", ["plain", "no certificate", "strange certificate", "strange bookie", "wrong secret"])
def test_strangers_are_refused(cluster: ClusterProcesses, authority: Authority, tmp_path: Path, case: str) -> None:
    strange = Authority(tmp_path / "strange", "strange-ca")
    ours = authority.sign("tool")
    options = {
        "plain": lambda: ChannelOptions(),
        "no certificate": lambda: access(authority, certificate=None),
        "strange certificate": lambda: access(authority, certificate=strange.sign("tool")),
        "strange bookie": lambda: access(authority, certificate=ours, trust=str(strange.file)),
        "wrong secret": lambda: access(authority, certificate=ours, secret=SECRET[::-1]),
    }[case]()
    with pytest.raises(LedgerError):
        asyncio.run(write_one(cluster, options))


def test_a_broker_with_a_strange_certificate_stores_nothing(
    cluster: ClusterProcesses, connect: Connect, tmp_path: Path
) -> None:
    certificate, key = Authority(tmp_path / "strange", "strange-ca").sign("broker")
    old = cluster.cluster.plan.settings
    cluster.stop("broker1")
    wrong = [f"broker.bookkeeperTLSCertificateFilePath={certificate}", f"broker.bookkeeperTLSKeyFilePath={key}"]
    cluster.cluster.up(Wish(settings=wrong))
    stored: list[pulsar.Result] = []
    producer = connect(cluster.service_url).create_producer("another", send_timeout_millis=0)
    producer.send_async(b"one", lambda result, message_id: stored.append(result))
    wait_until(lambda: "cannot be reached" in cluster.log("broker1"), 60, what="the bookies refuse the broker")
    cluster.kill("broker1")
    assert stored == []
    cluster.cluster.up(Wish(settings=[f"{each.target}.{each.key}={each.value}" for each in old if each.target]))
    wait_until(lambda: stored == [pulsar.Result.Ok], 60, what="the message is stored once the certificate is right")


def test_a_bookie_that_asks_nobody_does_not_listen_to_everybody(tmp_path: Path) -> None:
    words = ["bookie", "--data-dir", str(tmp_path), "--metadata-url", "zk:127.0.0.1:1", "--bind-address", "0.0.0.0"]
    assert run(words) == 1
    assert not BookieProcessConfig(metadata_service_uri="zk:127.0.0.1:1").asks_everybody
