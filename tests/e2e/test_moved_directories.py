"""Data directories are moved, copied, linked and spelled otherwise: they start. What does not belong together is refused, untouched."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from magnetar.base.executor import ThreadExecutor
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.sqlite_file import FILE_NAME
from magnetar.processes.cluster.plan import BROKER, load_plan
from magnetar.testing.server import ServerProcess, ServerStartError
from tests.support.traffic import read_log

MESSAGES = [b"%d" % number for number in range(30)]
COMMAND_S = 90


def publish(url: str) -> None:
    client = pulsar.Client(url)
    producer = client.create_producer("topic")
    for payload in MESSAGES:
        producer.send(payload)
    client.close()


async def forget_cookies(file: Path) -> None:
    """As in a store of the release before, which kept none."""
    executor = ThreadExecutor("metadata")
    store = await SqliteMetadataStore.open(file, executor)
    for name in await store.children("/ledgers/cookies"):
        await store.delete(f"/ledgers/cookies/{name}")
    await store.close()
    executor.close()


def check(url: str) -> None:
    client = pulsar.Client(url)
    assert read_log(client, "topic").payloads == MESSAGES
    client.close()


def served(directory: Path, *, kill: bool = True) -> None:
    """Start on it, find everything, and end."""
    server = ServerProcess(directory)
    server.log_path = Path(os.path.abspath(directory)).parent / "log"
    try:
        check(server.start().service_url)
        server.kill() if kill else server.stop()
    finally:
        server.close()


def refusal(directory: Path) -> str:
    server = ServerProcess(directory)
    server.log_path = directory.parent / "refused.log"
    try:
        with pytest.raises(ServerStartError):
            server.start()
        return server.log()
    finally:
        server.close()


def copied(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


@pytest.mark.parametrize("kill", [True, False])
def test_a_standalone_directory_starts_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    server = ServerProcess(Path("d"))
    server.log_path = tmp_path / "log"
    try:
        publish(server.start().service_url)
        server.kill() if kill else server.stop()
    finally:
        server.close()
    served(tmp_path / "d")
    (tmp_path / "x").mkdir()
    served(Path("./x/../d"))
    (tmp_path / "d").rename(tmp_path / "e")
    served(tmp_path / "e", kill=False)
    (tmp_path / "link").symlink_to(tmp_path / "e")
    served(tmp_path / "link")
    served(copied(tmp_path / "e", tmp_path / "copy"))


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for directory in (mine, other):
        server = ServerProcess(directory)
        try:
            publish(server.start().service_url)
            server.kill()
        finally:
            server.close()

    mixed = copied(mine, tmp_path / "journal of another")
    shutil.rmtree(mixed / "bookie" / "journal")
    copied(other / "bookie" / "journal", mixed / "bookie" / "journal")
    assert "do not belong together" in refusal(mixed)

    mixed = copied(mine, tmp_path / "bookie of another")
    shutil.rmtree(mixed / "bookie")
    copied(other / "bookie", mixed / "bookie")
    assert "of another first start" in refusal(mixed)

    mixed = copied(mine, tmp_path / "no journal")
    shutil.rmtree(mixed / "bookie" / "journal")
    assert "bring the directory back" in refusal(mixed)

    mixed = copied(mine, tmp_path / "no bookie")
    shutil.rmtree(mixed / "bookie")
    assert "Bring the directories back" in refusal(mixed)

    mixed = copied(mine, tmp_path / "no metadata")
    for file in mixed.glob("metadata.sqlite*"):
        file.unlink()
    assert "Bring the two together" in refusal(mixed)
    served(mine)


def test_a_directory_of_the_release_before_starts_and_is_moved(tmp_path: Path) -> None:
    """Its cookies have no id of the directories, and its metadata has no cookie."""
    data = tmp_path / "data"
    server = ServerProcess(data)
    try:
        publish(server.start().service_url)
        server.kill()
    finally:
        server.close()
    for part in ("journal", "ledgers"):
        file = data / "bookie" / part / "current" / "VERSION"
        lines = [line for line in file.read_text().splitlines(keepends=True) if not line.startswith("#")]
        file.write_text("".join(lines))
    asyncio.run(forget_cookies(data / FILE_NAME))
    data.rename(tmp_path / "moved")
    served(tmp_path / "moved")
    served(tmp_path / "moved")


def test_a_cluster_starts_in_a_directory_that_was_moved(tmp_path: Path) -> None:
    def cluster(*words: str) -> None:
        command = [sys.executable, "-m", "magnetar", "cluster", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=COMMAND_S)
        assert done.returncode == 0, done.stderr

    def url(directory: str) -> str:
        plan = load_plan(tmp_path / directory)
        assert plan is not None
        return plan.of_role(BROKER)[0].addresses[0]

    try:
        cluster("up", "--bookies", "2", "--dir", "c")
        publish(url("c"))
        cluster("down", "--dir", "c")
        (tmp_path / "c").rename(tmp_path / "d")
        cluster("up", "--bookies", "2", "--dir", "d")
        check(url("d"))
    finally:
        for name in ("c", "d"):
            if (tmp_path / name).exists():
                cluster("down", "--dir", name)
