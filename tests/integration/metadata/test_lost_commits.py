"""A metadata server that was set back: its own clients stop it, strangers do not; and what is left can be salvaged."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.errors import MetadataError
from magnetar.base.ports import free_ports
from magnetar.metadata.store import Node
from magnetar.metadata.zookeeper import ZooKeeperMetadataStore
from magnetar.metadata.zookeeper_process import four_letters

FAR_AHEAD = 1 << 40


class Server:
    """`magnetar metadata-server` as a process."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Server:
        command = [sys.executable, "-m", "magnetar", "metadata-server", "--data-dir", str(self.data_dir)]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("magnetar ready")
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        """An orderly end."""
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=60)
        self._process = None

    def end(self) -> tuple[int, str]:
        """(exit code, what it said) of a server that ends by itself."""
        assert self._process is not None
        _, said = self._process.communicate(timeout=60)
        code = self._process.returncode
        self._process = None
        return code, said

    def greet(self, last_zxid: int, session_id: int, password: bytes) -> bytes:
        """A client's first frame; what the server says until it closes the connection, or its first answer."""
        frame = struct.pack("!iqiqi", 0, last_zxid, 10_000, session_id, len(password)) + password
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(struct.pack("!i", len(frame)) + frame)
            try:
                return connection.recv(1_000)
            except ConnectionResetError:
                return b""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "data").start()
    yield made
    made.kill()


def magnetar(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "magnetar", *words], capture_output=True, text=True, timeout=30)


async def open_store(server: Server) -> ZooKeeperMetadataStore:
    return await ZooKeeperMetadataStore.open(f"127.0.0.1:{server.port}", clock=SystemClock(), session_timeout_s=20.0)


async def test_a_client_ahead_of_its_store_stops_the_store(server: Server, tmp_path: Path) -> None:
    older = tmp_path / "older"
    store = await open_store(server)
    await store.put("/before", b"1")
    server.kill()
    shutil.copytree(server.data_dir, older)
    server.start()
    for number in range(20):
        while True:
            try:
                await store.put(f"/later/{number}", b"2")
                break
            except MetadataError:
                continue  # the connection is not up again
    server.kill()
    shutil.rmtree(server.data_dir)
    shutil.copytree(older, server.data_dir)
    server.start()
    code, said = server.end()
    assert code == 1
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    assert "has lost commits and stops" in line
    assert "magnetar metadata salvage" in line
    done = magnetar("metadata", "salvage", server.data_dir, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["damaged_nodes"] == []
    server.start()
    assert await store.get("/before") == Node(b"1", 0)
    assert await store.get("/later/0") is None
    await store.close()


@pytest.mark.parametrize("session_id", [0, 1, 0x7777777777777777, -1])
async def test_a_stranger_who_claims_to_be_ahead_stops_nothing(server: Server, session_id: int) -> None:
    store = await open_store(server)
    for password in (b"", bytes(16), b"p" * 16, b"p" * 1_000):
        assert server.greet(FAR_AHEAD, session_id, password) == b""
    own = store.session_id
    assert server.greet(FAR_AHEAD, own, bytes(16)) == b""
    assert four_letters("127.0.0.1", server.port, "ruok") == "imok"
    await store.put("/still", b"served")
    await store.close()


def test_salvage_after_a_bit_in_the_log(server: Server) -> None:
    """What comes before the bit is there, the files as they were are beside it, and the loss is named."""
    url = f"zk:127.0.0.1:{server.port}"
    server.greet(0, 0, bytes(16))
    server.kill()
    log = server.data_dir / "metadata.sqlite-wal"
    data = bytearray(log.read_bytes())
    data[len(data) * 9 // 10] ^= 1
    log.write_bytes(data)
    refused = magnetar("metadata-server", "--data-dir", server.data_dir, "--port", str(server.port))
    assert refused.returncode == 1
    assert "has lost commits" in refused.stderr
    looked = magnetar("metadata", "ls", "/", "--metadata", f"sqlite:{server.data_dir}/metadata.sqlite")
    assert looked.returncode == 1
    assert "has lost commits" in looked.stderr
    done = magnetar("metadata", "salvage", server.data_dir)
    assert done.returncode == 0, done.stderr
    assert "lost: transactions" in done.stdout
    assert (server.data_dir / "metadata.sqlite-salvaged-1" / "metadata.sqlite-wal").read_bytes() == data
    server.start()
    assert magnetar("metadata", "ls", "/", "--metadata", url).returncode == 0


NODES = 200


async def filled(server: Server) -> dict[str, bytes]:
    """Nodes that were acknowledged: their data by path."""
    store = await open_store(server)
    nodes = {f"/kept/{number}": b"%d" % number * 50 for number in range(NODES)}
    for path, data in nodes.items():
        await store.put(path, data)
    await store.close()
    return nodes


def flip(file: Path, tenth: int) -> None:
    """One bit of the byte nearest to the middle of this tenth that is not zero."""
    data = bytearray(file.read_bytes())
    middle = len(data) * (2 * tenth + 1) // 20
    offset = min((at for at in range(len(data)) if data[at]), key=lambda at: abs(at - middle))
    data[offset] ^= 0x10
    file.write_bytes(data)


@pytest.mark.parametrize("carried", [False, True], ids=["log", "file"])
async def test_a_bit_at_every_tenth_of_the_servers_files(server: Server, tmp_path: Path, carried: bool) -> None:
    """Killed with its commits in the log, or after they were carried into the file: the start is refused, or every node is there."""
    nodes = await filled(server)
    server.kill()
    if carried:
        server.start().stop()
    pristine = tmp_path / "pristine"
    shutil.copytree(server.data_dir, pristine)
    names = sorted(
        file.name for file in pristine.iterdir() if file.name.startswith("metadata.sqlite") and file.stat().st_size
    )
    assert ("metadata.sqlite-wal" in names) != carried
    refused = dict.fromkeys(names, 0)
    for name in names:
        for tenth in range(10):
            shutil.rmtree(server.data_dir)
            shutil.copytree(pristine, server.data_dir)
            flip(server.data_dir / name, tenth)
            try:
                server.start()
            except AssertionError:
                code, said = server.end()
                assert code == 1
                assert "Traceback" not in said
                assert "metadata.sqlite" in said
                refused[name] += 1
                continue
            store = await open_store(server)
            for path, data in nodes.items():
                assert await store.get(path) == Node(data, 0), (name, tenth, path)
            await store.close()
            server.kill()
    print(f"\nrefused starts of 10 flips each: {refused}")
    damaged = "metadata.sqlite" if carried else "metadata.sqlite-wal"
    assert refused[damaged] >= 5
