"""A disk of 30 MB that is full: it serves what is stored, allows deletions, starts again, and takes messages once there is room."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.messages import patient
from tests.support.raw import RawClient, send_frame
from tests.support.traffic import read_log
from tests.support.waiting import wait_until

SILENCE_MS = 3000
"""Without a receipt for so long, on an idle machine, the disk counts as full."""

DISK_BYTES = 30 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 30 MB of its own. Mounting takes root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small file system to be had: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


class Harness:
    """The server, its HTTP answers, and clients that are closed at the end."""

    def __init__(self, disk: Path, logs: Path) -> None:
        self.disk = disk
        self.server = ServerProcess(disk / "data", {"diskCheckInterval": 500})
        self.server.log_path = logs / "server.log"
        self.answers: list[str] = []
        """Everything that went to a client by HTTP."""

    def client(self) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.server.service_url, operation_timeout_seconds=30, logger=quiet)

    def http(self, method: str, path: str) -> int:
        request = Request(f"{self.server.http_url}/admin/v2/persistent/public/default/{path}", method=method, data=b"")
        request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=60) as answer:
                self.answers.append(answer.read().decode(errors="replace"))
                return int(answer.status)
        except HTTPError as error:
            self.answers.append(error.read().decode(errors="replace"))
            return error.code

    def fill(self, topic: str, size_bytes: int) -> list[bytes]:
        """Publish until nothing is acknowledged any more; the payloads with a receipt."""
        client = self.client()
        # Without a subscription the first messages may go as soon as their ledger is closed, which makes room for further ones.
        client.subscribe(topic, "keeps it", initial_position=pulsar.InitialPosition.Earliest).close()
        producer = client.create_producer(topic, send_timeout_millis=0, max_pending_messages=5)
        stored: dict[int, bytes] = {}
        last_s = time.monotonic()

        def send(number: int) -> None:
            payload = b"%08d" % number + os.urandom(size_bytes)

            def done(result: pulsar.Result, _: object) -> None:
                nonlocal last_s
                if result == pulsar.Result.Ok:
                    stored[number], last_s = payload, time.monotonic()

            producer.send_async(payload, done)

        number = 0
        while time.monotonic() - last_s < patient(SILENCE_MS) / 1000:
            assert len(stored) * size_bytes < DISK_BYTES, "30 MB have taken more than 30 MB"
            try:
                send(number)
                number += 1
            except pulsar.ProducerQueueIsFull:
                time.sleep(0.005)
        # the official client tries again and again while its message waits: it must not be in the way of what follows
        threading.Thread(target=client.close, daemon=True).start()
        return [stored[key] for key in sorted(stored)]

    def payloads(self, topic: str) -> list[bytes]:
        client = self.client()
        try:
            return read_log(client, topic).payloads
        finally:
            client.close()

    def refusal(self, topic: str) -> str:
        """What a producer is told of a message that finds no room."""
        with RawClient(self.server.port) as client:
            client.connect()
            answer = client.producer(topic)
            if answer.type != BaseCommand.PRODUCER_SUCCESS:
                return str(answer)
            client.send_bytes(send_frame(b"x" * 20_000, 0))
            return str(client.until(BaseCommand.SEND_ERROR))

    def publish(self, topic: str, within_s: float) -> None:
        client = self.client()
        results: list[pulsar.Result] = []

        def opened() -> pulsar.Producer | None:
            """None while the bookie has not noticed that there is room: who opens an empty topic is refused at once."""
            try:
                return client.create_producer(topic, send_timeout_millis=0)
            except pulsar.NotAllowedError:
                return None

        producer = wait_until(opened, within_s, "the topic is opened, without a restart")
        producer.send_async(b"again", lambda result, _: results.append(result))
        wait_until(lambda: results == [pulsar.Result.Ok], within_s, "the message is stored, without a restart")
        client.close()


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.timeout(600)  # a loaded machine takes its time for 30 MB in small pieces
@pytest.mark.parametrize("size_bytes", [60_000, 500])
def test_a_full_disk_serves_deletes_starts_and_recovers(small_disk: Path, tmp_path: Path, size_bytes: int) -> None:
    harness = Harness(small_disk, tmp_path)
    server = harness.server.start()
    try:
        client = harness.client()
        kept = [b"keep %d " % number + os.urandom(2000) for number in range(50)]
        producer = client.create_producer("keep")
        consumer = client.subscribe("keep", "sub")
        for payload in kept:
            producer.send(payload)
        stored = harness.fill("fill", size_bytes)
        assert len(stored) * size_bytes > 5e6, "most of the disk is for messages"

        # acknowledgements are kept, messages are readable, a subscription can be made, refusals name no path
        for payload in kept:
            message = consumer.receive(30_000)
            assert message.data() == payload
            consumer.acknowledge(message)
        assert harness.payloads("fill")[: len(stored)] == stored
        late = client.subscribe("fill", "late", initial_position=pulsar.InitialPosition.Earliest)
        assert late.receive(30_000).data() == stored[0]
        refusal = harness.refusal("fill")
        assert str(small_disk) not in refusal
        harness.http("PUT", "other")
        client.close()

        server.restart()  # kill -9 on the full disk
        assert harness.payloads("fill")[: len(stored)] == stored
        assert harness.payloads("keep")[: len(kept)] == kept
        client = harness.client()
        with pytest.raises(pulsar.Timeout):
            client.subscribe("keep", "sub").receive(1000)
        client.close()
        assert server.stop() == 0
        server.start()
        assert harness.payloads("fill")[: len(stored)] == stored

        assert harness.http("DELETE", "fill?force=true") == 204
        harness.publish("keep", 30)
        assert harness.payloads("keep")[: len(kept)] == kept
        assert not [answer for answer in harness.answers if str(small_disk) in answer]
    finally:
        server.close()


def test_a_disk_that_others_have_filled_to_the_last_byte(small_disk: Path, tmp_path: Path) -> None:
    harness = Harness(small_disk, tmp_path)
    server = harness.server.start()
    try:
        client = harness.client()
        producer = client.create_producer("keep")
        kept = [b"keep %d " % number + os.urandom(2000) for number in range(50)]
        for payload in kept:
            producer.send(payload)
        client.close()
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            fill_up(ballast)
        server.restart()
        assert harness.payloads("keep") == kept
        assert harness.http("PUT", "more") in (204, 503)
        assert harness.http("DELETE", "keep?force=true") == 204
        assert not [answer for answer in harness.answers if str(small_disk) in answer]
        ballast.unlink()
        harness.publish("again", 30)
    finally:
        server.close()
