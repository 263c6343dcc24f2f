"""Damage to metadata files is noticed at the start: a flipped bit, a lost or an older file never becomes an empty topic."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess, ServerStartError

TOPICS = 8
MESSAGES = 5

StartServer = Callable[..., ServerProcess]
Connect = Callable[..., pulsar.Client]


def flip(file: Path, tenth: int) -> None:
    """One bit of the byte nearest to the middle of this tenth that is not zero."""
    data = bytearray(file.read_bytes())
    middle = len(data) * (2 * tenth + 1) // 20
    offset = min((at for at in range(len(data)) if data[at]), key=lambda at: abs(at - middle))
    data[offset] ^= 0x10
    file.write_bytes(data)


def topic(number: int) -> str:
    return f"persistent://public/default/before-{number}"


def payloads(number: int) -> list[bytes]:
    return [b"before-%d-%d" % (number, turn) for turn in range(MESSAGES)]


def fill(client: pulsar.Client) -> None:
    for number in range(TOPICS):
        producer = client.create_producer(topic(number), batching_enabled=False)
        for payload in payloads(number):
            producer.send(payload)
        producer.close()


def read_all(client: pulsar.Client, name: str) -> list[bytes]:
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(5_000).data())
    reader.close()
    return found


def copy(source: Path, target: Path) -> None:
    """Without the socket that a killed server leaves, which is nothing to copy."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock"))


class Killed:
    """A server with messages that was killed, and its directory as the kill left it."""

    def __init__(self, server: ServerProcess, pristine: Path) -> None:
        self.server = server
        self._pristine = pristine
        server.kill()
        copy(server.data_dir, pristine)

    @property
    def file(self) -> Path:
        return self.server.data_dir / "metadata.sqlite"

    def restore(self) -> None:
        self.server.close()
        shutil.rmtree(self.server.data_dir)
        copy(self._pristine, self.server.data_dir)

    def refusal(self) -> str | None:
        """What the start says when it refuses; None: it serves."""
        before = len(self.server.log())
        try:
            self.server.start()
        except ServerStartError:
            assert self.server.wait() == 1
            said = self.server.log()[before:]
            assert "Traceback" not in said
            return said.splitlines()[-1]
        return None


@pytest.fixture
def killed(start_server: StartServer, connect: Connect, tmp_path: Path) -> Iterator[Killed]:
    server = start_server()
    client = connect(server.service_url)
    fill(client)
    client.close()
    made = Killed(server, tmp_path / "pristine")
    assert Path(f"{made.file}-wal").stat().st_size > 100_000
    yield made
    server.close()


def assert_complete(server: ServerProcess, connect: Connect) -> None:
    client = connect(server.service_url)
    for number in range(TOPICS):
        assert read_all(client, topic(number)) == payloads(number)
    producer = client.create_producer("persistent://public/default/after", batching_enabled=False)
    assert read_all(client, "persistent://public/default/after") == []
    producer.send(b"after")
    assert read_all(client, "persistent://public/default/after") == [b"after"]
    client.close()


@pytest.mark.parametrize("tenth", range(10))
def test_a_flipped_bit_in_the_log_refuses_the_start_and_changes_nothing(
    killed: Killed, connect: Connect, tenth: int
) -> None:
    log = Path(f"{killed.file}-wal")
    flip(log, tenth)
    before = log.read_bytes(), killed.file.read_bytes()
    refused = killed.refusal()
    assert refused is not None
    assert refused.startswith("magnetar: the metadata file")
    assert "has lost commits" in refused
    assert "magnetar metadata salvage" in refused
    assert (log.read_bytes(), killed.file.read_bytes()) == before
    killed.restore()
    assert killed.refusal() is None
    assert_complete(killed.server, connect)


def test_a_bit_in_the_file_or_in_the_mark_is_refused_or_costs_nothing(killed: Killed, connect: Connect) -> None:
    """With the log carried into the file, so that every page counts."""
    assert killed.refusal() is None
    killed.server.stop()
    shutil.rmtree(killed._pristine)
    copy(killed.server.data_dir, killed._pristine)
    refused = 0
    for name, tenths in (("metadata.sqlite", range(10)), ("metadata.sqlite-mark", (0,))):
        for tenth in tenths:
            killed.restore()
            flip(killed.server.data_dir / name, tenth)
            said = killed.refusal()
            if said is None:
                assert_complete(killed.server, connect)
            else:
                refused += 1
                assert name in said
                assert "restore" in said
    assert refused >= 5


@pytest.mark.parametrize("name", ["metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-mark"])
def test_a_lost_file_is_refused(killed: Killed, name: str) -> None:
    (killed.server.data_dir / name).unlink()
    refused = killed.refusal()
    assert refused is not None
    assert "restore" in refused.lower()


def test_an_older_copy_of_the_file_is_refused(killed: Killed, connect: Connect, tmp_path: Path) -> None:
    assert killed.refusal() is None
    killed.server.stop()
    shutil.copy(killed.file, tmp_path / "older")
    assert killed.refusal() is None
    client = connect(killed.server.service_url)
    client.create_producer("persistent://public/default/later").close()
    client.close()
    killed.server.stop()
    shutil.copy(tmp_path / "older", killed.file)
    refused = killed.refusal()
    assert refused is not None
    assert "has lost commits" in refused


def magnetar(*words: str | Path) -> str:
    done = subprocess.run([sys.executable, "-m", "magnetar", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_empty_store_beside_a_bookie_with_ledgers_is_refused(killed: Killed, connect: Connect) -> None:
    """Also its mark is gone, so only the bookie can know: its cookie is missing, before any ledger id is looked at."""
    for path in killed.server.data_dir.glob("metadata.sqlite*"):
        path.unlink()
    refused = killed.refusal()
    assert refused is not None
    assert "has data but the metadata store does not know it" in refused
    killed.restore()
    assert killed.refusal() is None
    assert_complete(killed.server, connect)


def test_what_is_left_can_be_salvaged(killed: Killed, connect: Connect) -> None:
    """Topics are whole or gone, and new ones never get the messages of old ones."""
    flip(Path(f"{killed.file}-wal"), 6)
    assert killed.refusal() is not None
    assert "lost: transactions" in magnetar("metadata", "salvage", killed.server.data_dir)
    refused = killed.refusal()
    assert refused is not None
    magnetar("metadata", "raise-ledger-ids", refused.rpartition(" ")[2], "--data-dir", killed.server.data_dir)
    assert killed.refusal() is None
    client = connect(killed.server.service_url)
    for number in range(TOPICS):
        producer = client.create_producer(topic(number), batching_enabled=False)
        producer.send(b"new")
        assert read_all(client, topic(number)) in ([*payloads(number), b"new"], [b"new"])
    client.close()
