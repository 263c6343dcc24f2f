"""Our metadata server: killed processes, sessions that outlive connections, old clients, hostile ones, Java's own."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.base.admission import Share
from magnetar.base.clock import SystemClock
from magnetar.base.errors import MetadataError
from magnetar.base.java import find_java
from magnetar.metadata import zookeeper as zookeeper_module
from magnetar.metadata.server import connection as connection_module
from magnetar.metadata.server import server as server_module
from magnetar.metadata.server.connection import FRAME_BYTES_MAX
from magnetar.metadata.store import RESYNC, SessionEvent
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.metadata.zookeeper_process import four_letters, jars
from tests.contract.metadata.worlds import ServerWorld


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServerWorld]:
    made = await ServerWorld(tmp_path / "server.db", session_timeout_s=10.0).open()
    yield made
    await made.close()


_SERVER = """
import asyncio, random, sys
from pathlib import Path
from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.base.network import AsyncioNetwork
from magnetar.metadata.server.server import MetadataServer
async def main():
    listener = AsyncioNetwork().bind("127.0.0.1", int(sys.argv[2]))
    executor = ThreadExecutor("metadata")
    rng = random.Random()
    async with MetadataServer(Path(sys.argv[1]), executor=executor, clock=SystemClock(), rng=rng) as server:
        await server.serve(listener)
        print(listener.port, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def start_process(file: Path, port: int = 0) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(file), str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


async def test_kill_9_loses_nothing_acknowledged_and_no_session(tmp_path: Path) -> None:
    process, port = start_process(tmp_path / "m.db")
    store = await ZooKeeperMetadataStore.open(f"127.0.0.1:{port}", clock=SystemClock(), session_timeout_s=10.0)
    events: list[SessionEvent] = []
    acknowledged: list[str] = []
    store.on_session(events.append)
    await store.put("/me", b"", ephemeral=True)
    session = store.session_id

    async def write(number: int) -> None:
        for turn in range(60):
            try:
                path, _ = await store.put(f"/w{number}/{turn}", b"v")
            except MetadataError:
                continue  # done or not: nobody was told
            acknowledged.append(path)

    writers = [asyncio.get_running_loop().create_task(write(number)) for number in range(10)]
    await until(lambda: len(acknowledged) > 300)
    process.kill()
    process.wait()
    process, _ = start_process(tmp_path / "m.db", port)
    await asyncio.gather(*writers)
    for path in acknowledged:
        assert await store.exists(path), path
    assert store.session_id == session
    node = await store.get("/me")
    assert node is not None
    assert node.owner == session
    assert events == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
    await store.close()
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def test_a_session_outlives_its_connection_and_the_server_but_not_its_time(world: ServerWorld) -> None:
    watcher = await world.other()
    heard: list[str] = []
    watcher.watch(heard.append, "/e")
    client = KazooClient(world.address, timeout=10.0)
    await asyncio.to_thread(client.start)
    await asyncio.to_thread(client.create, f"{world.root}/e", b"", None, True)
    identity = client.client_id
    client._connection._socket.shutdown(socket.SHUT_RDWR)
    await asyncio.to_thread(client.retry, client.get, f"{world.root}/e")
    assert client.client_id == identity
    await world.stop()
    await until(lambda: not client.connected)
    await world.start()
    await until(lambda: client.connected)
    assert client.client_id == identity
    assert await watcher.exists("/e")
    client._connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client._stopped.set()  # kazoo falls silent: no close, no ping
    client._connection._socket.shutdown(socket.SHUT_RDWR)
    session = world.server._sessions.get(identity[0])
    assert session is not None
    session.heard_s -= 9.5  # of its ten seconds
    await until(lambda: heard.count("/e") == 2)
    assert not await watcher.exists("/e")


async def test_a_server_without_tree_watches_is_looked_at_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_module, "RESYNC_INTERVAL_S", 0.05)
    world = await ServerWorld(tmp_path / "old.db", tree_watches=False).open()
    heard: list[str] = []
    world.store.watch(heard.append)
    await until(lambda: heard[:3] == [RESYNC] * 3)
    await world.close()


async def test_connections_and_sessions_are_bounded(world: ServerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The world's own store is one of each."""

    async def is_closed(first_bytes: bytes) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(world.address.rpartition(":")[2]))
        writer.write(first_bytes)
        try:
            async with asyncio.timeout(10):
                return await reader.read(1) == b""
        except ConnectionError:
            return True
        finally:
            writer.close()

    connect = struct.pack("!iqiq", 0, 0, 1000, 0) + struct.pack("!i", 16) + bytes(16) + b"\0"
    wanted = struct.pack("!i", len(connect)) + connect
    assert not await is_closed(wanted)
    monkeypatch.setattr(server_module, "SESSIONS_MAX", 1)
    assert await is_closed(wanted)
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.05)
    assert await is_closed(b"")  # says nothing for too long
    assert await world.store.exists("/")


async def test_connections_are_bounded_and_those_without_a_session_go_first(tmp_path: Path) -> None:
    world = await ServerWorld(tmp_path / "server.db", share=Share("binary", 2, 0)).open()
    try:
        address = "127.0.0.1", int(world.address.rpartition(":")[2])
        silent, silent_writer = await asyncio.open_connection(*address)
        other = await world.other()
        async with asyncio.timeout(5):
            assert await silent.read() == b"", "it made room for a client"
        late, late_writer = await asyncio.open_connection(*address)
        async with asyncio.timeout(5):
            assert await late.read() == b"", "sessions make room for nobody"
        assert await other.exists("/")
        assert await world.store.exists("/")
        silent_writer.close()
        late_writer.close()
    finally:
        await world.close()


def test_four_letter_words_and_nonsense_from_strangers(tmp_path: Path) -> None:
    process, port = start_process(tmp_path / "m.db")
    try:
        assert four_letters("127.0.0.1", port, "ruok") == "imok"
        assert "Mode: standalone" in four_letters("127.0.0.1", port, "srvr")
        connect = struct.pack("!iqiq", 0, 0, 1000, 0) + struct.pack("!i", 16) + bytes(16) + b"\0"
        for nonsense in (
            struct.pack("!i", FRAME_BYTES_MAX + 1),
            struct.pack("!i", -5),
            struct.pack("!i", 4) + b"abcd",
            struct.pack("!i", len(connect)) + connect + struct.pack("!iii", 8, 1, 1),
            struct.pack("!i", len(connect)) + connect + struct.pack("!iiii", 12, 1, 1, 2**31 - 1),
        ):
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(nonsense)
                stranger.settimeout(30)
                while stranger.recv(4096):
                    continue  # a greeting perhaps, then the end
        assert four_letters("127.0.0.1", port, "ruok") == "imok"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


_JAVA_SESSION = """\
create /java one
create -e /java/e two
create -s /java/s- three
set /java 1.0
get -s /java
ls /java
addWatch -m PERSISTENT_RECURSIVE /java
set /java/s-0000000001 four
delete /java/e
quit
"""


async def test_zookeepers_own_java_client_works_with_it(world: ServerWorld) -> None:
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", "org.apache.zookeeper.ZooKeeperMain"]
    process = await asyncio.create_subprocess_exec(
        *command, "-server", world.address, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate(_JAVA_SESSION.encode())
    text = output.decode()
    assert "Created /java/s-0000000001" in text, text
    assert "1.0\ncZxid = " in text
    assert "dataVersion = 1" in text
    assert "numChildren = 2" in text
    assert "[e, s-0000000001]" in text
    assert "type:NodeDataChanged path:/java/s-0000000001" in text
    assert "type:NodeDeleted path:/java/e" in text
