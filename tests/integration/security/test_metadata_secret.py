"""Strangers at the metadata store: without the secret nothing is answered, kept or disturbed; clients take no store that lacks it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kazoo.protocol.serialization import GetACL

from magnetar.base.admission import Share
from magnetar.base.clock import SystemClock
from magnetar.base.java import find_java
from magnetar.metadata.digest_md5 import (
    ClientDigest,
    Credentials,
    MetadataAuthenticationError,
    ServerDigest,
    credentials,
)
from magnetar.metadata.errors import MetadataConnectionError
from magnetar.metadata.server import connection as connection_module
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.metadata.zookeeper_process import ZooKeeperProcess, four_letters, jars
from tests.contract.metadata.worlds import ServerWorld

KNOWN = credentials("magnetar", b"what-all-of-the-cluster-know")
WRONG = credentials("magnetar", b"what-somebody-tries-instead")
AUTH_FAILED = -115
SASL_REQUIRED = -124
OPERATIONS = {
    "create": (1, struct.pack("!i", 2) + b"/x" + struct.pack("!i", 0) + struct.pack("!i", 0) + struct.pack("!i", 0)),
    "delete": (2, struct.pack("!i", 5) + b"/kept" + struct.pack("!i", -1)),
    "get": (4, struct.pack("!i", 5) + b"/kept\0"),
    "set": (5, struct.pack("!i", 5) + b"/kept" + struct.pack("!i", 1) + b"x" + struct.pack("!i", -1)),
    "list": (8, struct.pack("!i", 1) + b"/\0"),
    "ping": (11, b""),
    "multi": (14, struct.pack("!i?i", -1, True, -1)),
    "watches": (101, struct.pack("!qiii", 0, 0, 0, 0)),
    "add watch": (106, struct.pack("!i", 1) + b"/" + struct.pack("!i", 1)),
    "digest": (100, struct.pack("!i", 0) + struct.pack("!i", 6) + b"digest" + struct.pack("!i", 3) + b"a:b"),
    "close": (-11, b""),
    "unknown": (4711, b""),
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServerWorld]:
    made = await ServerWorld(tmp_path / "server.db", credentials=KNOWN).open()
    yield made
    await made.close()


@pytest.fixture(scope="module")
def open_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "open") as process:
        yield process


@pytest.fixture(scope="module")
def asking_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "asking", credentials=KNOWN) as process:
        yield process


class Stranger:
    """A connection that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str) -> Stranger:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def say(self, body: bytes) -> None:
        self.writer.write(struct.pack("!i", len(body)) + body)

    async def frame(self) -> bytes:
        async with asyncio.timeout(60):
            (size,) = struct.unpack("!i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def greet(self, session_id: int = 0, password: bytes = bytes(16)) -> int:
        """The number of the session that the server says it gives."""
        self.say(struct.pack("!iqiq", 0, 0, 10_000, session_id) + struct.pack("!i", len(password)) + password + b"\0")
        return int(struct.unpack_from("!iiq", await self.frame())[2])

    async def ask(self, op: int, body: bytes = b"", xid: int = 1) -> tuple[int, bytes]:
        """(code, body) of the answer."""
        self.say(struct.pack("!ii", xid, op) + body)
        frame = await self.frame()
        return struct.unpack_from("!iqi", frame)[2], frame[16:]

    async def sasl(self, token: bytes) -> tuple[int, bytes]:
        code, body = await self.ask(102, struct.pack("!i", len(token)) + token)
        return code, body[4:]

    async def ended(self, timeout_s: float = 5.0) -> bool:
        async with asyncio.timeout(timeout_s):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True
        return False


def rows(tmp_path: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{tmp_path}/server.db?mode=ro", uri=True)) as connection:
        return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_unauthenticated_session_may_do_nothing(world: ServerWorld, tmp_path: Path, name: str) -> None:
    await world.store.put("/kept", b"mine")
    sessions, nodes = rows(tmp_path, "sessions"), rows(tmp_path, "nodes")
    stranger = await Stranger.connect(world.address)
    await stranger.greet()
    op, body = OPERATIONS[name]
    assert (await stranger.ask(op, body))[0] == SASL_REQUIRED
    assert await stranger.ended()
    again = await Stranger.connect(world.address)
    await again.greet()
    assert (await again.sasl(b""))[0] == 0
    assert (await again.ask(op, body))[0] == SASL_REQUIRED, "nor in the middle of an authentication"
    assert await again.ended()
    assert (rows(tmp_path, "sessions"), rows(tmp_path, "nodes")) == (sessions, nodes), "nothing is kept of them"
    node = await world.store.get("/kept")
    assert node is not None
    assert node.value == b"mine"


@pytest.mark.parametrize(
    "token",
    [b"", b"nonsense", b"\xff\xfe", b'username="magnetar",username="magnetar"', b"x=y," * 5_000],
    ids=["empty", "nonsense", "bytes", "twice", "long"],
)
async def test_tokens_that_prove_nothing(world: ServerWorld, token: bytes) -> None:
    stranger = await Stranger.connect(world.address)
    await stranger.greet()
    await stranger.sasl(b"")
    assert (await stranger.sasl(token))[0] == AUTH_FAILED
    assert await stranger.ended()


async def test_a_proof_is_good_for_one_connection(world: ServerWorld) -> None:
    first, second = await Stranger.connect(world.address), await Stranger.connect(world.address)
    await first.greet()
    await second.greet()
    client = ClientDigest(KNOWN)
    response = client.respond((await first.sasl(b""))[1])
    await second.sasl(b"")
    assert (await second.sasl(response))[0] == AUTH_FAILED
    code, proof = await first.sasl(response)
    assert code == 0
    client.check(proof)
    assert (await first.ask(11, xid=-2))[0] == 0


async def test_a_session_is_taken_up_by_nobody_who_does_not_know_the_secret(world: ServerWorld) -> None:
    """Even with its number and password, which pass in the clear."""
    kazoo = world.store._kazoo  # type: ignore[attr-defined]
    stranger = await Stranger.connect(world.address)
    assert await stranger.greet(kazoo.session_id, kazoo.session_password) == kazoo.session_id
    assert (await stranger.ask(-11))[0] == SASL_REQUIRED
    assert await stranger.ended()
    assert await world.store.put("/mine", b"", ephemeral=True) == ("/mine", 0)
    assert world.store.session_id == kazoo.session_id
    assert kazoo._client.connected, "its connection was not broken for the stranger's"


async def test_strangers_have_a_deadline_short_frames_and_few_words(
    world: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.3)
    half = await Stranger.connect(world.address)
    await half.greet()
    await half.sasl(b"")
    assert await half.ended(), "it stopped within the authentication"
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 30)
    long = await Stranger.connect(world.address)
    long.writer.write(struct.pack("!i", 64 * 1024 + 1))
    assert await long.ended()
    port = int(world.address.rpartition(":")[2])
    assert await asyncio.to_thread(four_letters, "127.0.0.1", port, "ruok") == "imok"
    assert await asyncio.to_thread(four_letters, "127.0.0.1", port, "mntr", 0.5) == ""


async def test_a_crowd_without_the_secret_makes_room_and_clients_with_it_do_not(tmp_path: Path) -> None:
    """What the server answers before the proof, a session's number among it, makes nobody a client."""
    share = Share("binary", 0, 0, strangers_max=3)
    world = await ServerWorld(tmp_path / "server.db", credentials=KNOWN, share=share).open()
    try:
        other = await world.other()
        crowd = []
        for _ in range(10):
            crowd.append(await Stranger.connect(world.address))
            assert await crowd[-1].greet()
        for evicted in crowd[:7]:
            assert await evicted.ended()
        assert (share.strangers_count, share.evicted_total) == (3, 7)
        third = await world.other()
        for store in (world.store, other, third):
            assert await store.exists("/")
        assert share.evicted_total >= 8, "of the crowd, for the third client"
        assert share.refused_total == 0
        for stranger in crowd:
            stranger.writer.close()
    finally:
        await world.close()
    share.validate()


async def open_for(address: str, who: Credentials | None) -> ZooKeeperMetadataStore:
    store = await ZooKeeperMetadataStore.open(
        address, clock=SystemClock(), session_timeout_s=4.0, first_answer_s=4.0, credentials=who, root="/somewhere"
    )
    await store.close()
    return store


async def test_clients_are_told_what_is_wrong_at_once(world: ServerWorld, tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with pytest.raises(MetadataAuthenticationError, match="metadataSecret"):
        await open_for(world.address, None)
    with pytest.raises(MetadataAuthenticationError, match="refuses the authentication"):
        await open_for(world.address, WRONG)
    open_world = await ServerWorld(tmp_path / "open.db").open()
    try:
        with pytest.raises(MetadataAuthenticationError, match="asks for none"):
            await open_for(open_world.address, KNOWN)
    finally:
        await open_world.close()
    assert time.monotonic() - begun_s < 10


async def test_a_session_goes_on_after_its_connection_broke(world: ServerWorld) -> None:
    await world.store.put("/mine", b"", ephemeral=True)
    before = world.store.session_id
    await world.stop()
    await world.start()
    assert await world.store.exists("/mine")
    assert world.store.session_id == before


async def test_zookeepers_own_java_client_proves_itself_to_our_server(world: ServerWorld, tmp_path: Path) -> None:
    known = await java_client(world.address, tmp_path / "known", KNOWN)
    refused = await asyncio.gather(
        java_client(world.address, tmp_path / "wrong", WRONG),
        java_client(world.address, tmp_path / "none", None),
    )
    assert "Created /known" in known, known
    assert "one" in known
    assert all("Created" not in each for each in refused), refused
    store = await ZooKeeperMetadataStore.open(world.address, clock=SystemClock(), credentials=KNOWN)
    try:
        names = await store.children("/")
    finally:
        await store.close()
    assert {"known", "wrong", "none"} & {*names} == {"known"}


async def java_client(address: str, login: Path, who: Credentials | None) -> str:
    """What ZooKeeper's shell prints when it creates a node called as the file `login`."""
    options = []
    if who is not None:
        login.write_text(
            "Client { org.apache.zookeeper.server.auth.DigestLoginModule required "
            f'username="{who.user}" password="{who.secret}"; }};\n'
        )
        options = [f"-Djava.security.auth.login.config={login}", "-Dzookeeper.fips-mode=false"]
    node = f"/{login.name}"
    process = await asyncio.create_subprocess_exec(
        *[str(find_java()), "-XX:TieredStopAtLevel=1", *options, "-cp", f"{jars()}/*"],
        *["org.apache.zookeeper.ZooKeeperMain", "-server", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(60 if who == KNOWN else 15):
            output, _ = await process.communicate(f"create {node} one\nget {node}\nquit\n".encode())
    except TimeoutError:  # it goes on trying for as long as it is refused
        process.kill()
        output, _ = await process.communicate()
    return output.decode(errors="replace")


async def test_a_real_zookeeper_and_its_access_lists(asking_zookeeper: ZooKeeperProcess) -> None:
    address = asking_zookeeper.address
    store = await ZooKeeperMetadataStore.open(address, clock=SystemClock(), root="/chroot", credentials=KNOWN)
    try:
        await store.put("/a/b", b"one")
        await store.put("/c", b"", ephemeral=True, sequential=True)
        await store.create_missing(["/many/x", "/many/y"])
        for path in ("/chroot", "/chroot/a", "/chroot/a/b", "/chroot/many", "/chroot/many/x"):
            acl, _ = await store._kazoo.request(GetACL(path))
            assert [(each.perms, each.id.scheme, each.id.id) for each in acl] == [(31, "sasl", "magnetar")], path
    finally:
        await store.close()
    for who in (None, WRONG):
        with pytest.raises((MetadataAuthenticationError, MetadataConnectionError)):
            await open_for(address, who)


async def test_a_real_zookeeper_that_asks_for_nothing_is_not_believed(open_zookeeper: ZooKeeperProcess) -> None:
    with pytest.raises((MetadataAuthenticationError, MetadataConnectionError)):
        await open_for(open_zookeeper.address, KNOWN)


def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    client, impostor = ClientDigest(KNOWN), ServerDigest(WRONG)
    client.respond(impostor.challenge())
    for proof in (b"", b"rspauth=", b"rspauth=" + b"0" * 32):
        with pytest.raises(MetadataAuthenticationError):
            client.check(proof)
    server = ServerDigest(KNOWN)
    proof = server.verify(client.respond(server.challenge()))
    client.check(proof)
    with pytest.raises(MetadataAuthenticationError):
        ClientDigest(KNOWN).check(proof)
